"""Federated distillation for text: organisations with different models teach each other without moving their data."""

from fedstill.algorithms.base import Algorithm, Federation
from fedstill.algorithms.weightings import Weighting
from fedstill.common.errors import FedstillError
from fedstill.common.version import VERSION
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
