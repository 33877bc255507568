"""Colours, dashes, markers and hatches: what tells series apart, each of them without the colour too."""

from __future__ import annotations

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito's, which colour-blind people can tell apart; without yellow and black, which vanish on one ground."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (9, 2)))
MARKERS = ("o", "s", "D", "^", "P", "X", "*", "v", "p", "h", "<", ">")
HATCHES = ("", "///", "xx", "..", "--", "++", "\\\\\\", "||")
SHADES = "Blues"
"""Matplotlib's map from light to dark, which stays a scale in grey."""


def line_ink(number: int) -> dict[str, object]:
    """How the line of this number is drawn."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def point_ink(number: int) -> dict[str, object]:
    """The same without a line."""
    return line_ink(number) | {"linestyle": "none"}


def bar_ink(number: int) -> dict[str, object]:
    """How the bars of this number are drawn."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": "white",
    }
