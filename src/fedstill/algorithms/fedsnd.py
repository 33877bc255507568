"""FedSND: clients distil themselves; the server distils them into each other on noise that they are sure about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Federation, NotNegative, Positive
from fedstill.common.randomness import key
from fedstill.data.examples import Examples, TensorStore
from fedstill.learning.losses import Loss, ce, entropy, kl
from fedstill.learning.noise import Batch, Descent, make_sure
from fedstill.learning.phases import Passes, PhaseSettings
from fedstill.learning.precision import has_recurrence
from fedstill.learning.predict import predict
from fedstill.models.space import space_of
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Parameters
from fedstill.wire.replies import Replies, uniform

MOST_NOISE = 10_000
"""The most noise samples of one client: n_k is what the client says, and must not exhaust the server's memory."""


@dataclass(frozen=True)
class Noise:
    """Inputs that one client's model is sure about, and its logits for them."""

    inputs: Examples
    logits: Tensor


@dataclass(frozen=True)
class FedSND(Algorithm):
    """Self-distillation at the clients, noise distillation at the server, then the uniform mean (Algorithms 1 and 2).

    In self-distillation the student is KL's first argument, as printed. Eq. 9 as printed would make outputs uniform:
    here the entropy falls, to `target` or as far as `steps` reach, which the record says. Each half has a switch, so
    that the paper's ablation is four configurations. The paper does not say, so ours are: alpha, beta, gamma; Adam 0.1
    on noise drawn from N(0, 1) in pixel space, or from N(mu, sigma) of the client's word embeddings; one epoch of SGD
    0.01 on the noise of each teacher. `balanced` gives every class its share of the noise, against collapse onto one
    label.
    """

    self_distillation: bool = True
    noise_distillation: bool = True
    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    gamma: NotNegative = 0.1
    teacher: Literal["epoch", "round"] = "epoch"
    """When the frozen teacher M_0 is copied: Algorithm 2 does so every local epoch."""
    target: Positive = 0.01
    """xi, the entropy at which noise is good enough."""
    steps: Annotated[int, Field(ge=1)] = 200
    noise_rate: Positive = 0.1
    noise_share: Positive = 0.5
    """How many noise samples are made for a client's model, as a share of n_k."""
    partners: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of the other active models that teach a model."""
    balanced: bool = False
    rate: Positive = 0.01

    needs: ClassVar[frozenset[str]] = frozenset({"parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Parameters, Done)
    paper: ClassVar[str] = "FedSND (Zheng 2023)"
    cost: ClassVar[str] = "P(K+1)"

    def admit(self, me: Server) -> None:
        if self.noise_distillation:
            space_of(me.model, me.spec.train.max_length)

    def start(self, fed: Federation) -> Parameters:
        return Parameters(fed.server.parameters())

    def digest(self, me: Client, answer: Parameters) -> None:
        me.set_parameters(answer.parameters)

    def opine(self, me: Client) -> Parameters:
        if self.self_distillation:
            teacher, model = me.frozen_copy(), me.model.module
            renew = (lambda: teacher.load_state_dict(model.state_dict())) if self.teacher == "epoch" else None
            loss = partial(self.self_loss, own=me.label_loss())
            me.train(loss=loss, passes=Passes(student=2, teacher=teacher, before_epoch=renew))
        else:
            me.train()
        return Parameters(me.parameters())

    def self_loss(self, logits: Tensor, labels: Tensor, own: Loss = ce) -> Tensor:
        """Eqs. 3 to 6 on two dropout passes f1, f2 and the teacher's f3; `kl(x, y)` is KL(y || x)."""
        f1, f2, f3 = logits
        truth = own(f1, labels) + own(f2, labels)
        return self.alpha * truth + self.beta * kl(f2, f1) + self.gamma * (kl(f3, f1) + kl(f3, f2))

    def leaks(self) -> str | None:
        return "trains with a loss of its own" if self.self_distillation else None

    def server(self, me: Server, ups: Replies[Parameters]) -> Parameters:
        models: Mapping[str, Mapping[str, Tensor]] = {name: up.parameters for name, up in ups.items()}
        if self.noise_distillation and len(models) > 1:
            with me.timed("noise"):
                noise = self._noise(me, ups)
            with me.timed("distillation"):
                models = self._exchange(me, models, noise)
        elif self.noise_distillation:
            me.notes.append("only one client is active: there is no other to distil its noise into.")
        with me.timed("averaging"):
            me.set_parameters(ups.averaged(models, uniform(len(models))))
        return Parameters(me.parameters())

    def _noise(self, me: Server, ups: Replies[Parameters]) -> dict[str, Noise]:
        """Eqs. 7 to 10 for every active model, and its soft labels, computed once after that."""
        how = Descent(self.target, self.steps, self.noise_rate)
        guest = me.model_from(None)
        module, classes = guest.model.module, len(guest.model.labels)
        batches: list[Batch] = []
        owners: list[str] = []
        for name, up in ups.items():
            guest.set_parameters(up.parameters)
            space = space_of(guest.model, me.spec.train.max_length)
            many = min(MOST_NOISE, max(1, round(self.noise_share * ups.clients[name].size)))
            random = torch.Generator().manual_seed(key(me.around.seed, me.round, name, "noise"))
            drawn = space.draw(many, random)
            wanted = torch.arange(many) % classes if self.balanced else None
            parameters = {part: value.to(me.around.device) for part, value in up.parameters.items()}
            for rows in torch.split(torch.arange(many), how.batch):
                batches.append(Batch(parameters, drawn[rows], None if wanted is None else wanted[rows]))
                owners.append(name)
        module.eval()
        stacked = me.around.device.type == "cuda" and me.spec.model.is_small and not has_recurrence(module)
        made = make_sure(module, space.name, batches, how, stacked)
        noise = {}
        for name, up in ups.items():
            values = torch.cat([part for part, owner in zip(made, owners, strict=True) if owner == name])
            inputs = Examples(TensorStore(space.name, values), np.arange(len(values)))
            guest.set_parameters(up.parameters)
            noise[name] = Noise(inputs, predict(module, inputs))  # in fp32, as it was made
        self._report(me, noise)
        return noise

    def _report(self, me: Server, noise: Mapping[str, Noise]) -> None:
        """Record what the descent reached: the entropy, and how often the noise has each label."""
        reached = {name: float(entropy(own.logits.softmax(-1)).mean()) for name, own in noise.items()}
        for name, own in noise.items():
            labels = torch.bincount(own.logits.argmax(-1), minlength=len(me.model.labels)).tolist()
            histogram = {f"label {label}": float(n) for label, n in zip(me.model.labels, labels, strict=True)}
            me.observe(f"noise of {name}", {"entropy": reached[name], "samples": float(len(own.inputs))} | histogram)
        if max(reached.values()) > self.target:  # the same words every time, so that the summary can count them
            me.notes.append(
                f"the noise of some clients stayed above entropy {self.target:g} after {self.steps} steps; "
                "`noise of ...` in metrics.jsonl says how far."
            )

    def _exchange(
        self, me: Server, models: Mapping[str, Mapping[str, Tensor]], noise: Mapping[str, Noise]
    ) -> dict[str, Mapping[str, Tensor]]:
        """Algorithm 1: every active model t learns the noise of some of the others, KL(y_c || p_t(x_c))."""
        settings = PhaseSettings(epochs=1, batch=64, rate=self.rate, optimiser="sgd", schedule="constant")
        random = me.generator("partners")
        distilled: dict[str, Mapping[str, Tensor]] = {}
        for name, parameters in models.items():
            others = [other for other in models if other != name]
            many = max(1, round(self.partners * len(others)))
            student = me.model_from(parameters)
            for other in random.choice(others, many, replace=False):
                student.distill(noise[other].logits, kl, settings=settings, data=noise[other].inputs)
            distilled[name] = student.parameters()
        return distilled
