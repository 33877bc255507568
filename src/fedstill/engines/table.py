"""Engines by name: how one is made in this process, and what the user can do where that is impossible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.engines import ranks
from fedstill.engines.books import Books
from fedstill.engines.engine import Engine
from fedstill.engines.local import LocalEngine
from fedstill.engines.torchrun import TorchrunEngine
from fedstill.plan.plan import Plan

MakeEngine = Callable[[Plan, Books], Engine]


@dataclass(frozen=True)
class EngineEntry:
    """How an engine is made, and what the user can do where it cannot be."""

    maker: Callable[[], MakeEngine | None]
    """Returns how the engine is made in this process, or None if it cannot be."""
    to_begin: str = ""
    """What the user can do then to begin a run."""
    to_go_on: str = ""
    """What the user can do then to go on with the run in `{folder}`."""


def ranks_at_work(engine: str) -> int:
    """How many ranks host the clients; 0 where workers do, as under a single rank unless `engine: torchrun`."""
    count = 0 if ranks.current is None else ranks.current.place.ranks
    return 0 if count == 1 and engine == "local" else count


def _local() -> MakeEngine | None:
    return _torchrun() if ranks_at_work("local") else LocalEngine


def _torchrun() -> MakeEngine | None:
    return None if ranks.current is None else partial(TorchrunEngine, first=ranks.current)


ENGINES = {
    "local": EngineEntry(_local),
    "torchrun": EngineEntry(
        _torchrun,
        "engine: torchrun needs ranks: start it as `torchrun --nproc-per-node 2 -m fedstill run ...`. With "
        "engine=local it runs in processes of this machine; the numbers are the same.",
        "{folder} was begun with `engine: torchrun`: go on with `torchrun --nproc-per-node 2 -m fedstill run --resume "
        "{folder}`. With `engine: local` in its experiment.yaml it goes on in processes of this machine; the numbers "
        "are the same.",
    ),
    "flare": EngineEntry(
        lambda: None,
        "engine: flare is a federation of organisations: `fedstill federation submit` runs it, and `fedstill "
        "federation rehearse` tries it on one machine. With engine=local it is simulated; the numbers are the same.",
        "{folder} is the run of a federation: `fedstill federation submit` goes on with it at the centre.",
    ),
}


def check_name(engine: str) -> None:
    """Refuse a name that no engine has."""
    if engine not in ENGINES:
        raise FedstillError(f"engine: there is no engine {engine!r}; {nearest(engine, ENGINES)}")


def maker_of(engine: str, folder: Path | None = None) -> MakeEngine:
    """How the engine is made in this process, to begin a run or to go on with the one in a folder."""
    check_name(engine)
    entry = ENGINES[engine]
    if (maker := entry.maker()) is None:
        raise FedstillError(entry.to_begin if folder is None else entry.to_go_on.format(folder=folder))
    return maker
