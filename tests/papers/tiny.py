"""A table of two groups, three methods and three columns that runs in seconds."""

from __future__ import annotations

from pathlib import Path

from fedstill.config.source import Source
from fedstill.papers.grid import Grid, plan_grid

TINY = """\
# Two methods and an upper bound on the reviews of three shops
title: three shops
paper: Nobody, Table 0
method: AdaFD
experiment:
  corpus: {path: REVIEWS, text: [title, body], label: stars, domain: shop}
  clients: bow
  server: bow
  train: {epochs: 2, batch: 16, max_length: 16}
  workers: 1
scales:
  paper: {seeds: 3, experiment: {rounds: 9}}
  small: {seeds: 2, experiment: {rounds: 2}, groups: [few], notes: [Three shops are few.]}
groups:
  few: {experiment: {partition: {public: 0.1}}}
  many: {experiment: {partition: {public: 0.3}}}
rows:
  Everything: Centralized
  FedAvg: LogitAvg
  AdaFD: {algorithm: {name: AdaFD, weighting: {name: ENWC, beta: 5}}}
columns:
  global: {heading: all (240)}
  books: {shows: [[test/books, f1]]}
  toys: {shows: [[test/toys, accuracy], [test/toys, macro_f1]]}
values:
  few:
    Everything: [90.1, 91.2, 80.0/81.5]
    FedAvg: [70.0, 71.0, 60.5/61.5]
    AdaFD: [75.0, 70.5, 62.5/60.0]
  many:
    FedAvg: [72.0, 73.0, 62.5/63.5]
    AdaFD: [77.0, 72.5, 64.5/62.0]
"""


def tiny_source(reviews: Path, text: str = TINY) -> Source:
    """The table as a file says it."""
    return Source(text.replace("REVIEWS", str(reviews)), "tiny.yaml")


def tiny_grid(reviews: Path, out: Path, *overrides: str, text: str = TINY, **options: object) -> Grid:
    """The table at scale small."""
    return plan_grid(tiny_source(reviews, text), "small", out, overrides, **options)  # type: ignore[arg-type]
