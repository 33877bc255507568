"""Federated distillation for text: organisations with different models teach each other without moving their data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedstill.common.errors import FedstillError
from fedstill.common.version import VERSION

if TYPE_CHECKING:
    from fedstill.algorithms.base import Algorithm, Federation
    from fedstill.algorithms.weightings import Weighting
    from fedstill.config.experiment import Experiment, load_experiment
    from fedstill.engines.runner import resume, run
    from fedstill.models import load as load_model
    from fedstill.parties.client import Client
    from fedstill.parties.server import Server
    from fedstill.results.record import Record
    from fedstill.wire.messages import Answer, Message, Opinion
    from fedstill.wire.replies import Replies

__version__ = VERSION

__all__ = [
    "Algorithm",
    "Answer",
    "Client",
    "Experiment",
    "Federation",
    "FedstillError",
    "Message",
    "Opinion",
    "Record",
    "Replies",
    "Server",
    "Weighting",
    "load_experiment",
    "load_model",
    "resume",
    "run",
]

_HOMES = {
    "fedstill.algorithms.base": ("Algorithm", "Federation"),
    "fedstill.algorithms.weightings": ("Weighting",),
    "fedstill.config.experiment": ("Experiment", "load_experiment"),
    "fedstill.engines.runner": ("resume", "run"),
    "fedstill.models": ("load_model",),
    "fedstill.parties.client": ("Client",),
    "fedstill.parties.server": ("Server",),
    "fedstill.results.record": ("Record",),
    "fedstill.wire.messages": ("Answer", "Message", "Opinion"),
    "fedstill.wire.replies": ("Replies",),
}
"""Where each name lives: it is imported when it is first used, so that `fedstill --help` need not wait for torch."""
_OTHERWISE = {"load_model": "load"}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), _OTHERWISE.get(name, name))
            return value
    raise AttributeError(f"module 'fedstill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
