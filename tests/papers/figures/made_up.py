"""Kept lines of a recipe with made-up numbers: what `reproduce --keep` would write, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.config.source import Source
from fedstill.papers.evidence import fingerprint
from fedstill.papers.grid import cell_names, cell_run
from fedstill.papers.recipe import read_recipe, recipe_path

CLIENTS = ("automotive", "baby", "health", "sport")


def write_lines(
    folder: Path, recipe: str, seeds: int = 2, only: Sequence[str] = (), rounds: int = 4, scale: str = "small"
) -> Path:
    """Lines of the groups, rows and columns of a scale (of those named in `only`, if any are)."""
    path = recipe_path(recipe)
    assert path is not None
    source = Source.read(path)
    table = read_recipe(source)
    sizes = table.scales[scale]
    chosen = {*(sizes.groups or table.groups), *(sizes.rows or table.rows), *(sizes.columns or table.columns)}
    lines = []
    for place, (name, (group, row, columns)) in enumerate(cell_names(table, scale).items()):
        named = [each for each in (group, row) if each]
        filled = [column for column in columns if column in chosen]
        if not filled or not chosen.issuperset(named) or (only and not set(only).issuperset(named)):
            continue
        planned = cell_run(source, table, scale, (group, row, filled), Path())
        for seed in range(seeds):
            metrics = sorted({metric for column in table.columns.values() for _, metric in column.shows})
            lines.append(_line(name, group, row, filled, seed, place, metrics, rounds) | {"scale": scale})
            lines[-1]["experiment"] = fingerprint(planned.experiment)
    file = folder / f"{recipe}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def score_of(place: int, seed: int, number: int) -> float:
    """The made-up score of a cell after a round."""
    return 0.4 + 0.01 * (place % 23) + 0.02 * seed + 0.3 * (1 - 0.6**number)


def _line(
    name: str, group: str, row: str, columns: Sequence[str], seed: int, place: int, metrics: Sequence[str], rounds: int
) -> dict[str, Any]:
    by_round = {number: score_of(place, seed, number) for number in range(1, rounds + 1)}
    last = dict.fromkeys(metrics, by_round[rounds])
    leaning = [1 + (place % 5) * (client == "health") for client in CLIENTS]
    weights = {client: lean / sum(leaning) for client, lean in zip(CLIENTS, leaning, strict=True)}
    curves = {split: dict.fromkeys(metrics, by_round) for split in ("test", "clients", "tasks")}
    return {
        "group": group,
        "row": row,
        "columns": list(columns),
        "name": name,
        "seed": seed,
        "commit": "0",
        "device": "none",
        "method": row,
        "algorithm": "AdaFD",
        "role": "method",
        "labels": ["bad", "good"],
        "metrics": list(metrics),
        "server": {"test": last, "tasks": last},
        "clients": {client: {f"test/{client}": last} for client in CLIENTS},
        "by_round": curves,
        "origin": "",
        "weights": dict.fromkeys(by_round, weights),
        "losses": {number: {client: 1 / number + 0.1 * len(client) for client in CLIENTS} for number in by_round},
        "sampling": {
            who: {step: 3 - 0.1 * step + 0.1 * place for step in (0, 5, 10)} for who in ("teacher", "student")
        },
        "sent": {},
        "setting": "made up",
        "bytes": {"up": 1000 * (place + 1), "down": 3000},
        "seconds": 1.0,
        "notes": [],
        "test": "0",
    }
