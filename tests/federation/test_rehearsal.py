"""A short rehearsal: two sites, two rounds, real processes and real TLS; the numbers are the simulation's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.federation.rehearsal import rehearsing
from tests.federation.stage import alone, differences, server_model, three_shops

pytestmark = pytest.mark.xdist_group("federation")


def test_two_sites_give_the_simulations_numbers_and_leave_nothing_behind(tmp_path: Path, reviews: Path) -> None:
    text = [line for line in reviews.read_text().splitlines() if not line.endswith(",toys")]
    reviews.write_text("\n".join(text) + "\n")
    experiment = three_shops(reviews)
    said: list[str] = []
    with rehearsing(experiment, tmp_path / "rehearsal", said.append) as rehearsal:
        record = rehearsal.submit(said.append)
        daemons = [rehearsal.server, *rehearsal.sites.values()]
    assert not any(daemon.is_alive for daemon in daemons)
    simulated = alone(experiment, tmp_path / "simulated")
    assert differences(record, simulated) == []
    assert {(line["round"], line["party"]) for line in record.metrics} >= {(2, "server"), (2, "books"), (2, "garden")}
    assert server_model(record) == server_model(simulated)
    assert any("round 2/2: server F1" in line for line in said)
