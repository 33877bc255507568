"""A phase: one optimiser and one schedule over some epochs of one data set.

One loop (`Phase.run`) serves training and distilling. Re-creating the optimiser every epoch would change the method
(a fresh AdamW's first step is sign descent), so the optimiser lives exactly as long as the phase, unless `restart`
says otherwise: some papers' released code does re-create it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.common.randomness import Stream
from fedstill.common.settings import Settings
from fedstill.data.examples import Examples, Labelled
from fedstill.learning.fast import card, fast_of
from fedstill.learning.fast.vocabulary import shrink
from fedstill.learning.losses import Loss, ce
from fedstill.learning.precision import Precision, autocast, full
from fedstill.learning.predict import forward, predict

Watch = Callable[[int, int, float], None]
"""(steps done, steps in all, loss of the last finished epoch or NaN): called a few times an epoch."""

WATCH_EVERY = 20

OptimiserName = Literal["adamw", "adafactor", "sgd"]


class PhaseSettings(Settings):
    """How a phase learns. A rate of None means the default rate of the model's family."""

    epochs: int = Field(3, ge=0)
    batch: int = Field(32, ge=1)
    rate: float | None = Field(None, gt=0)
    rate_factor: float = Field(1.0, gt=0)
    """So many times the rate, whichever it is: one setting for models of several families."""
    optimiser: OptimiserName = "adamw"
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of the steps over which the rate rises from zero."""
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    clip: float | None = Field(None, gt=0)
    """Largest norm of the whole gradient."""
    restart: Literal["never", "epoch", "batch"] = "never"
    """When the optimiser forgets everything and the schedule, still that of the whole phase, begins again."""

    def rate_for(self, family: float) -> float:
        """The rate of a model whose family's default is `family`."""
        return self.rate_factor * (family if self.rate is None else self.rate)


@dataclass(frozen=True)
class EpochLosses:
    """What a phase saw: the sample-weighted mean of the train-mode batch losses of every epoch."""

    mean: list[float]
    by_class: list[list[float]]
    """By epoch and class; NaN for a class that did not occur. Empty when the targets were not classes."""

    def best(self) -> int:
        """The epoch with the smallest mean."""
        return min(range(len(self.mean)), key=self.mean.__getitem__)


@dataclass(frozen=True)
class Passes:
    """Several passes of each batch: through the model, each with its own dropout, and once through a teacher, if any.

    The loss then gets the logits of all passes, [student passes, then the teacher's, batch, classes].
    """

    student: int = 1
    teacher: nn.Module | None = None
    """A frozen model, in eval mode."""
    before_epoch: Callable[[], object] | None = None

    def logits(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The logits of every pass over the batch."""
        many = len(next(iter(batch.values())))
        repeated = {name: torch.cat([value] * self.student) for name, value in batch.items()}
        logits = forward(model, repeated)
        logits = logits.reshape(self.student, many, -1)
        if self.teacher is None:
            return logits
        with torch.no_grad():
            taught = forward(self.teacher, batch)
        return torch.cat([logits, taught[None]])

    def parts(self, batch: Examples) -> list[Examples]:
        """What the model itself is asked: the batch, once a pass."""
        return [batch] * self.student

    def together(self, *logits: Tensor, taught: Tensor | None) -> Tensor:
        """The logits of all passes, given one by one."""
        return torch.stack([*logits, *([] if taught is None else [taught.to(logits[0])])])


def optimiser(
    settings: PhaseSettings, rate: float, parameters: list[nn.Parameter], is_fused: bool = True
) -> torch.optim.Optimizer:
    """The optimiser of a phase; by default torch's fused version, where there is one."""
    fused = True if is_fused else None  # None: torch chooses, and takes several passes over the parameters
    if settings.optimiser == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=settings.weight_decay, fused=fused)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused
        )
    return torch.optim.Adafactor(parameters, lr=rate, weight_decay=settings.weight_decay)


