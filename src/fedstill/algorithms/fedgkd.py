"""FedGKD: the mean of everybody's parameters; the mean of past global models is a teacher of all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Federation, NotNegative, Role
from fedstill.learning.losses import kl
from fedstill.learning.phases import Passes
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.blends import average
from fedstill.wire.messages import Done, Message, Parameters, parameters
from fedstill.wire.replies import Replies, Weights, uniform


@dataclass(frozen=True)
class GlobalModels(Message):
    """The newest global model, and the mean of the last ones if there are several."""

    newest: Mapping[str, Tensor] = parameters()
    mean: Mapping[str, Tensor] | None = parameters(optional=True)


@dataclass(frozen=True)
class FedGKD(Algorithm):
    """From theta, clients minimise CE + `strength` KL(f_teacher || f) on their own rows; theta = mean_k theta^k.

    The teacher, in eval mode, is the mean of the parameters of the last `models` global models, including the newest
    one and theta_0. In round 1 it is theta_0 itself, which is then sent once. Clients have equal weights;
    `weights: size` weights them by rows.
    """

    models: Annotated[int, Field(ge=1)] = 5
    strength: NotNegative = 0.1
    weights: Literal["uniform", "size"] = "uniform"

    needs: ClassVar[frozenset[str]] = frozenset({"parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (GlobalModels, Parameters, Done)
    paper: ClassVar[str] = "FedGKD (Yao 2021)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "PK up, 2P down"

    def start(self, fed: Federation) -> GlobalModels:
        return self._answer(fed.server)

    def digest(self, me: Client, answer: GlobalModels) -> None:
        me.set_parameters(answer.newest)
        me.memory.mappings.pop("teacher", None)
        if answer.mean is not None:
            me.memory.mappings["teacher"] = dict(answer.mean)

    def opine(self, me: Client) -> Parameters:
        mean = me.memory.mappings.pop("teacher", None)
        own = me.label_loss()

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            student, teacher = logits
            return own(student, labels) + self.strength * kl(student, teacher)

        me.train(loss=loss, passes=Passes(student=1, teacher=me.frozen_copy(mean)))
        return Parameters(me.parameters())

    def leaks(self) -> str | None:
        return "trains with a loss of its own"

    def server(self, me: Server, ups: Replies[Parameters]) -> GlobalModels:
        me.set_parameters(ups.average("parameters", ups.shares if self.weights == "size" else uniform(len(ups))))
        return self._answer(me)

    def masked_weights(self) -> Weights:
        """As the option says."""
        return self.weights

    def _answer(self, me: Server) -> GlobalModels:
        newest = me.parameters()
        last = [newest]
        while len(last) < self.models and (older := me.memory.mappings.get(f"model {len(last) - 1}")) is not None:
            last.append(older)
        models = {f"model {age}": model for age, model in enumerate(last)}
        me.memory.mappings |= models
        return GlobalModels(newest, average(models, uniform(len(last))) if len(last) > 1 else None)
