"""`fedstill show`: tables of the corpora, models, algorithms and recipes to choose from, and of the papers' claims."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.local import Local
from fedstill.cli.method import NEEDS, SENDS, purpose
from fedstill.common.files import write_whole
from fedstill.common.plugins import nearest
from fedstill.config.experiment import Experiment
from fedstill.config.source import Source
from fedstill.data.artefacts import WHEELS
from fedstill.data.corpora import EMBEDDED
from fedstill.models.spec import FROM_SCRATCH
from fedstill.papers import claims_page
from fedstill.papers.recipe import is_grid, recipe_files
from fedstill.plan.advice import Situation, Wishes, tells
from fedstill.plan.advice import advise as choose
from fedstill.plan.caution import cautions
from fedstill.plan.prepare import prepare

Page = tuple[Sequence[str], Sequence[Sequence[str]]]


def page(what: str, evidence: Path) -> Page:
    """A page by its name; the claims are judged by an evidence folder."""
    pages = {"corpora": corpora, "models": models, "algorithms": methods, "recipes": recipes}
    return claims(evidence) if what == "claims" else pages[what]()


def near(what: str, kinds: Sequence[str]) -> str:
    """The nearest thing that there is something to show about, in a sentence."""
    return nearest(what, [*kinds, *algorithms.known(Algorithm)])


def corpora() -> Page:
    """Fedstill's corpora, and how to name other data."""
    rows = [(name, corpus.what, _few(corpus.labels), corpus.licence) for name, corpus in EMBEDDED.items()]
    rows.append(("{path: ...}", "your own CSV, TSV, JSONL or Parquet", "yours", "yours"))
    rows.append(("owner/name", "a Hugging Face data set", "its own", "its own"))
    return ("name", "what", "labels", "licence"), rows


def _few(labels: Sequence[str]) -> str:
    """The labels; of many only the first, and how many there are."""
    return ", ".join(labels) if len(labels) <= 14 else f"{', '.join(labels[:8])}, ... ({len(labels)})"


def models() -> Page:
    """Models by short name, and how to name others."""
    rows = [(name, WHEELS[name].what, "pretrained", WHEELS[name].licence) for name in ("bert-tiny", "minilm")]
    rows += [(name, _first_line(cls), "from scratch", "Apache-2.0") for name, cls in FROM_SCRATCH.items()]
    rows.append(("minilm[:3]", "the first three layers of any transformer", "pretrained", "the model's"))
    rows.append(("owner/name or a folder", "any Hugging Face sequence classifier, or T5", "pretrained", "the model's"))
    rows.append(("file.py:Class", "a torch.nn.Module of your own", "from scratch", "yours"))
    return ("name", "what", "weights", "licence"), rows


def methods() -> Page:
    """Algorithms, with the paper, needs and cost of each."""
    rows = [
        (name, purpose(cls), cls.paper, ", ".join(sorted(cls.needs)) or "-", cls.cost)
        for name, cls in sorted(algorithms.known(Algorithm).items())
    ]
    return ("name", "what", "paper", "needs", "numbers per round"), rows


def advice(experiment: Experiment, wishes: Wishes) -> dict[str, Any]:
    """What an experiment has, the methods to try with it, and why not the others, as plain values."""
    alone = experiment.model_copy(update={"algorithm": {"name": "Local"}})  # it needs nothing, so nothing is refused
    with tempfile.TemporaryDirectory() as scratch:
        found = Situation.of(prepare(alone, Path(scratch))[1], wishes)
        chosen = choose(found)
        tries = [
            {
                "algorithm": one.method,
                "why": one.why,
                "costs": str(cost or method.cost),
                "bytes": cost and cost.bytes,
                "needs": [text for need, text in NEEDS.items() if need in method.requires()],
                "sends": [text for kind, text in SENDS.items() if kind in tells(method)],
                "evidence": one.evidence,
            }
            for one, method in chosen.tries
            for cost in [found.cost(method)]
        ]
        told = [str(caution) for caution in cautions(Local(), found.clients)]
        return {
            "experiment": str(found),
            "tries": tries,
            "others": list(chosen.others),
            "obstacles": dict(chosen.obstacles),
            "cautions": told,
        }


def tell_advice(told: Mapping[str, Any], console: Console, untrusted: bool) -> None:
    """Print advice."""
    say = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    say(told["experiment"])
    say("\nTry, in this order:" if told["tries"] else "\nNo method here fits.")
    for number, one in enumerate(told["tries"], 1):
        needs, sends = ", ".join(one["needs"]) or "nothing", " and ".join(one["sends"])
        say(f"{number}. {_spelt(one['algorithm'])}: {one['why']}.")
        say(f"   costs {one['costs']}; needs {needs}; clients send {sends}.")
        say(f"   evidence: {one['evidence']}")
    if told["others"]:
        also = " (set blend=median where parameters are averaged)" if untrusted else ""
        say(f"\nWould run, too{also}: {', '.join(told['others'])}.")
    if told["obstacles"]:
        say("\nNot these:")
    for name, reason in told["obstacles"].items():
        say(f"   {name}: {reason}.")
    say("\nA run ends with what each client had alone and has now. Look there before you believe any advice.")
    for caution in told["cautions"]:
        console.print(f"caution: {caution}", style="yellow", markup=False, soft_wrap=True)


def _spelt(method: str | Mapping[str, object]) -> str:
    """A method as it is given to `fedstill run`."""
    if isinstance(method, str):
        return f"algorithm={method}"
    return f"'algorithm={{{', '.join(f'{key}: {value}' for key, value in method.items())}}}'"


def recipes() -> Page:
    """The experiments and tables that come with fedstill."""
    rows = [(name, _kind(path), _comment(path)) for name, path in recipe_files().items()]
    return ("name", "kind", "what"), rows


def claims(folder: Path) -> Page:
    """What the papers claim, judged by an evidence folder."""
    rows = [row for each in claims_page.judged_claims(folder) for row in claims_page.lines(each)]
    return claims_page.HEADINGS, rows


def write_claims(folder: Path, path: Path) -> None:
    """Write the same as a page."""
    write_whole(path, claims_page.page(claims_page.judged_claims(folder), folder).encode())


def _kind(path: Path) -> str:
    """A table is for `fedstill reproduce`, an experiment for `fedstill run`."""
    return "table" if is_grid(Source.read(path).values) else "experiment"


def _comment(path: Path) -> str:
    """A recipe's first line, which says what it is."""
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]
