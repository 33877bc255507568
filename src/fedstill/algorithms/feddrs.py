"""FedDRS: the average of transformers, refined by pseudo-samples out of their own embeddings; no text anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.algorithms.base import Algorithm, Answers, Federation, NotNegative, Positive
from fedstill.common.errors import FedstillError
from fedstill.common.files import file_name
from fedstill.common.randomness import Stream, key
from fedstill.learning.fast import fast_of
from fedstill.learning.phases import PhaseSettings, optimiser
from fedstill.learning.precision import input_gradients
from fedstill.learning.pseudo import Answer, Reader, Sampling, descend, sampling_loss
from fedstill.models.space import held_embeddings, space_of, starting_points
from fedstill.models.text_to_text import TextToText
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Parameters, parameters
from fedstill.wire.replies import Replies, uniform

Kind = Literal["random", "target", "adversary"]
KINDS: tuple[Kind, ...] = ("random", "target", "adversary")

TRACED = 4
"""Into how many pieces the descent is cut to show its quality."""


@dataclass(frozen=True)
class Work(Message):
    """The student's parameters, and how many of its rows each client shall train on."""

    parameters: Mapping[str, Tensor] = parameters()
    rows_wanted: int = 0


@dataclass(frozen=True)
class Pseudo:
    """A batch of pseudo-samples of one client, and what its model says of them."""

    inputs: Tensor
    labels: Tensor
    teacher: Answer


