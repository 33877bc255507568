"""AdaFD: teachers weighted by how well they fit; server and clients distil from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from fedstill.algorithms.base import Algorithm, NotNegative, Positive
from fedstill.algorithms.competence import odds
from fedstill.algorithms.finer import by_certainty, by_class, by_competence, seen
from fedstill.algorithms.reading import (
    LINEAR_SETTLING,
    LINEAR_SHARPEN,
    OPTIONS,
    READINGS,
    AnswerOf,
    Apart,
    LossOf,
    LossScale,
    Opinions,
    Reading,
    sharpness,
)
from fedstill.algorithms.weightings import ENWC, Uniform, Weighting
from fedstill.common.errors import FedstillError
from fedstill.data.likeness import UNLIKE
from fedstill.learning.losses import Distillation, ce, distillation
from fedstill.learning.phases import PhaseSettings
from fedstill.learning.scales import centred, fitted_temperature, label_entropy, one_class, unit_spread
from fedstill.learning.sign_test import sign_test
from fedstill.parties.client import Client
from fedstill.parties.party import ONE_CLASS_BLEND
from fedstill.parties.server import Server
from fedstill.wire.blends import Holds
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies, Weights, uniform

S = TypeVar("S", bound=PhaseSettings)


@dataclass(frozen=True)
class AdaFD(Algorithm):
    """Adaptive federated distillation (paper: adafd): teachers weighted by how well they fit.

    `reading: comparable` puts the opinions and losses of different models on one scale before it compares them;
    `paper` is Eqs. 1 to 10 as printed, in which the client's target is the server's prediction after distilling;
    `released` is the authors' code, which has a new optimiser and schedule every epoch. A reading is a choice of the
    options from `opinions` on; null is the reading's own. Off in all of them: `per_sample` and `per_class` (finer
    weights, the paper's future work), `competence` (w_k is multiplied by n_k and the odds that a sample is like the
    client's own rows) and `prior` (a client's log label shares are taken off its opinions).
    """

    reading: Literal["comparable", "paper", "released"] = "comparable"
    weighting: Weighting = ENWC()
    opinions: Opinions | None = None
    calibrate: bool | None = None
    loss: LossOf | None = None
    loss_scale: LossScale | None = None
    server_loss: Distillation | None = None
    answer: AnswerOf | None = None
    sharpen: NotNegative | None = None
    server_sharpen: NotNegative | None = None
    rehearsal: bool | None = None
    settling: NotNegative | None = None
    linear: Apart | None = None
    foreign: Apart | None = None
    wary: bool | None = None
    veto: NotNegative | None = None
    client_loss: Distillation = "kl"
    temperature: Positive = 1.0
    center_logits: bool = False
    per_sample: bool = False
    per_class: bool = False
    competence: bool = False
    prior: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    paper: ClassVar[str] = "AdaFD (Xiao and Liu 2025)"
    cost: ClassVar[str] = "NC(K+1)+K"

    def __post_init__(self) -> None:
        if self.per_class and not isinstance(self.weigher, ENWC):
            raise FedstillError("per_class weights are exponential in the loss: they need `weighting: ENWC`.")

    @cached_property
    def how(self) -> Reading:
        """Every option, as set or as the reading has it."""
        own = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        return replace(READINGS[self.reading], **own)

    @cached_property
    def weigher(self) -> Weighting:
        """The weighting, with the reading's beta if it has none."""
        own = self.weighting
        return replace(own, beta=self.how.beta) if isinstance(own, ENWC) and own.beta is None else own

    def digest(self, me: Client, answer: Answer) -> None:
        if self._is_foreign(me):
            return  # it works alone until the last answer
        if self._is_useless(me, answer):
            me.train()
        else:
            self._learn(me, answer)

    def settle(self, me: Client, answer: Answer) -> None:
        if self._is_foreign(me):
            self._learn_if_it_helps(me, answer)
            return
        before = me.parameters() if self._may_veto(me, answer) else None
        right_before = me.held_out_right() if before else None
        self.digest(me, answer)
        share = LINEAR_SETTLING if self._is_apart(me) else self.how.settling
        if share and not me.is_private:
            train = me.spec.train
            me.train(settings=train.model_copy(update={"epochs": 1, "rate_factor": share * train.rate_factor}))
        if before is not None and right_before is not None:
            self._go_on_without(me, before, right_before)

    def _may_veto(self, me: Client, answer: Answer) -> bool:
        """Whether there are rows to judge by, and something to judge."""
        has_rows = not me.is_private and len(me.data.validation) > 0
        return self.how.veto > 0 and has_rows and not self._is_useless(me, answer)

    def _go_on_without(self, me: Client, before: Mapping[str, Tensor], right_before: Tensor) -> None:
        """Train on own rows from before the answer on, if the rows that it held out are clearly better for that."""
        right = me.held_out_right()
        if right_before.sum() <= right.sum():
            return  # the answer did it no harm there
        after = me.parameters()
        me.set_parameters(before)
        me.train()
        if sign_test(me.held_out_right().numpy(), right.numpy()) < self.how.veto:
            me.notes.append(
                f"{me.name} goes on without the last answer: its own rows alone are better for those that it held out."
            )
        else:
            me.set_parameters(after)

    def _learn(self, me: Client, answer: Answer) -> None:
        rehearses = self.how.rehearsal and not self._is_apart(me) and not me.is_private
        also = me.training_rows() if rehearses else None
        loss = distillation(self.client_loss, self.temperature)
        me.distill(self._taught(me, answer.logits), loss, also=also, settings=self._settings(me.spec.distill))  # Eq. 5

    def _learn_if_it_helps(self, me: Client, answer: Answer) -> None:
        """Then train on its own rows, and go back if the rows that it held out are worse for it."""
        if self._is_useless(me, answer):
            return
        before, f1 = me.parameters(), me.held_out_f1()
        self._learn(me, answer)
        me.train()
        if me.held_out_f1() < f1:
            me.set_parameters(before)
            me.notes.append(
                f"{me.name} stays as it was alone: the last answer made it worse on the rows that it held out."
            )

    def _is_useless(self, me: Client, answer: Answer) -> bool:
        """Whether the answer would teach one class and nothing else."""
        return self.how.wary and not me.is_private and one_class(answer.logits) is not None

    def _is_apart(self, me: Client) -> bool:
        return self.how.linear == "apart" and me.model.is_linear and not self._is_foreign(me)

    def _is_foreign(self, me: Client) -> bool:
        return self.how.foreign == "apart" and (me.unlike_public or 0) >= UNLIKE

    def _taught(self, me: Client, logits: Tensor) -> Tensor:
        """The answer as this client learns from it."""
        sharp = self._sharpness(logits.shape[1])
        can_be_sharper = self.how.answer == "blend" and sharp > LINEAR_SHARPEN
        return logits * (sharp / LINEAR_SHARPEN) if can_be_sharper and self._is_apart(me) else logits

    def opine(self, me: Client) -> Opinion:
        losses = me.train(settings=self._settings(me.spec.train))  # Eq. 1
        best = losses.best()  # l_min: the smallest epoch mean of this round
        scale, loss = self._measured(me, losses.mean[best])
        said = self._said(me, me.predict(), scale)  # Eq. 2
        return Opinion(
            logits=self.on_scale(said) if self.needs_sum_only else said,
            loss=None if self.needs_sum_only else loss,
            class_losses=seen(losses.by_class[best]) if self.per_class else None,
            f1=me.held_out_f1() if self.weigher.wants_f1 else None,
            labelled_logits=self._said(me, me.predict(me.data.labelled), scale)
            if self.weigher.wants_labelled
            else None,
            competence=odds(me) if self.competence else None,
        )

    def _measured(self, me: Client, loss: float) -> tuple[float, float]:
        """The temperature of the client's opinions, and its loss, as they are compared with those of others."""
        scale, how = 1.0, self.how
        if me.is_private:
            return scale, loss
        if how.calibrate or how.loss == "validation":
            held_out = me.held_out()
            logits = me.predict(held_out).double()
            scale = fitted_temperature(logits, held_out.labels) if how.calibrate else 1.0
            loss = float(ce(logits / scale, held_out.labels).mean()) if how.loss == "validation" else loss
        return scale, loss / label_entropy(me.label_counts()) if how.loss_scale == "label_entropy" else loss

    def _said(self, me: Client, logits: Tensor, scale: float) -> Tensor:
        """The client's logits on the scale that it speaks in."""
        if self.prior:
            shares = (me.label_counts() + 1) / (me.label_counts() + 1).sum()
            logits = logits - shares.log().to(logits)
        return logits / scale

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        weights = self.weights(me, ups)
        holds: Holds = "probabilities" if self.how.opinions == "probabilities" else "logits"
        blend = self.teachers(ups).blend("logits", weights, holds)  # Eq. 8
        loss = distillation(self.how.server_loss, self.temperature, self.center_logits)  # Eqs. 9, 10
        sharp = self._sharpness(blend.shape[1])
        if self.how.wary and (label := one_class(blend)) is not None:
            me.notes.append(
                f"{ONE_CLASS_BLEND} ({me.model.labels[label]}) for nearly all public rows of round {me.round}: clients "
                "learn from their own rows instead."
            )
        own = sharp if self.how.server_sharpen is None else self.how.server_sharpen
        learn = partial(me.distill, self._sharp(blend, own), loss, settings=self._settings(me.spec.distill))
        if self.how.answer == "blend":
            me.meanwhile(learn)
            return Answer(self._sharp(blend, sharp))
        learn()
        return Answer(me.predict())

    def _sharpness(self, classes: int) -> float:
        return self.how.sharpen if self.how.sharpen is not None else sharpness(classes)

    def _sharp(self, blend: Tensor, by: float) -> Tensor:
        """The blend as logits to learn from."""
        if by:
            return blend / by
        return blend.clamp(min=1e-12).log() if self.how.opinions == "probabilities" else blend

    def teachers(self, ups: Replies[Opinion]) -> Replies[Opinion]:
        """The opinions to blend, on one scale; centred if each class has its own weights."""
        if self.needs_sum_only or (self.how.opinions == "logits" and not self.per_class):
            return ups
        return ups.change("logits", self.on_scale)

    def on_scale(self, logits: Tensor) -> Tensor:
        """An opinion as it is blended."""
        if self.how.opinions == "probabilities":
            return logits.softmax(-1)
        if self.how.opinions == "unit_spread":
            return unit_spread(logits)
        return centred(logits) if self.per_class else logits

    @property
    def needs_sum_only(self) -> bool:
        """Whether the sum of opinions is all that the server uses: clients then put theirs on the scale themselves."""
        return isinstance(self.weigher, Uniform) and not (self.per_sample or self.per_class or self.competence)

    def masked_weights(self) -> Weights:
        """Equal weights; those by loss need the losses."""
        return "uniform" if self.needs_sum_only else super().masked_weights()

    def _settings(self, settings: S) -> S | None:
        return settings.model_copy(update={"restart": "epoch"}) if self.reading == "released" else None

    def weights(self, me: Server, ups: Replies[Opinion]) -> Tensor:
        """w_k as [K], or finer as [K, N or 1, C or 1]; they sum to one over the clients."""
        if self.needs_sum_only:
            return uniform(len(ups))
        weights = ups.cap(self.weigher(me, ups, ups.column("loss")))  # Eq. 6 or 7
        me.observe("losses", dict(zip(ups, ups.column("loss").tolist(), strict=True)))
        me.observe_weights(dict(zip(ups, weights.tolist(), strict=True)))
        if not (self.per_class or self.per_sample or self.competence):
            return weights
        fine = weights[:, None, None]
        if self.per_class and isinstance(self.weigher, ENWC):
            fine = by_class(self.weigher.current(me), ups.column("class_losses").double(), fine)
        if self.competence:
            fine = by_competence(fine, ups.shares, ups.column("competence").double())
        if self.per_sample:
            fine = by_certainty(fine, ups.column("logits").double())
        return fine

    def leaks(self) -> str | None:
        """A private client ignores what a reading does; what an experiment asks for is refused."""
        reads_rows = {
            "rehearsal": self.rehearsal,
            "settling": self.settling,
            "foreign": self.foreign == "apart",
            "wary": self.wary,
            "veto": self.veto,
            "calibrate": self.calibrate,
            "loss: validation": self.loss == "validation",
            "loss_scale": self.loss_scale == "label_entropy",
            "competence": self.competence,
            "prior": self.prior,
            self.weigher.title: self.weigher.wants_f1,
        }
        asked = [option for option, is_on in reads_rows.items() if is_on]
        return f"reads private rows for `{asked[0]}`" if asked else None

    @property
    def title(self) -> str:
        """The paper's name of the variant."""
        finer = "".join(f" {name}" for name in ("per_sample", "per_class", "competence") if getattr(self, name))
        changed = [f" {name}={value}" for name in OPTIONS if (value := getattr(self, name)) is not None]
        reading = {"comparable": "AdaFD", "paper": "AdaFD (paper)", "released": "AdaFD as released"}[self.reading]
        return f"{reading} w/ {self.weigher.title}{finer}{''.join(changed)}{' prior' if self.prior else ''}"

    @property
    def blends_raw_logits(self) -> bool:
        """As the paper has it; not by default."""
        return self.how.opinions == "logits" and not self.how.calibrate

    def reads(self) -> frozenset[str]:
        """The loss, and what the chosen options send."""
        how = {
            "loss": not self.needs_sum_only,
            "class_losses": self.per_class,
            "f1": self.weigher.wants_f1,
            "labelled_logits": self.weigher.wants_labelled,
            "competence": self.competence,
        }
        return frozenset(f"Opinion.{name}" for name, is_read in how.items() if is_read)

    def requires(self) -> frozenset[str]:
        """The public set, and what the chosen options need."""
        labelled = {"labelled"} if self.weigher.wants_labelled else set()
        return self.needs | self.weigher.needs | labelled
