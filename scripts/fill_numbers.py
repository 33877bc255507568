"""The measured numbers in README.md and docs/, filled in from the files that hold them.

    python scripts/fill_numbers.py           # fills every block between <!-- numbers: NAME --> and <!-- end -->
    python scripts/fill_numbers.py demo      # runs the demo before (minutes) and keeps its tables in evidence/demo.txt

A block's text is what the function NAME in `BLOCKS` returns. `tests/test_numbers.py` compares the files with it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "evidence" / "demo.txt"
SHARES = ("20%", "40%")
BLOCK = re.compile(r"(<!-- numbers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """The files that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(text: str) -> str:
    """A page with the text of every block made again."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", text)


def demo() -> str:
    """What the demo printed."""
    return f"```\n{DEMO.read_text(encoding='utf-8')}```"


def default() -> str:
    """AdaFD's default beside its rivals, against everybody alone for as long."""
    script, own, places = _stage("NOW")
    seeds = {line["seed"] for line in own}
    found = {name: script["means"](own, name, places) for name in {line["candidate"] for line in own}}
    alone = found.pop(script["LOCAL"])
    heading = f"mean of {len(places)} small federations, {len(seeds)} fresh seed{'s' if len(seeds) > 1 else ''}"
    rows = [
        f"| {heading} | gain on own rows | better off | worse off | gain on everybody's rows |",
        "|---|---|---|---|---|",
    ]
    for name, means in sorted(found.items(), key=lambda row: -row[1].gain):
        title = "AdaFD, the default" if name == "AdaFD" else name
        rows.append(f"| {title} | {means.shown} | {means.every - alone.every:+.1f} |")
    return "\n".join(rows)


def chance() -> str:
    """How many of the clients that are worse off by the default are so by more than chance; and on other data."""
    where = {
        "CHANCES_FROM": "On another fresh seed (stage {}, the same {} federations)",
        "FRESH": "On film reviews, which no client had until then (stage {}, {} federations)",
        "VETO": "Among sixteen domains with two labels (stage {}, {} federations)",
    }
    told = []
    for name, said in where.items():
        script, own, places = _stage(name)
        gain, losses = script["means"](own, "AdaFD", places).gain, script["losses"](own, "AdaFD", places)
        told.append(f"{said.format(script[name], len(places))} clients gained {gain:+.1f} points on own rows; {losses}")
    return _paragraph(" ".join(told))


