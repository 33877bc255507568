"""FedHe: clients, one at a time, compare their mean logits for each label with the mean of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstill.algorithms.base import Algorithm, Answers, Federation, NotNegative, Role
from fedstill.algorithms.fd import LabelMeans, label_means, remember, with_label_means
from fedstill.learning.losses import mse
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message
from fedstill.wire.replies import Replies


@dataclass(frozen=True)
class FedHe(Algorithm):
    """Up: the mean logits of the rows of each label; clients minimise CE + `strength` MSE(z, Z_y) on their rows.

    Z_y is the running mean of all reports on y so far, with equal weights; labels without a report are skipped. In the
    paper clients do not wait for each other: here a round calls its clients one at a time, in a random order, and each
    learns from the reports before its own. A client that fails therefore ends the run, whatever the quorum.
    """

    strength: NotNegative = 0.5

    has_server_model: ClassVar[bool] = False
    messages: ClassVar[tuple[type[Message], ...]] = (LabelMeans, Done)
    blends: ClassVar[bool] = False
    paper: ClassVar[str] = "FedHe (Chan and Ngai 2021)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "2C^2 a client"

    def round(self, fed: Federation, answer: Answers) -> Answers:
        for name in fed.server.generator("order").permutation(sorted(fed.active)).tolist():
            answer = self.server(fed.server, fed.call("turn", answer, clients=[name]))
        return answer

    def digest(self, me: Client, answer: LabelMeans) -> None:
        remember(me, answer)

    def opine(self, me: Client) -> LabelMeans:
        me.train(loss=with_label_means(me, self.strength, mse))
        return label_means(me, me.predict(me.data.train))

    def leaks(self) -> str | None:
        return "tells what a client's model says of its own rows, by label"

    def server(self, me: Server, ups: Replies[LabelMeans]) -> LabelMeans:
        memory = me.memory.arrays
        for said in ups.values():
            means = memory.get("means", torch.zeros_like(said.means, dtype=torch.float64))
            counts = memory.get("counts", torch.zeros_like(said.counts))
            seen = (said.counts > 0).int()
            share = (seen.double() / (counts + seen).clamp(min=1))[:, None]
            memory |= {"means": means + share * (said.means - means), "counts": counts + seen}
        return LabelMeans(memory["means"].float(), memory["counts"])
