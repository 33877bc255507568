"""A short rehearsal: two sites, two rounds, real processes and real TLS; the numbers are the simulation's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "AdaFD", "clients": ["bert-tiny", "textcnn", "bow"]},
        {"algorithm": "FedAvg"},
        {"algorithm": "FedID", "partition": {"public": 0.3, "labelled_public": 0.3}},
    ],
    ids=["AdaFD", "FedAvg", "FedID"],
)
def test_three_sites_give_the_simulations_numbers(tmp_path: Path, reviews: Path, changes: dict[str, Any]) -> None:
    experiment = three_shops(reviews, **changes)
    with rehearsing(experiment, tmp_path / "rehearsal", lambda line: None) as rehearsal:
        record = rehearsal.submit(lambda line: None)
        kits = {name: daemon.kit for name, daemon in rehearsal.sites.items()}
    simulated = alone(experiment, tmp_path / "simulated")
    assert differences(record, simulated) == []
    assert server_model(record) == server_model(simulated)
    for name, kit in kits.items():  # a site's model stays at the site
        own = next((kit / "runs").glob(f"*/models/{name}/model.safetensors"))
        assert own.read_bytes() == (simulated.model_folder(name) / "model.safetensors").read_bytes()
        assert not record.model_folder(name).exists()
