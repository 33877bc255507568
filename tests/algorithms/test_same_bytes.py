"""The same experiment, the same bytes: with other workers, and after an interruption."""

import pytest

import fedstill
from tests.algorithms.test_fedaux import SOME as FEDAUX
from tests.algorithms.test_fedmd import SOME as FEDMD
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after, stop_in

LABELLED = {"partition": {"kind": "domain", "public": 0.3, "labelled_public": 0.2}}
# Two of three clients a round: somebody digests an answer that it had no part in.
ABSENT = {"rounds": 3, "participation": 0.67}
CRONUS = {"algorithm": "Cronus", **ABSENT}

METHODS = {"Cronus": CRONUS, "FedMD": FEDMD} | {
    name: {"algorithm": name, **LABELLED} for name in ("FedAvg", "FedDF", "FedED", "FedID")
}
METHODS["FedID w/ rehearsal"] = {"algorithm": {"name": "FedID", "rehearsal": 1}, "rounds": 3, **LABELLED}
METHODS["FedID as released"] = {"algorithm": {"name": "FedID", "reading": "released"}, "rounds": 3, **LABELLED}
METHODS |= {name: {"algorithm": name, **ABSENT} for name in ("FedGKD", "FedHe", "FD", "FedOpt", "CFD", "MutualKD")}
METHODS |= {"FedAUX": FEDAUX, "CFD with everybody": {"algorithm": "CFD", "rounds": 3}}


@pytest.fixture
def whole(experiment, tmp_path):
    """The bytes of an uninterrupted run."""

    def run(method):
        record = fedstill.run(experiment(**METHODS[method]), tmp_path / "whole")
        written = content(record.folder)
        models = 3 + ("server" in record.summary["scores"])
        assert len(written) == 2 + models + models
        return written

    return run


def quick(names, few):
    """All of them, of which a few are run by `make test` already."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("method", quick(METHODS, ("FedAvg", "CFD", "FedID w/ rehearsal")))
def test_two_workers_give_the_same_bytes(experiment, whole, tmp_path, method):
    two = fedstill.run(experiment(**METHODS[method], workers=2), tmp_path / "run")
    assert content(two.folder) == whole(method)


INTERRUPTED = [
    "Cronus",
    "FedMD",
    "FedID w/ rehearsal",
    "FedID as released",
    "FedHe",
    "FedOpt",
    "CFD",
    "CFD with everybody",
    "MutualKD",
]


@pytest.mark.parametrize("stop", [stop_in(1), stop_after(1), stop_in(2), stop_after(2), stop_after(3)])
@pytest.mark.parametrize("method", quick(INTERRUPTED, ("FedHe", "CFD", "MutualKD")))
def test_an_interrupted_run_ends_as_it_would_have(experiment, whole, tmp_path, method, stop):
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(experiment(**METHODS[method]), tmp_path / "run", tell=stop)
    assert content(fedstill.resume(tmp_path / "run").folder) == whole(method)
