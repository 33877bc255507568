"""A method's cost formula as bytes, before anything has run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedstill.algorithms.base import Algorithm
from fedstill.common.units import size_text

FLOAT = 4
"""Bytes of a number that no codec has shrunk."""
PER = r"once|a client|a public pass|codes, .*"
"""What may stand behind a formula: how often that many numbers are sent, or that they are codes of a few bits."""


@dataclass(frozen=True)
class Cost:
    """The bytes of a method's formula, in which a message to several clients counts once."""

    formula: str
    bytes: float
    is_once: bool = False
    """In the whole run, not in every round."""
    is_rough: bool = False
    """Whether the method's codec decides in the end."""

    @classmethod
    def of(cls, method: Algorithm, letters: Mapping[str, int], passes: int) -> Cost | None:
        """Evaluate the formula with these N, C, K and P; None if it has parts that are known only in a run."""
        match = re.fullmatch(rf"([NCKP\d(+)^ ]+?) ?({PER})?", method.cost)
        if match is None:
            return None
        numbers, per = evaluated(match[1], letters), match[2] or ""
        often = {"a client": letters["K"], "a public pass": passes}.get(per, 1)
        are_codes = per.startswith("codes")
        bits = getattr(method.codecs.opinions, "up", 32) if are_codes else 32
        return cls(method.cost, numbers * often * FLOAT * bits / 32, per == "once", are_codes)

    def __str__(self) -> str:
        about, rate = "about " if self.is_rough else "", "once" if self.is_once else "a round"
        return f"{about}{size_text(self.bytes)} {rate} ({self.formula})"


def evaluated(formula: str, letters: Mapping[str, int]) -> int:
    """The number that a formula such as `NC(K+1)+K` or `2C^2 K` gives."""
    values = {**letters, "M": letters["K"] + 1}
    terms = formula.replace("(K+1)", "M").replace(" ", "").split("+")
    factors = [re.findall(r"(\d+|[NCKPM])(?:\^(\d))?", term) for term in terms]
    return sum(
        math.prod((values[factor] if factor in values else int(factor)) ** int(power or 1) for factor, power in term)
        for term in factors
    )
