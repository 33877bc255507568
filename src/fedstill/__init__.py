"""Federated distillation for text: organisations with different models teach each other without moving their data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedstill.common.version import VERSION

if TYPE_CHECKING:
    from fedstill.algorithms.adafd import AdaFD
    from fedstill.algorithms.base import Algorithm, Answers, Federation
    from fedstill.algorithms.centralized import Centralized
    from fedstill.algorithms.cfd import CFD
    from fedstill.algorithms.cronus import Cronus
    from fedstill.algorithms.dsfl import DSFL
    from fedstill.algorithms.fd import FD
    from fedstill.algorithms.fedaux import FedAUX
    from fedstill.algorithms.fedavg import FedAvg
    from fedstill.algorithms.feddf import FedDF
    from fedstill.algorithms.feddrs import FedDRS
    from fedstill.algorithms.feded import FedED
    from fedstill.algorithms.fedgkd import FedGKD
    from fedstill.algorithms.fedhe import FedHe
    from fedstill.algorithms.fedid import FedID
    from fedstill.algorithms.fedkd import FedKD
    from fedstill.algorithms.fedmd import FedMD
    from fedstill.algorithms.fedopt import FedOpt
    from fedstill.algorithms.fedsnd import FedSND
    from fedstill.algorithms.local import Local
    from fedstill.algorithms.logit_avg import LogitAvg
    from fedstill.algorithms.mhat import MHAT
    from fedstill.algorithms.mutual_kd import MutualKD
    from fedstill.algorithms.weightings import ENWC, LLMWC, RNWC, Uniform, Weighting
    from fedstill.api.classifier import FederatedClassifier
    from fedstill.api.reading import compare, predict
    from fedstill.api.running import resume, run
    from fedstill.common.errors import FedstillError
    from fedstill.common.rows import Rows
    from fedstill.config.experiment import Experiment, load_experiment
    from fedstill.models.build import load as load_model
    from fedstill.models.labelling import Predictions
    from fedstill.models.model import Model
    from fedstill.parties.client import Client
    from fedstill.parties.server import Server
    from fedstill.results.compare import Comparison
    from fedstill.results.record import Record
    from fedstill.wire.messages import Answer, Done, Message, Opinion, Scores, array
    from fedstill.wire.replies import Replies

__version__ = VERSION

__all__ = [
    "CFD",
    "DSFL",
    "ENWC",
    "FD",
    "LLMWC",
    "MHAT",
    "RNWC",
    "AdaFD",
    "Algorithm",
    "Answer",
    "Answers",
    "Centralized",
    "Client",
    "Comparison",
    "Cronus",
    "Done",
    "Experiment",
    "FedAUX",
    "FedAvg",
    "FedDF",
    "FedDRS",
    "FedED",
    "FedGKD",
    "FedHe",
    "FedID",
    "FedKD",
    "FedMD",
    "FedOpt",
    "FedSND",
    "FederatedClassifier",
    "Federation",
    "FedstillError",
    "Local",
    "LogitAvg",
    "Message",
    "Model",
    "MutualKD",
    "Opinion",
    "Predictions",
    "Record",
    "Replies",
    "Rows",
    "Scores",
    "Server",
    "Uniform",
    "Weighting",
    "array",
    "compare",
    "load_experiment",
    "load_model",
    "predict",
    "resume",
    "run",
]

_HOMES = {
    "algorithms.adafd": ("AdaFD",),
    "algorithms.base": ("Algorithm", "Answers", "Federation"),
    "algorithms.centralized": ("Centralized",),
    "algorithms.cfd": ("CFD",),
    "algorithms.cronus": ("Cronus",),
    "algorithms.dsfl": ("DSFL",),
    "algorithms.fd": ("FD",),
    "algorithms.fedaux": ("FedAUX",),
    "algorithms.fedavg": ("FedAvg",),
    "algorithms.feddf": ("FedDF",),
    "algorithms.feddrs": ("FedDRS",),
    "algorithms.feded": ("FedED",),
    "algorithms.fedgkd": ("FedGKD",),
    "algorithms.fedhe": ("FedHe",),
    "algorithms.fedid": ("FedID",),
    "algorithms.fedkd": ("FedKD",),
    "algorithms.fedmd": ("FedMD",),
    "algorithms.fedopt": ("FedOpt",),
    "algorithms.fedsnd": ("FedSND",),
    "algorithms.local": ("Local",),
    "algorithms.logit_avg": ("LogitAvg",),
    "algorithms.mhat": ("MHAT",),
    "algorithms.mutual_kd": ("MutualKD",),
    "algorithms.weightings": ("ENWC", "LLMWC", "RNWC", "Uniform", "Weighting"),
    "api.classifier": ("FederatedClassifier",),
    "api.reading": ("compare", "predict"),
    "api.running": ("resume", "run"),
    "common.errors": ("FedstillError",),
    "common.rows": ("Rows",),
    "config.experiment": ("Experiment", "load_experiment"),
    "models.build": ("load_model",),
    "models.model": ("Model",),
    "models.labelling": ("Predictions",),
    "parties.client": ("Client",),
    "parties.server": ("Server",),
    "results.compare": ("Comparison",),
    "results.record": ("Record",),
    "wire.messages": ("Answer", "Done", "Message", "Opinion", "Scores", "array"),
    "wire.replies": ("Replies",),
}
"""The module of every name: each is imported when it is first used, so that `import fedstill` takes no time."""
_RENAMED = {"load_model": "load"}


if not TYPE_CHECKING:  # type checkers see the imports above, and so every name that is wrong

    def __getattr__(name: str) -> Any:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{home}"), _RENAMED.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
