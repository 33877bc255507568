"""FedDRS: the average of transformers, refined on pseudo-samples from their embedding space; no public data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithms.averaging import Averaging
from fedstill.algorithms.base import Algorithm, Answers, Federation, NotNegative, Positive
from fedstill.algorithms.fedavg import FedAvg
from fedstill.common.errors import FedstillError
from fedstill.common.files import file_name
from fedstill.common.randomness import key
from fedstill.learning.phases import OptimiserName
from fedstill.learning.pseudo import KINDS, Kind, Pseudo, Reader, Refinement, Sampler, Sampling
from fedstill.models.space import held_embeddings, space_of, starting_points
from fedstill.models.text_to_text import TextToText
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import MOST_ROWS, Done, Message, Parameters, parameters
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class Work(Message):
    """The student's parameters, and how many of its rows each client must train on."""

    parameters: Mapping[str, Tensor] = parameters()
    rows_wanted: int = field(default=0, metadata={"least": 0, "most": MOST_ROWS})


@dataclass(frozen=True)
class FedDRS(Averaging, Algorithm):
    """Uniform averages, each refined by KL(p_k(theta) || p_S(theta)) on sampled embeddings (Algorithm 1, Eqs. 5 to 8).

    Three `sets`: words drawn at random; embeddings that client k's model classifies as labels drawn from its label
    distribution; the same, but wrong for the student (`strength`: lambda). `variant`: mixed (all three), ad_only,
    post_only (`passes`, I, is 0 in rounds). At the end the last known models of all clients are averaged and refined
    `post` (I*) times. Embeddings are averaged and never distilled; clients train them, for text-to-text models only in
    round 1. `balance`: active clients draw as many rows as the smallest has, and at most `train.rows`. Our readings:
    one step per (client, set) batch (`steps: sum`: one per pass, as in Algorithm 1), AdamW for the student, whose loss
    is clamped in the adversary's. Images are sampled in pixel space (Table 3).

    `base`: another server step in place of the average (Table 3: FedOpt); its last model is what is post-processed.
    `within_task`: with one head for several tasks, samples are made and answered among the labels of their label's task
    only, as predictions are made; a head per task (`train.heads: task`) always does so.
    """

    weights: Weights = "uniform"
    balance: bool = True
    base: FedAvg = FedAvg()

    variant: Literal["mixed", "ad_only", "post_only"] = "mixed"
    sets: Annotated[list[Kind] | None, Field(min_length=1)] = None
    passes: Annotated[int, Field(ge=0)] | None = None
    post: Annotated[int, Field(ge=0)] = 3
    strength: NotNegative = 0.1
    lambda_post: NotNegative | None = None
    adversary: Literal["ce", "kl"] = "ce"
    sampling_steps: Annotated[int, Field(ge=0)] = 100
    sampling_rate: Positive = 0.1
    samples: Annotated[int, Field(ge=1)] = 64
    length: Annotated[int, Field(ge=4)] = 64
    start_from: Literal["words", "gaussian"] = "words"
    steps: Literal["batch", "sum"] = "batch"
    rate: Positive = 1e-5
    optimiser: OptimiserName = "adamw"
    within_task: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"parameters", "label_counts"})
    messages: ClassVar[tuple[type[Message], ...]] = (Work, Parameters, Done)
    blends: ClassVar[bool] = False
    paper: ClassVar[str] = "FedDRS (under review 2024)"
    cost: ClassVar[str] = "P(K+1)+CK"

    @property
    def title(self) -> str:
        after = "" if type(self.base) is FedAvg else f" after {self.base.title}"
        sampled = ", ".join(self.sets or [self.variant.replace("_", " ")])
        return f"FedDRS ({sampled if self._passes or self.post else 'no samples'}){after}"

    @property
    def _passes(self) -> int:
        """I, the times that a round's average is refined."""
        return self.passes if self.passes is not None else int(self.variant != "post_only")

    def admit(self, me: Server) -> None:
        if "public" in self.base.requires():
            raise FedstillError(f"FedDRS has no public samples, and {self.base.title} needs them: choose another base.")
        space_of(me.model, self.length)

    def start(self, fed: Federation) -> Work:
        return Work(fed.server.parameters())

    def round(self, fed: Federation, answer: Answers) -> Answers:
        wanted = self.rows_for_all(fed) if self.balance else max(h.size for h in fed.clients.values())
        return self.server(fed.server, fed.call("work", Work(fed.server.parameters(), wanted)))

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
        if self.post:
            me.memory.mappings |= {_slot(name): dict(up.parameters) for name, up in ups.items()}
        self._aggregate(me, ups)
        self._refine(me, ups, self._passes, self.strength)
        return Work(me.parameters())

    def finish(self, fed: Federation, answer: Answers) -> None:
        me, known = fed.server, fed.server.memory.mappings
        if self.post:  # lines 8 and 11: the last known models of all, not the last round's student
            last = {name: Parameters(known[_slot(name)]) for name in fed.clients if _slot(name) in known}
            models = fed.replies(last)
            if type(self.base) is FedAvg:  # a step of another base also depends on the rounds before
                self._aggregate(me, models)
            self._refine(me, models, self.post, self.strength if self.lambda_post is None else self.lambda_post)
            me.evaluate("processed", round=fed.rounds)
            answer = Work(me.parameters())
        super().finish(fed, answer)

    def _aggregate(self, me: Server, models: Replies[Parameters]) -> None:
        """Line 11: the average, or the base's step."""
        with me.timed("averaging"):
            base = replace(self.base, weights=self.weights, balance=self.balance, min_samples=self.min_samples)
            base.server(me, models)

    def _refine(self, me: Server, models: Replies[Parameters], passes: int, strength: float) -> None:
        """FedDRS({omega}, I), lines 12 to 18."""
        sample, seed = self._sampler(me, strength), key(me.around.seed, me.round, me.name, "refining")
        with held_embeddings(me.model.module):
            student = Refinement(me.model.module, sample.read, self.optimiser, self.rate, seed)
            for _ in range(passes):
                batches: list[Pseudo] = []
                with me.timed("sampling"):  # lines 12 to 15
                    for said, counts in zip(models.values(), models.label_counts, strict=True):
                        batches += sample(me.model_from(said.parameters).model.module, counts)
                with me.timed("distillation"):
                    student.learn(batches, step_a_batch=self.steps == "batch")  # line 16, Eq. 8
                me.changed()

    def _sampler(self, me: Server, strength: float) -> Sampler:
        """Every set starts from the averaged table (line 13)."""
        random = torch.Generator().manual_seed(key(me.around.seed, me.round, me.name, "pseudo-samples"))
        tasks = me.model.label_tasks if self.within_task or me.spec.train.heads == "task" else None
        read = Reader(space_of(me.model, self.length).name, None if tasks is None else tasks.to(me.around.device))
        kinds = self.sets or (["adversary"] if self.variant == "ad_only" else KINDS)
        how = Sampling(self.sampling_steps, self.sampling_rate, strength, adversary=self.adversary)
        draw = partial(starting_points, me.model, self.samples, self.length, self.start_from, random)
        return Sampler(me.model.module, read, kinds, how, draw, random, me.observe)


def _slot(client: str) -> str:
    """The memory's name for a client's last known model."""
    return f"last of {file_name(client)}"