def _stage(name: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """The names of choose_default.py and its stages, the lines of the stage that one holds, and their federations."""
    files = ("default_stages.py", "choose_default.py")
    script = {name: value for file in files for name, value in runpy.run_path(str(ROOT / "scripts" / file)).items()}
    every = [json.loads(line) for line in script["LINES"].read_text().splitlines()]
    own = [line for line in every if line["stage"] == script[name]]
    return script, own, sorted({line["federation"] for line in own})


def attacks() -> str:
    """What blends make of liars in whole federations: means over methods, for seeds that all blends were run with."""
    cells: dict[tuple[str, str, int], dict[str, float]] = {}
    for line in map(json.loads, (ROOT / "evidence" / "trust" / "attacks.jsonl").read_text().splitlines()):
        method, blend = line["row"].rsplit(", ", 1)
        if line["server"] is not None:
            cells.setdefault((method, line["group"], line["seed"]), {})[blend] = 100 * line["server"]["test"]["f1"]
    blends = list(dict.fromkeys(blend for found in cells.values() for blend in found))
    whole = {cell: found for cell, found in cells.items() if len(found) == len(blends)}
    groups = list(dict.fromkeys(group for _, group, _ in whole))
    means = {
        blend: {group: fmean(found[blend] for cell, found in whole.items() if cell[1] == group) for group in groups}
        for blend in sorted(blends)
    }
    lies = {share: [group for group in groups if group.endswith(share) and "corrupt" not in group] for share in SHARES}
    heading = ["nobody lies", *(f"{share} lie: {what}" for share in SHARES for what in ("mean", "worst", "absent"))]
    rows = [f"| `blend` | {' | '.join(heading)} |", "|---|" + "---|" * len(heading)]
    for blend, found in means.items():
        values = [found["nobody lies"]]
        for share in SHARES:
            own = [found[group] for group in lies[share]]
            values += [fmean(own), min(own), found[f"corrupt, {share}"]]
        rows.append(f"| `{blend}` | {' | '.join(f'{value:.1f}' for value in values)} |")
    methods = ", ".join(sorted({method for method, _, _ in whole}))
    seeds = sorted({seed for _, _, seed in whole})
    return "\n".join([*rows, "", f"F1 of the server, in points; {methods}; seeds {', '.join(map(str, seeds))}."])


def speed() -> str:
    """The headlines of the benchmarks."""
    models = ("bert-tiny", "minilm")
    alone, rounds, card = (measured(name) for name in ("speed", "rounds", "gpu-h200"))
    rows = {
        "training, one CPU thread": [alone[f"train {model}, against plain"]["ratio"] for model in models],
        "prediction, one CPU thread": [alone[f"predict {model}, against plain"]["ratio"] for model in models],
        "a whole round of AdaFD, measuring included": [rounds[f"{model}, one process"]["ratio"] for model in models],
        "training five clients on an H200, against its fp32 loop": [_five(card[model])["ratio"] for model in models],
    }
    return "\n".join(
        [
            f"| | {' | '.join(models)} |",
            "|---|---|---|",
            *(f"| {what} | {' | '.join(f'{value:.1f}x' for value in values)} |" for what, values in rows.items()),
            "",
            _beside(card),
        ]
    )


def products() -> str:
    """What computes the encoder's products."""
    found, machine = measured("products"), measured("products", "machine")
    works = [name.removesuffix(", ours against MKL") for name in found if name.endswith(", ours against MKL")]
    return "\n".join(
        [
            "| | rows a CPU second, fp32 by MKL | ours, fp32 | `precision: bf16` |",
            "|---|---|---|---|",
            *(
                f"| {work} | {own['rows_per_s'] / own['ratio']:.0f} | {own['rows_per_s']:.0f} ({own['ratio']:.2f}x) "
                f"| {narrow['rows_per_s']:.0f} ({own['ratio'] * narrow['ratio']:.2f}x) |"
                for work in works
                for own, narrow in [(found[f"{work}, ours against MKL"], found[f"{work}, bf16 against ours"])]
            ),
            "",
            f"On one of {machine['processor']}.",
        ]
    )


def int8() -> str:
    """Prediction in eight bits."""
    return "\n".join(
        [
            "| | rows a CPU second, fp32 | int8 | torch's own int8 | same label | right, fp32 | right, int8 |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {name} | {own['fp32_rows_per_s']:.0f} | {own['int8_rows_per_s']:.0f} ({own['ratio']:.2f}x) "
                f"| {own['torch_rows_per_s']:.0f} | {100 * own['same_labels']:.1f}% | {100 * own['right_fp32']:.1f}% "
                f"| {100 * own['right_int8']:.1f}% |"
                for name, own in measured("int8").items()
            ),
        ]
    )


def _beside(card: dict[str, Any]) -> str:
    """What the table of speeds leaves out."""
    lengths = [value["ratio"] for name, value in measured("growth").items() if name.startswith("length")]
    base, many = _five(card["bert-base"]), measured("clients-growth")["1000 clients"]
    products, machine = measured("products"), measured("products", "machine")
    tiny, mini = (products[f"train {model}, ours against MKL"]["ratio"] for model in ("bert-tiny", "minilm"))
    return _paragraph(
        f"""The CPU is {machine["processor"]}: a factor of {tiny:.1f} and {mini:.1f} of the gain in training is that
        matrix products are oneDNN's instead of MKL's, which is of no use on Intel's processors. Tweets are short,
        so much of the gain comes from padding; on film reviews, which are long, a CPU trains and
        predicts `bert-tiny` {min(lengths):.1f} to {max(lengths):.1f} times as fast. BERT-base, five clients at once on
        one H200: {base["tflops"]:.0f} useful TFLOP/s, {base["ratio"]:.1f} times the fp32 loop. A thousand `bert-tiny`
        clients, {many["active"]} of them active, take {many["peak_gib"]:.1f} GiB."""
    )


def _paragraph(words: str) -> str:
    return "\n".join(wrap(" ".join(words.split()), 130, break_on_hyphens=False))


def _five(ways: dict[str, Any]) -> dict[str, float]:
    """Five clients at once: the better of streams and a stack, as in a run."""
    return max((value for way, value in ways.items() if way.startswith("five")), key=lambda value: value["ratio"])


