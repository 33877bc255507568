from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill import Experiment

COMPARED = ["metrics.jsonl", "ledger.jsonl", "predictions/*", "models/*/*.safetensors"]


@pytest.fixture
def small(reviews: Path) -> Callable[..., Experiment]:
    """A federation of three small clients that runs in seconds."""

    def make(**changes: Any) -> Experiment:
        settings: dict[str, Any] = {
            "name": "small",
            "corpus": {"path": str(reviews), "text": ["title", "body"], "label": "stars", "domain": "shop"},
            "clients": ["bow", "textcnn", "bow"],
            "server": {"name": "textcnn", "tokenizer": "bert-tiny"},
            "train": {"epochs": 2, "max_length": 16},
            "rounds": 3,
            "workers": 1,
        }
        return Experiment.model_validate(settings | changes)

    return make


def content(run: Path) -> dict[str, bytes]:
    """Everything of a record that must be the same for the same experiment."""
    return {str(file.relative_to(run)): file.read_bytes() for pattern in COMPARED for file in sorted(run.glob(pattern))}
