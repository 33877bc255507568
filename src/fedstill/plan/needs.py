"""What a method needs, checked in one place before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.common.words import listed
from fedstill.config.experiment import Experiment
from fedstill.parties.party import PartySpec
from fedstill.parties.server import Server
from fedstill.plan.agreement import check_messages, owed
from fedstill.plan.plan import Plan
from fedstill.wire.messages import Done, Opinion, Scores

KNOWN_NEEDS = {"public", "labelled", "label_counts", "parameters", "pooled", "openai"}


def check_needs(algorithm: Algorithm, public: int, labelled: int, advice: Mapping[str, str]) -> None:
    """Refuse a method that lacks rows or messages; `advice` says how the user provides `public` or `labelled` ones."""
    check_messages(algorithm)
    name, needs = type(algorithm).__name__, algorithm.requires()
    if "public" in needs and not public:
        raise FedstillError(f"{name} needs public samples: {advice['public']}.")
    if unknown := needs - KNOWN_NEEDS:
        raise FedstillError(f"{name} needs {', '.join(sorted(unknown))}, which no engine can give.")
    if "labelled" in needs and not labelled:
        raise FedstillError(f"{algorithm.title} needs labelled rows at the server: {advice['labelled']}.")


def check_chat(algorithm: Algorithm) -> None:
    """Refuse a method whose server talks to a language model if the package for that is not installed."""
    if "openai" in algorithm.requires() and find_spec("openai") is None:
        raise FedstillError(f'{algorithm.title} talks to a language model: run `pip install "fedstill[llm]"` first.')


def check_privacy(experiment: Experiment, clients: Mapping[str, PartySpec], public: int) -> None:
    """Refuse what would tell more about private rows than the experiment's `privacy` counts."""
    settings, method = experiment.privacy, experiment.method
    if settings is None:
        return
    if find_spec("opacus") is None:
        raise FedstillError('privacy: epsilon is counted by Opacus: run `pip install "fedstill[privacy]"` first.')
    clause = method.leaks() if settings.is_learning else None
    if "label_counts" in method.requires():
        clause = "needs the clients' label counts"
    elif "pooled" in method.requires():
        clause = "pools all rows"
    elif not settings.is_learning and not issubclass(owed(method, "turn")[0], Opinion | Scores | Done):
        clause = f"sends more than opinions, which is all that {settings.kind} cover"
    elif any(spec.train.class_weights == "balanced" for spec in clients.values()):
        clause = "weighs classes by their numbers of rows (train.class_weights)"
    elif any(spec.train.rows is not None for spec in clients.values()):
        clause = "draws some rows for every round (train.rows)"
    if clause is not None:
        raise FedstillError(f"privacy: {method.title} {clause}, which epsilon does not count; leave out one of them.")
    if settings.kind == "head" and not public:
        raise FedstillError(
            "privacy: a private head teaches the model on public samples: set partition.public above 0."
        )


def check_models(algorithm: Algorithm, plan: Plan) -> None:
    """Refuse models that the method cannot work with, before anybody trains."""
    if not algorithm.has_server_model:
        return
    server = plan.make_server(tell_nobody)
    algorithm.admit(server)
    if "parameters" in algorithm.requires():
        kinds = {name: plan.make_client(name, tell_nobody).kind.architecture for name in plan.clients}
        same_architecture(algorithm, server, kinds)


def same_architecture(algorithm: Algorithm, server: Server, architectures: Mapping[str, str]) -> None:
    """Refuse clients whose architecture is not the server's: their parameters cannot be averaged."""
    if others := [name for name, own in architectures.items() if own != server.model.architecture]:
        raise FedstillError(
            f"{algorithm.title} exchanges parameters, so everybody needs the server's architecture "
            f"({server.spec.model}): {listed(others)} {'has' if len(others) == 1 else 'have'} another. Give all the "
            f"same model{_of_adapters(server)}, or use a method that exchanges predictions (AdaFD, FedID) or averages "
            "by architecture (FedDF)."
        )


def _of_adapters(server: Server) -> str:
    return "" if server.spec.model.lora is None else " with the same rank, alpha and targets of its adapters"
