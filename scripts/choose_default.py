"""How AdaFD's default was chosen: candidates over federations of several corpora, measured on validation rows only.

    python scripts/choose_default.py run [STAGE] --data FOLDER [--seeds 5 6] [--jobs 16] [--only CANDIDATE ...]
    python scripts/choose_default.py page

The first adds the lines that are missing and makes the page, the second makes the page again. FOLDER holds amazon,
agnews, dbpedia and glue, as fedstill's corpora read them; without STAGE it is what users have now that is measured.
The stages are in default_stages.py, and a line a run in `evidence/default.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedstill.results.members import SURE

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from default_stages import (  # noqa: E402
    CANDIDATES,
    CHANCES_FROM,
    EPOCHS,
    HEAD,
    LOCAL,
    MANY_FROM,
    NOW,
    OFTEN,
    SAID,
    SINGLY,
    TOGETHER,
    VETO,
    WHERE,
    federations,
)

LINES, PAGE = ROOT / "evidence" / "default.jsonl", ROOT / "evidence" / "default.md"

Job = tuple[int, str, str, int, str]


def run_one(job: Job) -> dict[str, Any]:
    """One run, as a line."""
    import fedstill

    stage, where, candidate, seed, data = job
    settings = federations(Path(data), stage >= MANY_FROM)[where]
    train = {"epochs": EPOCHS.get(candidate, 3), "batch": 32, "max_length": 64} | settings.pop("train", {})
    experiment = fedstill.Experiment(
        name="default", server="bert-tiny", algorithm=CANDIDATES[stage][candidate], seed=seed, workers=1, train=train,
        measure="validation", rounds=3, alone="rounds" if stage >= CHANCES_FROM else "first", **settings,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        record = fedstill.run(experiment, Path(scratch) / "run")
        about = {"stage": stage, "federation": where, "candidate": candidate, "seed": seed}
        if candidate in (LOCAL, OFTEN):
            return about | alone(record.metrics, record.summary["metrics"][0])
        members = {member.name: member for member in record.members}
        if stage >= CHANCES_FROM:
            about["p"] = {name: round(m.p, 4) for name, m in members.items() if m.p is not None}
            about["all_alone"] = round(fmean(m.every.alone for m in members.values() if m.every), 4)
        return about | {
            "own": {name: [round(m.own.alone, 4), round(m.own.after, 4)] for name, m in members.items() if m.own},
            "all": round(fmean(m.every.after for m in members.values() if m.every), 4),
            "server": round(record.f1("server"), 4) if experiment.method.has_server_model else None,
        }


def alone(metrics: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """A run of Local: what everybody has after the first round and after the last, on own rows; and on all rows."""
    scores: dict[str, dict[str, list[float]]] = {}
    for line in metrics:
        if "split" in line:
            scores.setdefault(line["party"], {}).setdefault(line["split"], []).append(round(line[metric], 4))
    return {
        "own": {name: [own[f"test/{name}"][0], own[f"test/{name}"][-1]] for name, own in sorted(scores.items())},
        "all": round(fmean(own["test"][-1] for own in scores.values()), 4),
        "server": None,
    }


def run_all(stage: int, data: Path, seeds: Sequence[int], jobs: int, candidates: Sequence[str]) -> None:
    """Every candidate in every federation, with every seed, unless its line is there; a line each, as they end."""
    there = [json.loads(line) for line in LINES.read_text().splitlines()]
    done = {(line["stage"], line["federation"], line["candidate"], line["seed"]) for line in there}
    jobs_of = ((stage, where, each, seed, str(data)) for seed in seeds for where in WHERE[stage] for each in candidates)
    todo = [job for job in jobs_of if job[:4] not in done]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, LINES.open("a") as file:
        for number, line in enumerate(pool.imap_unordered(run_one, todo), 1):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{number}/{len(todo)} {line['federation']}: {line['candidate']}", flush=True)


def page(lines: Sequence[Mapping[str, Any]]) -> str:
    """The tables of all stages."""
    return "\n".join(_page(lines)) + "\n"


def _page(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# How AdaFD's default was chosen"
    yield ""
    yield from HEAD
    for stage in sorted({line["stage"] for line in lines}):
        own = [line for line in lines if line["stage"] in TOGETHER.get(stage, (stage,))]
        where = _shared(own)
        seeds = sorted({line["seed"] for line in own})
        numbers = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        yield f"\n## Stage {stage}: {len(where)} federation{'s' if len(where) > 1 else ''}, {numbers}\n"
        yield from [*SAID[stage], ""]
        fair = stage >= CHANCES_FROM or any(line["candidate"] == LOCAL for line in own)
        over = "alone for as long" if fair else "one round alone"
        yield f"| candidate | gain over {over}, own rows | better off | worse off | all rows | server | sum |"
        yield "|---|---|---|---|---|---|---|"
        rows = [(name, means(own, name, where)) for name in _names(own)]
        for name, found in sorted(rows, key=lambda row: -row[1].sum):
            server, total = (f"{found.server:.1f}", f"{found.sum:.1f}") if found.server else ("–", "–")
            yield f"| {name} | {found.shown} | {found.every:.1f} | {server} | {total} |"
        if stage >= CHANCES_FROM:
            yield from ["", *(f"- {name}: {losses(own, name, where)}" for name in _names(own))]
        if stage in (3, 5, *range(7, VETO + 1)):
            yield from _by_federation(own, where)
        if stage == SINGLY:
            yield from _servers(own, where)


def _shared(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The federations in which every candidate of these lines was run."""
    places = [{line["federation"] for line in lines if line["candidate"] == name} for name in _names(lines)]
    return sorted(set[str].intersection(*places))


