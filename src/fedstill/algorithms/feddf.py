"""FedDF: averages by architecture, each refined by an ensemble of all received models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithms.averaging import Averaging, Limit
from fedstill.algorithms.base import Algorithm, Answers, Federation, Positive, Role
from fedstill.learning.losses import ce, kl
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Hello, Message, Parameters
from fedstill.wire.replies import Replies, uniform


@dataclass(frozen=True)
class FedDF(Averaging, Algorithm):
    """For every architecture: theta = sum_k (n_k/n) theta^k, then KL(s(mean_k z^k) || f) with all received models.

    The server computes the teachers' logits itself, so the public set does not travel. Its phase has a cosine schedule;
    `rate` is 1e-3, as in the paper, for models trained from scratch, and their family's default for pretrained ones,
    which 1e-3 would destroy. Where the server keeps labelled rows, the epoch with the smallest loss on them is
    kept (the plain average counts as one), and `patience` epochs without a smaller loss end the phase.
    `reading: released` does as FedID's code: teachers weigh n_k/n, the server's phase has the experiment's schedule
    and rate for every model, and nothing is chosen on labelled rows. `weights: uniform` counts clients the same.
    """

    reading: Literal["paper", "released"] = "paper"
    rate: Positive | None = None
    patience: Annotated[int, Field(ge=1)] = 2

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    messages: ClassVar[tuple[type[Message], ...]] = (Parameters, Limit, Done)
    paper: ClassVar[str] = "FedDF (Lin 2020), as in FedID"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "P(K+1)"

    def start(self, fed: Federation) -> Mapping[str, Message]:
        me = fed.server
        for architecture in _groups(fed.clients):
            if architecture != me.model.architecture:
                me.memory.mappings[_slot(architecture)] = me.model_from(None, architecture).parameters()
        return self._answers(me, fed.clients)

    def round(self, fed: Federation, answer: Answers) -> Answers:
        self.even_out(fed)
        return super().round(fed, answer)

    def digest(self, me: Client, answer: Parameters) -> None:
        me.set_parameters(answer.parameters)

    def opine(self, me: Client) -> Parameters:
        me.train(self.rows(me))
        return Parameters(me.parameters())

    def server(self, me: Server, ups: Replies[Parameters]) -> Mapping[str, Message]:
        active = {name: ups.clients[name] for name in ups}
        logits = [me.model_from(ups[name].parameters, hello.architecture).predict() for name, hello in active.items()]
        ensemble = self._ensemble(torch.stack(logits), ups)
        groups: dict[str, list[str]] = {me.model.architecture: []} | _groups(active)
        for architecture, names in groups.items():
            own = ups.only(names)
            student: Party = me if architecture == me.model.architecture else me.model_from(None, architecture)
            if names:  # perhaps no active client has the server's architecture
                student.set_parameters(own.average("parameters", self.shares(own)))
            self._refine(student, ensemble)
            if student is not me:
                me.memory.mappings[_slot(architecture)] = student.parameters()
        return self._answers(me, ups.clients)

    @property
    def blends_raw_logits(self) -> bool:
        """The mean of the clients' logits is what is distilled."""
        return True

    def _ensemble(self, logits: Tensor, ups: Replies[Parameters]) -> Tensor:
        """The teacher [N, C] of all received models' logits [K, N, C]."""
        if self.reading == "paper" and ups.blending.is_mean:
            return logits.mean(0)
        return ups.blended(logits, uniform(len(ups)) if self.reading == "paper" else self.shares(ups))

    def _refine(self, student: Party, ensemble: Tensor) -> None:
        if self.reading == "released":
            given = {} if self.rate is None else {"rate": self.rate}
            student.distill(ensemble, kl, settings=student.spec.distill.model_copy(update=given))
            return
        scratch_rate = 1e-3 if student.spec.model.is_small else None
        changes = {"schedule": "cosine", "rate": self.rate or student.spec.distill.rate or scratch_rate}
        settings = student.spec.distill.model_copy(update=changes)
        best = _Best(student, self.patience) if len(student.data.labelled) else None
        student.distill(ensemble, kl, settings=settings, until=best)
        if best is not None:
            student.set_parameters(best.parameters)

    @property
    def title(self) -> str:
        """Says `as released` where it is."""
        return super().title if self.reading == "paper" else f"{super().title} as released"

    def _answers(self, me: Server, clients: Mapping[str, Hello]) -> dict[str, Message]:
        """For every client, active or not, the model of its architecture."""
        answers: dict[str, Message] = {}
        for architecture, names in _groups(clients).items():
            is_own = architecture == me.model.architecture
            own = me.parameters() if is_own else me.memory.mappings[_slot(architecture)]
            answers |= dict.fromkeys(names, Parameters(own))
        return answers


class _Best:
    """The parameters with the smallest loss on the labelled rows so far."""

    def __init__(self, party: Party, patience: int) -> None:
        self.party, self.patience = party, patience
        self.loss, self.waited = math.inf, 0
        self()

    def __call__(self) -> bool:
        """Whether `patience` epochs have passed without a smaller loss."""
        data = self.party.labelled_rows()
        loss = float(ce(self.party.predict(data), data.labels).mean())
        self.waited += 1
        if loss < self.loss:
            self.loss, self.waited, self.parameters = loss, 0, self.party.parameters()
        return self.waited >= self.patience


def _groups(clients: Mapping[str, Hello]) -> dict[str, list[str]]:
    """Clients by architecture."""
    groups: dict[str, list[str]] = {}
    for name, hello in clients.items():
        groups.setdefault(hello.architecture, []).append(name)
    return groups


def _slot(architecture: str) -> str:
    """The memory's name for the model of an architecture that is not the server's."""
    return f"model of {architecture.replace('/', ' ')}"
