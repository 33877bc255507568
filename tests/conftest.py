"""Small real data that every test can use: short reviews of three shops with words that tell the label."""

from __future__ import annotations

import csv
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedstill.common import plugins

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

GOOD = ["great", "lovely", "excellent", "perfect", "happy", "recommend"]
BAD = ["broken", "awful", "terrible", "refund", "useless", "angry"]
PLAIN = ["okay", "average", "acceptable", "ordinary", "usual", "medium"]
THINGS = {
    "books": ["novel", "chapter", "author"],
    "garden": ["shovel", "seeds", "hose"],
    "toys": ["doll", "puzzle", "robot"],
}


# Some virtual machines claim matrix instructions (AMX) that end the process when oneDNN uses them.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _alike() -> Iterator[None]:
    """Every test begins alike, whatever ran before it and however many cores there are."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore it
    yield
    plugins.allow_only(None)


def write_reviews(path: Path, rows: int = 240, seed: int = 0) -> Path:
    """A CSV with columns title, body, stars and shop."""
    random_ = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "body", "stars", "shop"])
        for number in range(rows):
            shop = sorted(THINGS)[number % 3]
            stars, words = random_.choice([("bad", BAD), ("good", GOOD), ("so-so", PLAIN)])
            body = " ".join([random_.choice(THINGS[shop]), *random_.sample(words, 2), f"order {number}"])
            writer.writerow([f"the {random_.choice(THINGS[shop])}", body, stars, shop])
    return path


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A file of 240 reviews in three shops."""
    return write_reviews(tmp_path / "reviews.csv")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real public data; a test that wants it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent")
    return SHARED
