from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedstill import Experiment, FedstillError, resume, run
from fedstill.engines.local import LocalEngine
from fedstill.engines.table import ENGINES, EngineEntry

Small = Callable[..., Experiment]


def test_a_name_that_no_engine_has_is_refused_before_anything_is_written(small: Small, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match=r"engine: there is no engine 'lokal'; did you mean 'local'\?"):
        run(small(engine="lokal"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_engine_is_one_entry(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Pigeon(LocalEngine):
        def close(self) -> None:
            made.append("flown")
            super().close()

    cages: list[type[Pigeon]] = []
    entry = EngineEntry(lambda: next(iter(cages), None), "get a cage.", "{folder} needs a cage.")
    monkeypatch.setitem(ENGINES, "pigeon", entry)
    with pytest.raises(FedstillError, match="get a cage"):
        run(small(engine="pigeon"), tmp_path / "run")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "experiment.yaml").write_text(small(engine="pigeon").to_yaml())
    with pytest.raises(FedstillError, match="begun needs a cage"):
        resume(tmp_path / "begun")
    cages.append(Pigeon)
    assert run(small(engine="pigeon", rounds=1, clients="bow"), tmp_path / "run").summary["engine"] == "pigeon"
    assert made == ["flown"]