def _servers(lines: Sequence[Mapping[str, Any]], where: Sequence[str]) -> Iterator[str]:
    """For many candidates: a line for each."""
    yield "\nThe server, by federation.\n"
    yield "| candidate | " + " | ".join(where) + " |"
    yield "|---" * (len(where) + 1) + "|"
    scores = {(line["candidate"], line["federation"]): 100 * line["server"] for line in lines}
    for name in sorted(_names(lines), key=lambda name: -fmean(scores[name, place] for place in where)):
        yield f"| {name} | " + " | ".join(f"{scores[name, place]:.1f}" for place in where) + " |"


def _by_federation(lines: Sequence[Mapping[str, Any]], where: Sequence[str]) -> Iterator[str]:
    names = [name for name in _names(lines) if name != LOCAL]
    yield "\nBy federation: gain on own rows (worse off).\n"
    yield "| federation | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for place in where:
        cells = [means(lines, name, [place]) for name in names]
        yield f"| {place} | " + " | ".join(f"{cell.gain:+.1f} ({cell.worse:.0f}%)" for cell in cells) + " |"


def _names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({line["candidate"] for line in lines})


class Means(NamedTuple):
    """A candidate's scores in points and shares in percent: means over federations of means over seeds."""

    gain: float
    better: float
    worse: float
    """The shares of clients that won or lost more than a point on their own rows."""
    every: float
    """The clients on all rows."""
    server: float

    @property
    def sum(self) -> float:
        """What was chosen by: gain on own rows, the clients on all rows, and the server."""
        return self.gain + self.every + self.server

    @property
    def shown(self) -> str:
        """The part about own rows, as cells."""
        return f"{self.gain:+.1f} | {self.better:.0f}% | {self.worse:.0f}%"


def means(lines: Sequence[Mapping[str, Any]], candidate: str, where: Sequence[str]) -> Means:
    """A candidate of a stage over these federations, compared with everybody alone for as long where that is known."""
    alone = {(line["federation"], line["seed"]): line["own"] for line in lines if line["candidate"] == LOCAL}
    found = []
    for place in where:
        here = [line for line in lines if (line["federation"], line["candidate"]) == (place, candidate)]
        gains = [_gains(line["own"], alone.get((place, line["seed"]))) for line in here]
        found.append(
            (
                fmean(map(fmean, gains)),
                fmean(fmean(gain > 0.01 for gain in each) for each in gains),
                fmean(fmean(gain < -0.01 for gain in each) for each in gains),
                fmean(line["all"] for line in here),
                fmean(line["server"] or 0.0 for line in here),
            )
        )
    return Means(*(100 * fmean(column) for column in zip(*found, strict=True)))


def losses(lines: Sequence[Mapping[str, Any]], candidate: str, where: Sequence[str]) -> str:
    """How many clients lost more than a point, and how many of them by more than the chance of their rows."""
    own = [line for line in lines if line["candidate"] == candidate and line["federation"] in where]
    clients = sum(len(line["own"]) for line in own)
    chances = [p for line in own for p in line["p"].values()]
    surely = sum(p < SURE for p in chances)
    everybody = 100 * fmean(line["all"] - line["all_alone"] for line in own)
    return (
        f"{len(chances)} of {clients} clients lost more than a point, {surely} of them by more than the chance of "
        f"their rows (p < {SURE}). On everybody's rows clients gained {everybody:+.1f}."
    )


def _gains(own: Mapping[str, Sequence[float]], alone: Mapping[str, Sequence[float]] | None) -> list[float]:
    """What each client gained over its first round alone, or over its last."""
    return [after - (first if alone is None else alone[name][1]) for name, (first, after) in own.items()]


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("stage", type=int, nargs="?", default=NOW, choices=sorted(CANDIDATES))
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--seeds", type=int, nargs="+", default=[5, 6])
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--only", nargs="+", metavar="CANDIDATE")
    commands.add_parser("page")
    given = parser.parse_args()
    if given.command == "run":
        run_all(given.stage, given.data, given.seeds, given.jobs, given.only or list(CANDIDATES[given.stage]))
    lines = [json.loads(line) for line in LINES.read_text().splitlines()]
    PAGE.write_text(page(lines))
    print(f"written: {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
