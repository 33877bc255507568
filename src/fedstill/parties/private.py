"""A client's privacy: rows that nothing but noisy learning may read, opinions with noise, and what both have spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load, save
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.common.randomness import Stream
from fedstill.data.examples import Labelled
from fedstill.learning.epsilon import Budget
from fedstill.learning.features import mean_states
from fedstill.learning.losses import kl
from fedstill.learning.phases import EpochLosses
from fedstill.learning.private import (
    Descent,
    PrivacySettings,
    noisy_descent,
    noisy_head,
    noisy_opinions,
    public_components,
)
from fedstill.wire.messages import Done, Hello, Message, Opinion, Scores

if TYPE_CHECKING:
    from fedstill.parties.client import Client

TAKEN = "noisy steps taken"
"""Where a client's memory counts them."""
EPSILON = "epsilon"
"""The observation of what was spent and is left."""
SAYS_NOTHING = 1.0
"""The loss that a private client tells: the true one would tell about its rows."""


class Sealed(Labelled):
    """Private rows whose number is public; only `unsealed` reads them."""

    def __init__(self, rows: Labelled) -> None:
        object.__setattr__(self, "_inside", rows)

    def __len__(self) -> int:
        return len(self.unsealed)

    @property
    def unsealed(self) -> Labelled:
        """The rows themselves, for noisy learning."""
        inside: Labelled = object.__getattribute__(self, "_inside")
        return inside

    def __getattr__(self, name: str) -> Any:
        if name in ("store", "rows", "labels"):
            raise FedstillError("the method reads private rows otherwise than by training, which `privacy` forbids.")
        raise AttributeError(name)


@dataclass(frozen=True)
class Privacy:
    """What a client may tell about its rows in a run."""

    settings: PrivacySettings
    rounds: int
    opinions: int
    """How many opinions it gives in the whole run: one a public sample and round."""
    folder: Path | None = None
    """Where a real site keeps what has noise, before it leaves: the noise must never be drawn again."""

    def train(self, me: Client, rows: Labelled) -> EpochLosses:
        """Learn from the rows as far as the budget goes; when it is spent, do nothing."""
        budget, noise = self.budget(len(rows)), me.noise("privacy")
        taken = int(me.memory.numbers.get(TAKEN, 0))
        share = budget.steps if self.settings.kind == "head" else -(-budget.steps // self.rounds)
        if steps := min(share, budget.steps - taken):
            how = Descent.of(self.settings, budget, steps, noise)
            (self._teach if self.settings.kind == "head" else self._descend)(me, rows, how, budget, taken)
        self._count(me, budget, taken + steps)
        return EpochLosses([SAYS_NOTHING], [[SAYS_NOTHING] * len(me.model.labels)])

    def budget(self, rows: int) -> Budget:
        """The budget of a client with so many rows."""
        return self.settings.budget(rows, self.opinions)

    def _teach(self, me: Client, rows: Labelled, how: Descent, budget: Budget, taken: int) -> None:
        """Train a private head on the encoder as it is; its opinions on public rows, free from then on, teach it."""
        module, precision = me.model.module, me.around.precision
        public = mean_states(module, me.data.public, precision)
        project = public_components(public, self.settings.dimensions)

        def head() -> dict[str, Tensor]:
            own = project(mean_states(module, rows, precision))
            return {"head": noisy_head(own, rows.labels, len(me.model.labels), how)}

        weights = self._once(f"head-{taken}", head)["head"]
        me.distill((project(public) @ weights.T).float(), kl)

    def _descend(self, me: Client, rows: Labelled, how: Descent, budget: Budget, taken: int) -> None:
        def learnt() -> dict[str, Tensor]:
            # A known stream would let every row's dropout depend on which rows came before it.
            secret = int(float(how.noise.random(1)[0]) * 2**53)
            with Stream(secret, me.around.device)():
                noisy_descent(me.model.module, rows, me.label_loss(), how, budget.rate, me.around.precision)
            return me.parameters()

        me.set_parameters(self._once(f"model-{taken}", learnt))

    def released(self, me: Client, message: Message | None) -> Message | None:
        """A message that may leave: opinions with noise, and nothing else that private rows have touched."""
        if self.settings.is_learning or message is None or isinstance(message, Hello):
            return message
        if type(message) not in (Opinion, Scores, Done):
            raise FedstillError(f"privacy: {self.settings.kind} cover opinions only, not {type(message).__name__}.")
        me.metrics[:] = [line for line in me.metrics if "observation" not in line]
        changes: dict[str, Any] = {}
        for item in fields(message):
            value = getattr(message, item.name)
            if item.metadata.get("kind") == "opinions" and value is not None:
                changes[item.name] = self._noisy(me, value)
            elif value is not None:
                changes[item.name] = SAYS_NOTHING if item.name == "loss" else None
        return replace(message, **changes)

    def _noisy(self, me: Client, said: Tensor) -> Tensor:
        budget, taken = self.budget(len(me.data.train)), int(me.memory.numbers.get(TAKEN, 0))
        if taken + len(said) > budget.steps:
            raise FedstillError(
                f"privacy: {me.name} has given {taken:,} opinions, and {budget.steps:,} are within its epsilon."
            )
        deviation = budget.noise() * sqrt(2)  # the distance between two votes, or of probabilities at most
        noise = me.noise(f"privacy {taken}")
        made = self._once(f"said-{taken}", lambda: {"said": noisy_opinions(said, self.settings.kind, deviation, noise)})
        self._count(me, budget, taken + len(said))
        return made["said"]

    def _count(self, me: Client, budget: Budget, taken: int) -> None:
        me.memory.numbers[TAKEN] = taken
        spent = budget.spent(budget.noise(), taken)
        me.observe(EPSILON, {"spent": spent, "left": max(0.0, budget.epsilon - spent)})

    def _once(self, name: str, compute: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What was computed; at a real site the first time only, even if the site's process has died since."""
        if self.folder is None:
            return compute()
        file = self.folder / f"{name}.safetensors"
        if not file.exists():
            write_whole(file, save(dict(compute())))
        found: dict[str, Tensor] = load(file.read_bytes())
        return found
