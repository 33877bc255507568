"""How our seconds grow with the public set, the length of texts and the classes; the ratio to the plain loop there."""

from __future__ import annotations

import plain
import torch
from speed import Case
from turns import Results, Values, Work, in_turns, spread, times

MODEL, TURNS = "bert-tiny", 3
PUBLIC, LENGTHS, CLASSES = (100, 400, 1600), (32, 64, 128, 256), (2, 4, 14, 100)
ROWS = 128


def after(*works: Work) -> Work:
    """One after the other, as one work."""
    return lambda: [work() for work in works]


def point(case: Case, *whats: str) -> Values:
    """Those works one after the other, ours and plain taking turns."""
    seconds = in_turns(
        {
            "plain": lambda: after(*(case.plain(what)() for what in whats)),
            "ours": lambda: after(*(case.ours(what)() for what in whats)),
        },
        TURNS,
    )
    return times(seconds["plain"], seconds["ours"]) | {
        "rows": len(case.data),
        "tokens": float(case.data.lengths.mean()),
    }


def measure() -> Results:
    """Everything."""
    torch.set_num_threads(1)
    found = {f"public {rows}": point(Case.of(MODEL, rows), "predict", "distil") for rows in PUBLIC}
    found |= {f"length {width}": point(Case.of(MODEL, ROWS, "reviews", width), "train", "predict") for width in LENGTHS}
    found |= {
        f"classes {many}": point(Case.of(MODEL, ROWS, classes=many), "train", "predict", "distil") for many in CLASSES
    }
    return found


def lines(found: dict[str, Results]) -> list[str]:
    """This part of the page."""
    results = found.get("growth", {})
    works = {"public": "predict and distil", "length": "train and predict", "classes": "train, predict and distil"}
    titles = {"public": "public rows", "length": "tokens at most (film reviews)", "classes": "classes"}
    return [
        f"| {MODEL} | | work | our CPU s | a row, ms | times as fast as the plain loop | tokens a text |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {titles[kind]} | {size} | {works[kind]} | {v['cpu_s']:.2f} | {1e3 * v['cpu_s'] / v['rows']:.2f} "
            f"| {spread(v)} | {v['tokens']:.0f} |"
            for name, v in results.items()
            for kind, size in [name.split()]
        ),
        "",
        f"The plain loop pads to {plain.WIDTH}, and for other lengths to that length. Lowest and highest of {TURNS}.",
        "",
    ]
