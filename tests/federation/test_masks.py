"""Masks between real sites: keys of their own, the simulation's numbers, and a worker that dies on the way."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.federation.stage import alone, differences, server_model
from tests.federation.together import Deliver, Request, Together, two_shops, write_two_shops

pytest.importorskip("cryptography")

MASKED = {"algorithm": "LogitAvg", "rounds": 2, "quorum": 1.0, "wire": {"mask": True}}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Together]:
    made = Together(two_shops(write_two_shops(tmp_path / "reviews.csv"), **MASKED), tmp_path / "together")
    yield made
    made.close()


@pytest.mark.slow
def test_masked_sites_give_the_simulations_numbers_though_a_worker_dies(stage: Together, tmp_path: Path) -> None:
    killed: list[str] = []

    def transport(request: Request, deliver: Deliver) -> bytes:
        if request.what == "call" and request.round == 2 and request.is_new and not killed:
            worker = stage.sites[request.site].worker
            assert worker is not None
            worker.process.kill()
            killed.append(request.site)
        return deliver()

    stage.transport = transport
    record = stage.conduct()
    simulated = alone(two_shops(tmp_path / "reviews.csv", **MASKED), tmp_path / "alone")
    assert killed
    assert differences(record, simulated) == []
    assert server_model(record) == server_model(simulated)
    keys = sorted(tmp_path.glob("together/state/*/*/masks-*.key"))
    assert len({key.read_bytes() for key in keys}) == len(keys) == 2
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
    left = b"".join(raw for said in stage.said.values() for raw in said)
    assert not any(key.read_bytes() in left for key in keys)
    assert left.count(b"Opinion") == left.count(b"MaskedOpinion") > 0