def share_of_rate(settings: PhaseSettings, step: int, steps: int) -> float:
    """The factor on the rate at a step (counted from 0) of a phase of `steps` steps."""
    warm = math.ceil(settings.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    if settings.schedule == "linear":
        return max(0.0, 1.0 - done)
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return 1.0


class Phase:
    """One optimiser, one schedule and one stream of randomness over a known number of steps."""

    def __init__(
        self,
        model: nn.Module,
        data: Examples,
        settings: PhaseSettings,
        rate: float,
        seed: int,
        precision: Precision = "fp32",
        steps: int | None = None,
    ) -> None:
        self.model, self.data, self.settings, self.rate, self.precision = model, data, settings, rate, precision
        epoch = math.ceil(len(data) / settings.batch)
        self.steps = steps if steps is not None else settings.epochs * epoch
        self.lasts = {"never": math.inf, "epoch": max(1, epoch), "batch": 1}[settings.restart]
        """The steps from one restart to the next."""
        self.taken = 0
        self.was_run = False
        """Whether all its epochs were run: its optimiser may have forgotten by then."""
        self.is_on_card = False
        """Whether a GPU's fast path is taking a step just now."""
        self.device = next(model.parameters()).device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = optimiser(settings, rate, self.parameters, fast_of(model).optimiser)
        self.stream = Stream(seed, self.device)
        self.order = torch.Generator().manual_seed(seed)

    @property
    def current_rate(self) -> float:
        """The rate of the next step."""
        return self.rate * share_of_rate(self.settings, int(self.taken % self.lasts), self.steps)

    def step(self, rows: Tensor, loss: Callable[..., Tensor], also: Examples | None = None) -> Tensor:
        """One optimiser step on those rows of the data; `loss` maps their logits to a scalar. Returns the loss.

        The logits of other rows, `also`, are the loss's second argument. The loss must not ask for more of the model.
        """
        assert not self.was_run, "this phase is over"
        parts = [self.data.pick(rows.numpy()), *([] if also is None else [also])]
        if (value := self._step_on_card(parts, loss)) is not None:
            return value
        with self.stream():
            logits = [self.logits(part, torch.arange(len(part))) for part in parts]
            value = loss(*logits)
            self.descend(value)
            return value.detach()

    def _step_on_card(self, parts: list[Examples], loss: Callable[..., Tensor]) -> Tensor | None:
        """The loss of a step that a GPU's fast path takes; None where it cannot."""
        self.is_on_card = True
        try:
            value = card.step(self, parts, loss)
        finally:
            self.is_on_card = False
        if value is not None:
            self.taken += 1
        return value

    def gradient_norm(self, value: Tensor) -> float:
        """Inside a step's loss: the norm of this value's gradient with respect to the parameters."""
        if (norm := card.gradient_norm(self, value)) is not None:
            return norm
        found = torch.autograd.grad(value, self.parameters, retain_graph=True, allow_unused=True)
        return float(torch.stack([part.norm() for part in found if part is not None]).norm())

    def _step(
        self, data: Examples, rows: Tensor, loss: Callable[[Tensor], Tensor], passes: Passes | None = None
    ) -> Tensor:
        value = loss(self.logits(data, rows, passes))
        self.descend(value)
        return value.detach()

    def _step_in_run(
        self, rows: Tensor, loss: Callable[[Tensor], Tensor], passes: Passes | None, taught: Tensor | None
    ) -> None:
        """The same by a GPU's fast path; `taught` is what the teacher says to all rows of the data."""
        batch = self.data.pick(rows.numpy())
        if passes is None:
            self._step_on_card([batch], loss)
        else:
            own = None if taught is None else taught[rows]
            self._step_on_card(passes.parts(batch), lambda *logits: loss(passes.together(*logits, taught=own)))

    def logits(self, data: Examples, rows: Tensor, passes: Passes | None = None) -> Tensor:
        """The logits of those rows of any data in train mode; inside a step's loss, it learns from them too."""
        self.model.train()
        with autocast(self.device, self.precision):
            batch = data.batch(rows, self.device, training=True)
            logits = forward(self.model, batch) if passes is None else passes.logits(self.model, batch)
        return full(logits)

    def descend(self, value: Tensor) -> None:
        """One optimiser step on a loss of the model's outputs, at the schedule's rate."""
        card.heed_stop()
        if self.taken % self.lasts == 0:
            self.optimiser.state.clear()  # optimisers fill it at their first step: empty, they are as new
        for group in self.optimiser.param_groups:
            group["lr"] = self.current_rate
        value.backward()  # type: ignore[no-untyped-call]
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.taken += 1

    def spoken(self, data: Examples) -> Tensor:
        """The logits of the data in one batch in train mode, dropout and all, without learning; on the CPU."""
        if (said := card.spoken(self, data)) is not None:
            return said
        with self.stream(), torch.no_grad():
            return self.logits(data, torch.arange(len(data))).cpu()

    def loss(self, data: Labelled, train_mode: bool = False) -> Tensor:
        """The mean cross-entropy on labelled rows, in eval mode unless told otherwise."""
        logits = self.spoken(data) if train_mode else predict(self.model, data, self.precision)
        return ce(logits, data.labels).mean()

    def _refuse_divergence(self, mean: float, epoch: int) -> None:
        if not math.isfinite(mean):
            raise FedstillError(
                f"the loss became {mean} in epoch {epoch}: lower the rate ({self.rate:g}), or set `clip`."
            )

    def run(
        self,
        targets: Tensor,
        loss: Loss,
        class_weights: Tensor | None = None,
        watch: Watch | None = None,
        until: Callable[[], bool] | None = None,
        passes: Passes | None = None,
    ) -> EpochLosses:
        """Run all epochs on (data, targets), shuffled every epoch; stop after an epoch for which `until()` is true.

        A phase is run once, or stepped.
        """
        assert self.taken == 0, "this phase has begun already"
        self.was_run = True
        if len(targets) != len(self.data):
            raise FedstillError(f"{len(targets)} targets for {len(self.data)} samples: they must be as many.")
        if until is None and passes is None and (quick := self._on_card(targets, loss, class_weights)) is not None:
            self.taken = self.steps
            for number, mean in enumerate(quick[0], 1):
                self._refuse_divergence(mean, number)
            if watch:
                watch(self.steps, self.steps, quick[0][-1])
            return EpochLosses(*quick)
        targets = targets.to(self.device)
        class_weights = None if class_weights is None else class_weights.to(self.device)
        means: list[float] = []
        by_class: list[list[float]] = []
        on_card = card.can_step(self, self.data)
        with self.stream(), self._own_words(passes, on_card) as (data, whole):
            for _ in range(self.settings.epochs):
                tally, taught = _Tally(self.device), None
                if passes is not None and passes.before_epoch is not None:
                    with whole():
                        passes.before_epoch()
                if on_card and passes is not None and passes.teacher is not None:
                    taught = predict(passes.teacher, data, self.precision)
                for rows in torch.split(torch.randperm(len(data), generator=self.order), self.settings.batch):
                    wanted = targets[rows.to(self.device)]
                    tallied = partial(tally.add, wanted=wanted, loss=loss, weights=class_weights)
                    if on_card:
                        self._step_in_run(rows, tallied, passes, taught)
                    else:
                        self._step(data, rows, tallied, passes)
                    if watch and self.taken % WATCH_EVERY == 0:
                        watch(self.taken, self.steps, means[-1] if means else math.nan)
                mean, classwise = tally.read()
                means.append(mean)
                by_class.append(classwise)
                self._refuse_divergence(mean, len(means))
                if watch:
                    watch(self.taken, self.steps, mean)
                if until is not None:
                    with whole():
                        is_over = until()
                    if is_over:
                        break
        return EpochLosses(means, by_class)

    def _on_card(self, targets: Tensor, loss: Loss, class_weights: Tensor | None) -> card.Losses | None:
        """The losses of the whole phase run by a GPU's fast path; None where that cannot run it."""
        if self.settings.restart != "epoch":
            return card.learn(self, targets, loss, class_weights)
        means: list[float] = []
        by_class: list[list[float]] = []
        for epoch in range(self.settings.epochs):
            if (quick := card.learn(self._one_epoch(epoch), targets, loss, class_weights)) is None:
                return None
            means += quick[0]
            by_class += quick[1]
        return (means, by_class) if means else None

    def _one_epoch(self, number: int) -> Phase:
        """An epoch after which the optimiser restarts, as a phase: its rates begin as those of the whole phase do."""
        settings = self.settings.model_copy(update={"epochs": 1, "restart": "never"})
        seed = self.order.initial_seed() + number
        return Phase(self.model, self.data, settings, self.rate, seed, self.precision, self.steps)

    @contextmanager
    def _own_words(
        self, passes: Passes | None, on_card: bool
    ) -> Iterator[tuple[Examples, Callable[[], AbstractContextManager[None]]]]:
        """Inside, the model may have only the data's words; gives the data to use, and a context with all words."""
        settings = self.settings
        others_stay = settings.optimiser in ("adamw", "sgd") and settings.weight_decay == 0
        is_alone = passes is None or passes.teacher is None  # a teacher gets the same ids, so they must not change
        can = fast_of(self.model).vocabulary and others_stay and is_alone and not on_card
        shrunk = shrink(self.model, self.data) if can else None
        if shrunk is None:
            yield self.data, nullcontext
            return
        vocabulary, data = shrunk
        with vocabulary.in_use(self.parameters, self.optimiser):
            yield data, vocabulary.laid_aside


class _Tally:
    """Sums of losses over an epoch, kept on the device so that no step waits for a copy."""

    def __init__(self, device: torch.device) -> None:
        self.samples = 0
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.by_class: Tensor | None = None

    def add(self, logits: Tensor, wanted: Tensor, loss: Loss, weights: Tensor | None) -> Tensor:
        each = loss(logits, wanted)
        value = each.mean() if weights is None else (each * weights[wanted]).sum() / weights[wanted].sum()
        self.samples += len(wanted)
        self.total += value.detach() * len(wanted)
        if wanted.ndim == 1:
            if self.by_class is None:
                self.by_class = torch.zeros(logits.shape[-1], 2, device=logits.device, dtype=torch.float64)
            self.by_class.index_add_(0, wanted, torch.stack([each.detach(), torch.ones_like(each)], 1).double())
        return value

    def read(self) -> tuple[float, list[float]]:
        mean = float(self.total) / max(1, self.samples)
        return mean, [] if self.by_class is None else (self.by_class[:, 0] / self.by_class[:, 1]).tolist()


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights that make all classes that occur count the same: n / (classes that occur * n_c), 0 for the others."""
    counts = torch.bincount(labels, minlength=classes).float()
    present = counts > 0
    return torch.where(present, len(labels) / (present.sum() * counts.clamp(min=1)), torch.zeros(()))
