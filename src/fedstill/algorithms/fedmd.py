"""FedMD: every round a consensus on a few public samples, and no model at the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Answers, Federation, Role
from fedstill.data.examples import Labelled
from fedstill.learning.losses import Distillation, distillation
from fedstill.parties.client import Client
from fedstill.wire.messages import BadMessage, Done, Message, Scores, array, opinions
from fedstill.wire.replies import Weights


@dataclass(frozen=True)
class Labels(Message):
    """The classes of the public rows whose labels the server has."""

    labels: Tensor = array("labelled", below="labels")


@dataclass(frozen=True)
class Consensus(Message):
    """The mean opinion on the public rows asked about last, and the rows asked about next."""

    rows: Tensor | None = array("next", optional=True, below="public")
    last: Tensor | None = array("last", optional=True, below="public")
    logits: Tensor | None = opinions("last", "labels", optional=True)


@dataclass(frozen=True)
class FedMD(Algorithm):
    """Clients minimise MAE(z, mean_k z^k) on a fresh random public subset, then CE on their own rows (Algorithm 1).

    Where the server has labelled rows, all clients train on them first (unless `pretrain: false`). As in the paper, the
    last digest is followed by the own rows too, except under `privacy`, whose budget is for one training a round.
    """

    subset: Annotated[int, Field(ge=1)] = 5000
    client_loss: Distillation = "l1"
    pretrain: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    has_server_model: ClassVar[bool] = False
    messages: ClassVar[tuple[type[Message], ...]] = (Labels, Scores, Consensus, Done)
    paper: ClassVar[str] = "FedMD (Li and Wang 2019)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "N_r C (K+1)"

    def start(self, fed: Federation) -> None:
        if self.pretrain and len(fed.server.data.labelled):
            fed.call("transfer", Labels(fed.server.labelled_rows().labels.int()), clients=list(fed.clients))

    def round(self, fed: Federation, answer: Answers) -> Consensus:
        public = len(fed.server.data.public)
        chosen = fed.server.generator("subset").choice(public, min(self.subset, public), replace=False)
        rows = torch.from_numpy(np.sort(chosen)).int()
        question = replace(answer, rows=rows) if isinstance(answer, Consensus) else Consensus(rows)
        ups = fed.call("communicate", question)
        return Consensus(last=rows, logits=ups.mean("logits"))  # aggregate; distributed with the next question

    def transfer(self, me: Client, known: Labels) -> Done:
        """Train on the labelled public rows, before the first training on own rows."""
        labelled = me.data.labelled
        losses = me.train(Labelled(labelled.store, labelled.rows, known.labels.long()))
        return Done(loss=min(losses.mean))

    def communicate(self, me: Client, question: Consensus) -> Scores:
        """Digest the last consensus, train on own rows ("revisit"), and predict the next subset."""
        self._digest(me, question)
        me.train()
        me.evaluate("trained")
        if question.rows is None:
            raise BadMessage("the server asks about no rows.")
        return Scores(me.predict(me.data.public.pick(question.rows.numpy())))

    def digest(self, me: Client, answer: Consensus) -> None:
        if answer.logits is not None and answer.last is not None:  # there is none in the first round
            me.distill(answer.logits, distillation(self.client_loss), rows=answer.last.numpy())

    def settle(self, me: Client, answer: Consensus) -> None:
        self.digest(me, answer)
        if not me.is_private:
            me.train()  # the last "revisit"

    def masked_weights(self) -> Weights:
        """Equal weights."""
        return "uniform"

    @property
    def blends_raw_logits(self) -> bool:
        """The mean of the clients' logits is what is distilled."""
        return True
