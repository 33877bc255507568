"""CFD: federated distillation in few bits; opinions are rounded, sent as differences, and entropy-coded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Federation, Role
from fedstill.common.errors import FedstillError
from fedstill.learning.losses import probability_ce
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.messages import BadMessage, Done, Message, Parameters, array
from fedstill.wire.quantise import dequantise, pack, quantise, unpack
from fedstill.wire.replies import Replies

Bits = Literal[1, 2, 3, 4, 5, 6, 7, 8, 32]


@dataclass(frozen=True)
class SoftLabels(Message):
    """Class probabilities of the public samples: codes, packed, or the numbers themselves where those are 32 bits."""

    round: int
    since: int = 0
    """The round whose codes the packed ones differ from; 0 where they stand for themselves."""
    codes: Tensor | None = array("bytes", optional=True)
    probabilities: Tensor | None = array("public", "labels", optional=True)


@dataclass(frozen=True)
class CFD(Algorithm):
    """Clients restart from theta_0, distil the last labels, train with CE, send Q(p^k); the server distils the mean.

    Q rounds to the grid i/(2^b - 1) by largest remainders. The server distils by KL(mean_k Q(p^k) || f), going on with
    its own model (`restart: true`: from theta_0, as clients do), and sends its own Q(p) down. Codes travel as the
    difference to the sender's last ones. Down that is one message for all, and so only where everybody has the last
    one: after rounds that every client answered in; after others it stands for itself. Size is zlib's, not CABAC's.
    """

    bits_up: Bits = 1
    bits_down: Bits = 1
    restart: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"public", "parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Parameters, SoftLabels, Done)
    paper: ClassVar[str] = "CFD (Sattler 2021)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NC(K+1) codes, entropy-coded; P once"

    def start(self, fed: Federation) -> None:
        theta = fed.server.parameters()
        if self.restart:
            fed.server.memory.mappings["theta_0"] = theta
        if failures := fed.call("begin", Parameters(theta), clients=list(fed.clients)).failures:
            raise FedstillError(f"CFD starts everybody from one model, and {failures[0].client} did not take it.")

    def begin(self, me: Client, first: Parameters) -> Done:
        """Keep theta_0: every round starts there."""
        me.memory.mappings["theta_0"] = dict(first.parameters)
        _restart(me)
        return Done()

    def digest(self, me: Client, answer: SoftLabels) -> None:
        labels = _receive(me, "server", answer, self.bits_down)
        _restart(me)
        me.distill(labels, probability_ce)

    def opine(self, me: Client) -> SoftLabels:
        me.train()
        return _send(me, me.predict().softmax(-1), self.bits_up)

    def server(self, me: Server, ups: Replies[SoftLabels]) -> SoftLabels:
        labels = [_receive(me, name, said, self.bits_up) for name, said in ups.items()]
        if self.restart:
            _restart(me)
        me.distill(torch.stack(labels).mean(0), probability_ce)  # KL but for the labels' entropy, which is constant
        return _send(me, me.predict().softmax(-1), self.bits_down, as_difference=set(ups) == set(ups.clients))


def _restart(me: Party) -> None:
    me.set_parameters(me.memory.mappings["theta_0"])


def _send(me: Party, probabilities: Tensor, bits: Bits, as_difference: bool = True) -> SoftLabels:
    """What a party thinks, in so many bits; it remembers what it has sent."""
    if bits == 32:
        return SoftLabels(me.round, probabilities=probabilities)
    codes, last = quantise(probabilities, bits), me.memory.mappings.setdefault("sent", {})
    before = last.get("codes") if as_difference else None
    since = int(last["round"]) if before is not None else 0
    last |= {"codes": codes, "round": torch.tensor(me.round)}
    return SoftLabels(me.round, since, pack(codes, before, bits))


def _receive(me: Party, sender: str, said: SoftLabels, bits: Bits) -> Tensor:
    """What a sender thinks; the receiver remembers it, and refuses a difference to something that it does not have."""
    if bits == 32 and said.probabilities is not None:
        return said.probabilities
    if bits == 32 or said.codes is None:
        raise BadMessage(f"{sender} sends {me.name} other labels than the {bits} bits that were agreed.")
    last = me.memory.mappings.setdefault("received", {})
    held = int(last.get(f"round/{sender}", torch.tensor(0)))
    if said.since not in (0, held):
        raise BadMessage(
            f"{sender} sends {me.name} the difference to its labels of round {said.since}, of which {me.name} has "
            f"{'none' if not held else f'those of round {held} only'}."
        )
    before = last[f"codes/{sender}"] if said.since else None
    codes = unpack(said.codes, before, bits, (len(me.data.public), len(me.model.labels)))
    if not bool((codes.sum(1) == 2**bits - 1).all()):
        raise BadMessage(f"{sender} sends {me.name} labels that do not sum to one.")
    last |= {f"codes/{sender}": codes, f"round/{sender}": torch.tensor(said.round)}
    return dequantise(codes, bits)
