"""A run that was stopped in its second round."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fedstill
from fedstill import Experiment
from fedstill.common.events import Event, RoundDone, Tell
from tests.conftest import write_reviews


def shops(folder: Path) -> Experiment:
    """A federation of three shops that runs in a second or two."""
    settings = {
        "name": "shops",
        "corpus": {"path": str(folder / "reviews.csv"), "text": "body", "label": "stars", "domain": "shop"},
        "partition": {"kind": "domain", "public": 0.2, "test": 0.2, "validation": 0.1},
        "clients": "bow",
        "server": "bow",
        "train": {"epochs": 1, "batch": 8, "max_length": 16},
        "rounds": 3,
        "workers": 1,
    }
    return Experiment.model_validate(settings)


def after_round(number: int, act: Callable[[], object]) -> Tell:
    """Does something when a round is over."""

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == number:
            act()

    return tell


def interrupt() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first round, which no test changes."""
    folder = tmp_path_factory.mktemp("watch")
    write_reviews(folder / "reviews.csv")
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(shops(folder), folder / "run", tell=after_round(1, interrupt))
    return folder / "run"


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, and go on with."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))