def measured(part: str, what: str = "values") -> dict[str, Any]:
    """What a part of the benchmarks found; or the `machine` that it was measured on."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{part}.json").read_text())[what]
    return found


def exchange() -> str:
    """What an exchange takes, by engine and size."""
    engines = measured("exchange")
    sizes = list(engines["local"])
    return "\n".join(
        [
            f"| engine | {' | '.join(sizes)} |",
            f"|---|{'---|' * len(sizes)}",
            *(
                f"| `{engine}` | {' | '.join(f'{engines[engine][size]:.0f} ms' for size in sizes)} |"
                for engine in ("flare", "local")
            ),
        ]
    )


def adapters() -> str:
    """Adapters beside the whole model."""
    ways = measured("adapters")
    about = json.loads((ROOT / "benchmarks" / "results" / "adapters.json").read_text())["machine"]
    rows = [
        f"| {way} | {100 * v['f1']:.1f} | {v['learn']:,.0f} | {v['message_bytes']:,.0f} | {v['bytes'] / 1e6:,.0f} MB "
        f"| {v['saved_bytes'] / 1e6:.1f} MB | {v['peak_mib']:,.0f} MiB | {v['cpu_s']:.0f} s |"
        for way, v in ways.items()
    ]
    return "\n".join(
        [
            "| `minilm` | F1 | parameters that learn | bytes of a message | bytes of the run | a saved model "
            "| peak memory | CPU |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            _paragraph(
                f"""Measured on {about["cores"]} cores beside other work (load {about["load_before"]:.1f}),
                {about.get("note", "one way after the other")}, which is why the seconds are the CPU's and not the
                clock's."""
            ),
        ]
    )


def cell() -> str:
    """A cell of a page in evidence/, explained."""
    page = (ROOT / "evidence" / "adafd" / "table1.md").read_text(encoding="utf-8")
    ours = r"(\S+) \\\| (\S+) ± (\S+) \[(\S+), (\S+)\] \((\d+)\)"
    row = re.search(rf"^\| AdaFD w/ ENWC [^|]*\| {ours}", page, re.MULTILINE)
    assert row is not None, "evidence/adafd/table1.md has no cell of ours for AdaFD w/ ENWC"
    printed, mean, deviation, low, high, seeds = row.groups()
    return _paragraph(
        f"""`{printed} | {mean} ± {deviation} [{low}, {high}] ({seeds})`: the paper printed {printed}; ours is {mean} on
        average over {seeds} seeds, with their sample standard deviation and, from three seeds on, the 95% interval of
        the mean (Student's t)."""
    )


def fedid() -> str:
    """FedID and what stops its collapse, beside the other methods, on SST-2."""
    ordered = sorted(_accuracies("table1", "alpha=1").items(), key=lambda row: -fmean(row[1]))
    return "\n".join(
        [
            "| method | accuracy on SST-2, seed by seed | mean |",
            "|---|---|---|",
            *(f"| {name} | {', '.join(f'{x:.1f}' for x in found)} | {fmean(found):.1f} |" for name, found in ordered),
        ]
    )


def fedid_mixed() -> str:
    """The same with different models, and FedID without each of its parts."""
    even, uneven = (_accuracies("table2", f"alpha={alpha}") for alpha in (100, 1))
    ablated = {name: found for name, found in _accuracies("table4").items() if "w/o" in name}
    rows = ["| method, different models | labels dealt with alpha = 100 | alpha = 1 |", "|---|---|---|"]
    for name, found in sorted((uneven | ablated).items(), key=lambda row: -fmean(row[1])):
        title = f"FedID {name}" if name in ablated else name
        rows.append(f"| {title} | {_spread(even[name]) if name in even else '–'} | {_spread(found)} |")
    return "\n".join([*rows, "", "Accuracy on SST-2: the mean of five seeds, and the lowest and highest."])


def fedid_parts() -> str:
    """FedID with one part at a time taken away or changed, equal models."""
    rows = sorted(_accuracies("parts").items(), key=lambda row: -fmean(row[1]))
    seeds = max(len(found) for _, found in rows)
    return "\n".join(
        [
            "| equal models, labels dealt with alpha = 1 | accuracy on SST-2 |",
            "|---|---|",
            *(f"| {name} | {_spread(found)} |" for name, found in rows),
            "",
            f"The mean of {seeds} seeds, and the lowest and highest.",
        ]
    )


def fedid_rates() -> str:
    """What every method of FedID's tables scored on validation rows, by rate."""
    lines = json.loads((ROOT / "evidence" / "tuning.json").read_text(encoding="utf-8"))
    parts = []
    for recipe, what in (
        ("fedid/table1", "equal models: the rate"),
        ("fedid/table2", "different models: times the rates"),
    ):
        own = [line for line in lines if (line["recipe"], line["scale"]) == (recipe, "medium")]
        values = sorted({value for line in own for value in line["try"].values()})
        scores = {(line["row"], value): 100 * line["score"] for line in own for value in line["try"].values()}
        parts += ["", f"| {what} | {' | '.join(f'{value:g}' for value in values)} |", "|---" * (len(values) + 1) + "|"]
        for row in sorted({line["row"] for line in own}):
            parts.append(f"| {row} | {' | '.join(f'{scores[row, value]:.1f}' for value in values)} |")
    return "\n".join(parts[1:])