@dataclass(frozen=True)
class FedDRS(Algorithm):
    """Uniform averages, each refined by KL(p_k(theta) || p_S(theta)) on sampled embeddings (Algorithm 1, Eqs. 5 to 8).

    Three sets: words drawn at random; embeddings that client k's model takes for labels drawn from its label
    distribution; the same that the student misses. `variant`: mixed (all three), ad_only, post_only (refined at the end
    only). After the last round the last known models of all clients are averaged and refined `post` times, which throws
    away the last round's student, as the algorithm box does. Embeddings are averaged and never distilled; on clients
    they train, but for text-to-text models only in round 1. `balance`: every active client draws as many rows as the
    smallest has, and `train.rows` (250 in the paper) at most. Our readings: one step a (client, set) batch (`steps:
    sum`: one a pass, as the box prints), AdamW for the student, whose loss is clamped in the adversary's. Models of
    images are sampled in pixel space (Table 3).
    """

    variant: Literal["mixed", "ad_only", "post_only"] = "mixed"
    sets: Annotated[list[Kind] | None, Field(min_length=1)] = None
    """Which sets, where the variant's are not wanted."""
    passes: Annotated[int, Field(ge=0)] | None = None
    """I, in every round: 1, and 0 for post_only."""
    post: Annotated[int, Field(ge=0)] = 3
    """I*, after the last round."""
    strength: NotNegative = 0.1
    """lambda."""
    lambda_post: NotNegative | None = None
    adversary: Literal["ce", "kl"] = "ce"
    sampling_steps: Annotated[int, Field(ge=0)] = 100
    sampling_rate: Positive = 0.1
    samples: Annotated[int, Field(ge=1)] = 64
    length: Annotated[int, Field(ge=4)] = 64
    start_from: Literal["words", "gaussian"] = "words"
    steps: Literal["batch", "sum"] = "batch"
    rate: Positive = 1e-5
    optimiser: Literal["adamw", "adafactor", "sgd"] = "adamw"
    balance: bool = True
    min_samples: Annotated[int, Field(ge=1)] = 1

    needs: ClassVar[frozenset[str]] = frozenset({"parameters", "label_counts"})
    messages: ClassVar[tuple[type[Message], ...]] = (Work, Parameters, Done)
    paper: ClassVar[str] = "FedDRS (under review 2024)"
    cost: ClassVar[str] = "P(K+1)+CK"

    @property
    def title(self) -> str:
        return f"FedDRS ({self.variant.replace('_', ' ')})"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The sets that are sampled."""
        return tuple(self.sets or (("adversary",) if self.variant == "ad_only" else KINDS))

    def admit(self, me: Server) -> None:
        space_of(me.model, self.length)
        if me.model.longest is not None and self.length > me.model.longest:
            raise FedstillError(
                f"FedDRS.length: {me.model.spec} reads {me.model.longest} tokens at most, not {self.length}."
            )

    def start(self, fed: Federation) -> Work:
        return Work(fed.server.parameters())

    def round(self, fed: Federation, answer: Answers) -> Answers:
        assert isinstance(answer, Work)
        smallest = min(fed.clients[name].size for name in fed.active)
        wanted = max(self.min_samples, smallest) if self.balance else max(h.size for h in fed.clients.values())
        if 2 * wanted < median(fed.clients[name].size for name in fed.active):
            fed.server.notes.append(
                f"balance: every active client trains on {wanted} rows at most, as many as the smallest has, which is "
                "less than half of what most have; raise `min_samples`, or set `balance: false`."
            )
        return self.server(fed.server, fed.call("work", replace(answer, rows_wanted=wanted)))

    def work(self, me: Client, work: Work) -> Parameters:
        """One client's part of a round."""
        self._digest(me, work)
        with held_embeddings(me.model.module, isinstance(me.model.module, TextToText) and me.round > 1):
            me.train(me.training_rows(work.rows_wanted))
        me.evaluate("trained")
        return Parameters(me.parameters())

    def digest(self, me: Client, answer: Work) -> None:
        me.set_parameters(answer.parameters)

    def server(self, me: Server, ups: Replies[Parameters]) -> Work:
        models = {name: up.parameters for name, up in ups.items()}
        if self.post:
            me.memory.mappings |= {_slot(name): dict(parameters) for name, parameters in models.items()}
        passes = self.passes if self.passes is not None else int(self.variant != "post_only")
        counts = dict(zip(ups, ups.label_counts, strict=True))
        self._refine(me, models, counts, passes, self.strength)
        return Work(me.parameters())

    def finish(self, fed: Federation, answer: Answers) -> None:
        me = fed.server
        if self.post:
            known = me.memory.mappings
            models = {name: known[_slot(name)] for name in fed.clients if _slot(name) in known}
            counts = {name: c.double() for name in models if (c := fed.clients[name].label_counts) is not None}
            strength = self.strength if self.lambda_post is None else self.lambda_post
            self._refine(me, models, counts, self.post, strength)
            me.evaluate("processed", round=fed.rounds)
            answer = Work(me.parameters())
        super().finish(fed, answer)

    def _refine(
        self,
        me: Server,
        models: Mapping[str, Mapping[str, Tensor]],
        counts: Mapping[str, Tensor],
        passes: int,
        strength: float,
    ) -> None:
        """FedDRS({omega}, I), lines 10 to 18."""
        with me.timed("averaging"):
            everybody = Replies({name: Parameters(parameters) for name, parameters in models.items()})
            me.set_parameters(everybody.average("parameters", uniform(len(models))))
        if not passes:
            return
        random = torch.Generator().manual_seed(key(me.around.seed, me.round, me.name, "pseudo-samples"))
        stream = Stream(key(me.around.seed, me.round, me.name, "refining"), me.around.device)
        with held_embeddings(me.model.module, True):
            settings = PhaseSettings(optimiser=self.optimiser)
            learnt = [p for p in me.model.module.parameters() if p.requires_grad]
            learning = optimiser(settings, self.rate, learnt, fast_of(me.model.module).optimiser)
            read = self._reader(me)
            for _ in range(passes):
                with me.timed("sampling"):
                    batches = [
                        sample
                        for name, parameters in models.items()
                        for sample in self._sample(me, parameters, counts[name], read, strength, random)
                    ]
                with me.timed("distillation"), stream():
                    self._learn(me.model.module, batches, read, learning)
        me.set_parameters(me.parameters())  # what was scored before is no longer this model's

    def _reader(self, me: Server) -> Reader:
        tasks = me.model.label_tasks if me.spec.train.heads == "task" else None
        name = space_of(me.model, self.length).name
        return Reader(name, None if tasks is None else tasks.to(me.around.device))

    def _sample(
        self,
        me: Server,
        parameters: Mapping[str, Tensor],
        counts: Tensor,
        read: Reader,
        strength: float,
        random: torch.Generator,
    ) -> Iterator[Pseudo]:
        """theta_rd, theta_tr and theta_ad of one client; every set starts from the averaged table (line 13)."""
        student = me.model.module.eval()
        teacher = me.model_from(parameters).model.module.eval()
        for kind in self.kinds:
            inputs, moves = starting_points(me.model, self.samples, self.length, self.start_from, random)
            labels = torch.multinomial(counts, self.samples, replacement=True, generator=random).to(inputs.device)
            if kind != "random":
                how = Sampling(
                    self.sampling_steps,
                    self.sampling_rate,
                    strength if kind == "adversary" else 0.0,
                    adversary=self.adversary,
                )
                watch = partial(self._watch, me, kind, read, teacher, student, labels)
                with input_gradients(teacher, student):
                    inputs = descend(sampling_loss(read, teacher, student, how), inputs, labels, moves, how, watch)
            with torch.no_grad():
                yield Pseudo(inputs, labels, read(teacher, inputs, labels))

    def _watch(
        self,
        me: Server,
        kind: Kind,
        read: Reader,
        teacher: nn.Module,
        student: nn.Module,
        labels: Tensor,
        step: int,
        inputs: Tensor,
    ) -> None:
        """How far both models are from the labels on the way (Figure 4a and b)."""
        if step % max(1, self.sampling_steps // TRACED):
            return
        with torch.no_grad():
            losses = {
                who: float(read(module, inputs, labels).cross_entropy().mean())
                for who, module in (("teacher", teacher), ("student", student))
            }
        me.observe(f"{kind} sampling", {"step": float(step), **losses})

    def _learn(
        self, student: nn.Module, batches: Sequence[Pseudo], read: Reader, learning: torch.optim.Optimizer
    ) -> None:
        """Line 16, Eq. 8."""
        student.train()
        for number, batch in enumerate(batches, 1):
            loss = batch.teacher.divergence(read(student, batch.inputs, batch.labels)).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            if self.steps == "batch" or number == len(batches):
                learning.step()
                learning.zero_grad(set_to_none=True)


def _slot(client: str) -> str:
    """The memory's name for a client's last known model."""
    return f"last of {file_name(client)}"
