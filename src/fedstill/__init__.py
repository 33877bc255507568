"""Federated distillation for text: organisations with different models teach each other without moving their data."""

from fedstill.algorithms.base import Algorithm, Federation
from fedstill.algorithms.weightings import Weighting
from fedstill.config import Experiment, load_experiment
from fedstill.errors import FedstillError
from fedstill.models import load as load_model
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.results.record import Record
from fedstill.runner import resume, run
from fedstill.wire.messages import Answer, Message, Opinion
from fedstill.wire.replies import Replies

__version__ = "0.1.0"

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