def _spread(found: list[float]) -> str:
    return f"{fmean(found):.1f} ({min(found):.1f} - {max(found):.1f})"


def _accuracies(table: str, group: str = "") -> dict[str, list[float]]:
    """Of each method of a table of FedID's, seed by seed."""
    scores: dict[str, list[float]] = {}
    for line in map(json.loads, (ROOT / "evidence" / "fedid" / f"{table}.jsonl").read_text().splitlines()):
        if line["group"] == group:
            scores.setdefault(line["row"], []).append(100 * line["server"]["test"]["accuracy"])
    return scores


def recipes() -> str:
    """How many runs every recipe has at the scales below the paper's, and the pages that there are."""
    from fedstill.config.source import Source
    from fedstill.papers.evidence import CORES_FOR_A_CARD
    from fedstill.papers.recipe import is_grid, recipe_files

    scales = ("medium", "small")
    sources = {name: Source.read(path) for name, path in recipe_files().items()}
    return "\n".join(
        [
            "| recipe | runs at medium | take two cores | runs at small | take two cores | evidence |",
            "|---|---|---|---|---|---|",
            *(
                " | ".join([f"| `{name}`", *(_runs(source, name, scale) for scale in scales), f"{_kept(name)} |"])
                for name, source in sources.items()
                if is_grid(source.values)
            ),
            "",
            "What two cores take is the seconds of the lines in `evidence/`, one run a core; where these are of a",
            f"GPU, by an estimate {CORES_FOR_A_CARD} times as long (on processors that compute in bf16, with",
            "`precision=bf16`).",
        ]
    )


def figures() -> str:
    """Every figure, the command that makes its runs, and how long that takes."""
    from fedstill.papers.figures.table import lines

    rows = [f"| `{name}` | {shows} | `{command}` | {takes} |" for name, shows, command, takes in lines()]
    return "\n".join(["| figure | shows | its runs, at scale small | take |", "|---|---|---|---|", *rows])


def _runs(source: Any, name: str, scale: str) -> str:
    """How many runs a recipe has at a scale, and how long they take if some are kept, as two cells."""
    from fedstill.papers.evidence import on_two_cores, read_lines
    from fedstill.papers.grid import plan_grid
    from fedstill.papers.recipe import read_recipe

    recipe = read_recipe(source)
    if scale not in recipe.scales:
        return "– | "
    if not recipe.is_trained:
        return "none | "
    asked = [f"{key}=somewhere" for key in recipe.asks | recipe.scales[scale].asks]
    runs = plan_grid(source, scale, Path("runs"), asked).runs
    many = sum(recipe.rows[run.row].needs_env is None for run in runs)  # whatever keys this machine has
    lines = ROOT / "evidence" / f"{name}.jsonl"
    kept = [line for _, line in read_lines(lines) if line["scale"] == scale] if lines.exists() else []
    taken = [(line["seconds"] * many / len(kept), line["device"]) for line in kept]
    return f"{many} | {on_two_cores(taken) if taken else ''}"


def _kept(recipe: str) -> str:
    pages = {"medium": f"evidence/{recipe}.md", "small": f"evidence/{recipe}-small.md"}
    return ", ".join(f"[{scale}](../{page})" for scale, page in pages.items() if (ROOT / page).exists())


BLOCKS: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        demo,
        default,
        chance,
        attacks,
        speed,
        products,
        int8,
        exchange,
        adapters,
        cell,
        fedid,
        fedid_mixed,
        fedid_parts,
        fedid_rates,
        recipes,
        figures,
    )
}


def run_demo() -> None:
    """Run the demo in a folder of its own and keep its tables."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "fedstill", "demo"]
        run = subprocess.run(
            command,
            cwd=scratch,
            env=os.environ | {"COLUMNS": "100"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=True,
        )
    DEMO.write_text(tables(run.stdout), encoding="utf-8")


def tables(printed: str) -> str:
    """Of what the demo prints the table of methods and, the last part, that of organisations with its sentences."""
    parts = "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n").split("\n\n")
    methods = next(part for part in parts if re.search(r"^method +global", part, re.MULTILINE))
    return f"{methods}\n\n{parts[-1]}\n"


def main() -> None:
    """Fill all blocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["demo"])
    if parser.parse_args().what == "demo":
        run_demo()
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
