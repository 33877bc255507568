"""Masked runs: the same results as unmasked ones, on every engine, also when a client is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedstill import Experiment, FedstillError, Record, resume, run
from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.logit_avg import LogitAvg
from fedstill.config.specs import WireSpec
from fedstill.engines.host import Host
from fedstill.wire.masks import MaskSpec
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies
from tests.conftest import write_reviews
from tests.engines.conftest import content
from tests.engines.test_blends import quick
from tests.engines.test_resume import stop_after

pytest.importorskip("cryptography")

Small = Callable[..., Experiment]

FIVE = {"kind": "iid", "clients": 5, "public": 0.2}
LOSE_ONE = {"quorum": 0.6, "faults": [{"kind": "drop", "share": 0.2}], "partition": FIVE}
EQUAL = {"name": "AdaFD", "weighting": "Uniform"}


def masked(experiment: Experiment) -> Experiment:
    return experiment.model_copy(update={"wire": WireSpec(mask=MaskSpec())})


def predicted(record: Record) -> torch.Tensor:
    return load_file(record.folder / "predictions" / "server.safetensors")["logits"]


def ledger(record: Record, verb: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (record.folder / "ledger.jsonl").read_text().splitlines())
    return [line for line in lines if line["verb"] == verb]


def both(experiment: Experiment, folder: Path) -> tuple[Record, Record]:
    plain = experiment.model_copy(update={"blend": "mean"})
    return run(plain, folder / "open"), run(masked(plain), folder / "masked")


@pytest.mark.parametrize(
    "algorithm",
    ["LogitAvg", "FedAvg", EQUAL, {"name": "DSFL", "weights": "size"}, {"name": "FedOpt", "weights": "uniform"}],
    ids=str,
)
def test_a_masked_run_is_the_unmasked_one_up_to_rounding(small: Small, tmp_path: Path, algorithm: Any) -> None:
    chosen = quick(small, algorithm=algorithm, partition=FIVE)
    before, after = both(chosen, tmp_path)
    torch.testing.assert_close(predicted(after), predicted(before), rtol=1e-4, atol=1e-4)
    assert not ledger(after, "reveal")


def test_masks_cost_few_bytes_in_the_ledger(tmp_path: Path) -> None:
    reviews = write_reviews(tmp_path / "reviews.csv", rows=900)
    corpus = {"path": str(reviews), "text": ["title", "body"], "label": "stars"}
    train = {"epochs": 1, "max_length": 16, "rows": 20}
    chosen = Experiment.model_validate(
        {"corpus": corpus, "clients": "bow", "server": "bow", "train": train, "partition": FIVE | {"public": 0.6}}
        | {"algorithm": "LogitAvg", "rounds": 1, "workers": 1, "client_tests": "own"}
    )
    before, after = both(chosen, tmp_path)
    (was,), (now,) = (line_of(record) for record in (before, after))
    assert (was["message"], now["message"]) == ("Opinion", "MaskedOpinion")
    assert now["payload"] == was["payload"] + 5 * 4  # the weight
    assert now["encoded"] == now["bytes"] <= 1.2 * was["encoded"]
    assert sum(after.summary["bytes"].values()) <= 1.2 * sum(before.summary["bytes"].values())


def line_of(record: Record) -> list[dict[str, Any]]:
    return [line for line in ledger(record, "turn") if line["direction"] == "up"]


@pytest.mark.parametrize("algorithm", ["FedAvg", "LogitAvg"])
def test_one_lost_of_five_is_recovered(small: Small, tmp_path: Path, algorithm: str) -> None:
    before, after = both(quick(small, algorithm=algorithm, **LOSE_ONE), tmp_path)
    torch.testing.assert_close(predicted(after), predicted(before), rtol=1e-4, atol=1e-4)
    asked = [line for line in ledger(after, "reveal") if line["direction"] == "up"]
    assert [(line["messages"], line["message"]) for line in asked] == [(4, "Seeds")] * 2


def test_a_client_that_is_lost_while_it_should_reveal_is_left_out_too(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, gone = Host.call, []

    def fail(self: Host, name: str, raw: bytes) -> bytes:
        if b'"verb\\": \\"reveal' in raw and name not in gone and not gone:
            gone.append(name)
            raise FedstillError("it has gone.")
        return real(self, name, raw)

    monkeypatch.setattr(Host, "call", fail)
    record = run(masked(quick(small, algorithm="LogitAvg", rounds=1, **LOSE_ONE)), tmp_path / "run")
    assert len(gone) == 1
    lines = [line for line in ledger(record, "reveal") if line["direction"] == "up"]
    assert sum(line["messages"] for line in lines) == 3 + 3
    assert predicted(record).abs().max() < 100  # what masks would leave is in the hundreds on opinions


def test_too_many_lost_ones_end_the_run_in_a_sentence(small: Small, tmp_path: Path) -> None:
    most = LOSE_ONE | {"quorum": 0.0, "faults": [{"kind": "drop", "share": 0.8}]}
    with pytest.raises(FedstillError, match="the sum would show a single reply"):
        run(masked(quick(small, algorithm="LogitAvg", rounds=1, **most)), tmp_path / "run")


def test_workers_and_interruptions_change_no_byte(small: Small, tmp_path: Path) -> None:
    chosen = masked(quick(small, algorithm="LogitAvg", rounds=2, **LOSE_ONE))
    whole = content(run(chosen, tmp_path / "whole").folder)
    spread = run(chosen.model_copy(update={"workers": 2}), tmp_path / "spread")
    assert content(spread.folder) == whole
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "run", tell=stop_after(1))
    assert content(resume(tmp_path / "run").folder) == whole


def test_clients_weigh_by_rows_below_the_limit_to_shares(small: Small, tmp_path: Path) -> None:
    uneven = {"kind": "dirichlet", "clients": 4, "alpha": 0.3, "public": 0.2}
    before, after = both(quick(small, algorithm="FedAvg", partition=uneven, max_share=0.3, rounds=1), tmp_path)
    torch.testing.assert_close(predicted(after), predicted(before), rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class Peeping(LogitAvg):
    """Says that it needs the sum, and looks at one."""

    def server(self, me: Any, ups: Replies[Opinion]) -> Answer:
        return Answer(next(iter(ups.values())).logits)


def test_a_method_that_looks_at_one_reply_is_stopped(small: Small, tmp_path: Path) -> None:
    chosen = masked(quick(small, algorithm=f"{__file__}:Peeping", rounds=1))
    with pytest.raises(FedstillError, match="only their weighted sum is known"):
        run(chosen, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "AdaFD"}, "AdaFD looks at single replies.*AdaFD with `weighting: Uniform`"),
        ({"algorithm": EQUAL | {"per_sample": True}}, "looks at single replies"),
        ({"algorithm": "FedID"}, "FedID looks at single replies"),
        ({"algorithm": "Cronus"}, "looks at single replies"),
        ({"algorithm": "FedDF"}, "looks at single replies"),
        ({"algorithm": "FedAUX"}, "looks at single replies"),
        ({"algorithm": "MHAT"}, "looks at single replies"),
        ({"algorithm": {"name": "FedAvg", "balance": True}}, "`balance` weighs"),
        ({"algorithm": "LogitAvg", "blend": "median"}, "a robust blend compares single replies"),
        ({"algorithm": "LogitAvg", "wire": {"mask": True, "opinions": "int8"}}, "cannot be shrunk"),
        ({"algorithm": "LogitAvg", "faults": [{"kind": "lma"}]}, "lma changes a single reply"),
    ],
)
def test_what_needs_single_replies_is_refused_before_anything_runs(
    small: Small, changes: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(FedstillError, match=reason):
        quick(small, **({"wire": {"mask": True}} | dict(changes)))


def test_own_methods_are_refused_unless_they_say_how_clients_weigh() -> None:
    with pytest.raises(FedstillError, match="looks at single replies"):
        Algorithm().masked_weights()


def test_a_missing_package_is_named_before_anything_runs(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstill.wire.masks.find_spec", lambda name: None)
    with pytest.raises(FedstillError, match=r'pip install "fedstill\[privacy\]"'):
        run(masked(quick(small, algorithm="LogitAvg", rounds=1)), tmp_path / "run")
