"""What a client and the server have in common: a model, public samples, a memory, and the verbs of learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.common.events import Step, Tell, tell_nobody
from fedstill.common.randomness import Noise, SystemNoise, generator, key
from fedstill.data.corpus import Ints
from fedstill.data.examples import NO_ROWS, Examples, Labelled
from fedstill.learning.losses import Loss, joint, task_ce
from fedstill.learning.phases import EpochLosses, Passes, Phase, PhaseSettings, class_weights
from fedstill.learning.precision import Precision
from fedstill.learning.predict import generate, predict
from fedstill.models import Model, ModelSpec
from fedstill.models.text_to_text import TextToText
from fedstill.parties.evaluation import NOT_MEASURED, Evaluation
from fedstill.parties.memory import Memory

BETWEEN = "\x1f"
"""Separates, in a state's keys, a tensor's name from what a codec remembers of it; no name contains it."""

Stage = Literal["trained", "distilled", "processed"]

ONE_CLASS = "predicts one class"
"""In a note that says so of a party."""
ONE_CLASS_BLEND = "the blend names one class"
"""A note that says so of a round begins with it."""


class TrainSettings(PhaseSettings):
    """How a party trains on its own labels."""

    epochs: int = Field(3, ge=1)
    max_length: int = Field(128, ge=4)
    rows: int | None = Field(None, ge=1)
    """The most rows that a party trains on, drawn again every round; null: all of them."""
    class_weights: Literal["none", "balanced"] = "none"
    heads: Literal["union", "task"] = "union"
    """With several tasks: whether a row's label competes with the labels of all tasks, or only of its own task."""


@dataclass(frozen=True)
class PartySpec:
    """A party's model and how it learns, as the experiment says."""

    model: ModelSpec
    train: TrainSettings
    distill: PhaseSettings


@dataclass(frozen=True)
class PartyData:
    """The rows that a party holds: only those that it may see."""

    public: Examples
    train: Labelled = NO_ROWS
    validation: Labelled = NO_ROWS
    evaluation: Evaluation = NOT_MEASURED
    labelled: Examples = NO_ROWS
    """Public rows whose labels the server keeps; a client's copy has no labels."""


@dataclass(frozen=True)
class Surroundings:
    """What a party computes with, and where it reports progress."""

    seed: int
    device: torch.device
    precision: Precision
    tell: Tell = tell_nobody
    """Reports progress; does not influence the results."""
    is_real: bool = False
    """Whether the rows are an organisation's own, not those of a simulation: then no seed may give noise away."""


def _makes_nothing(spec: ModelSpec, name: str) -> Model:
    raise FedstillError(f"{name}: this party cannot have a second model ({spec}).")


@dataclass
class Party:
    """A model, its data, its memory, and the verbs."""

    name: str
    spec: PartySpec
    data: PartyData
    around: Surroundings
    make_model: Callable[[], Model]
    make_extra: Callable[[ModelSpec, str], Model] = _makes_nothing
    """Builds a further model, which must have the party's own tokenizer."""
    round: int = 0
    memory: Memory = field(default_factory=Memory)
    wire: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """What codecs remember of earlier messages; only they use it."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """What was measured and has not been sent yet; only these numbers are sent, never the rows."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the record: a fallback taken, a limit reached."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the `timed` work in this round, by name."""

    def __post_init__(self) -> None:
        self._model: Model | None = None
        self._scored: Tensor | None = None
        self._has_learnt = False
        """Whether the model changed in this round."""
        self._phases: dict[str, Phase] = {}
        self._opened: dict[str, int] = {}
        self._extras: dict[str, Party] = {}
        self._sleeping: dict[str, dict[str, Tensor]] = {}
        """States of second models that were restored but not used since."""

    @property
    def model(self) -> Model:
        """Built on first use: a method without a server model never pays for one."""
        if self._model is None:
            with self.timed("building"):
                self._model = self.make_model()
                self._model.module.to(self.around.device)
        return self._model

    @property
    def has_model(self) -> bool:
        """Whether the model was ever used."""
        return self._model is not None

    @property
    def has_open_phase(self) -> bool:
        """Whether a phase is open: its optimiser is not part of the state, so the party must stay in memory."""
        return bool(self._phases)

    def enter(self, round: int) -> None:
        """Begin a round: open phases end, and random numbers come from the round's own keys."""
        if round != self.round:
            self.round = round
            self._has_learnt = False
            self._phases.clear()
            self._opened.clear()
            for extra in self._extras.values():
                extra.enter(round)

    def generator(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose of this party in this round."""
        return generator(self.around.seed, self.round, self.name, purpose)

    def noise(self, purpose: str) -> Noise:
        """Noise for one purpose: at a real site from the operating system, for nobody to draw again."""
        return SystemNoise() if self.around.is_real else self.generator(purpose)

    def observe(self, what: str, values: Mapping[str, float]) -> None:
        """Put numbers of the method itself into the record: weights, a learnt beta."""
        self.metrics.append({"round": self.round, "party": self.name, "observation": what, "values": dict(values)})

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time of this part of the round's work to `seconds`, under a name."""
        started = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - started

    # The verbs

    def train(
        self,
        data: Examples | None = None,
        loss: Loss | None = None,
        passes: Passes | None = None,
        settings: TrainSettings | None = None,
    ) -> EpochLosses:
        """One phase of cross-entropy (or another loss) on the party's own labelled rows (or those given)."""
        data, settings = self._labelled(self.training_rows() if data is None else data), settings or self.spec.train
        weights = class_weights(data.labels, len(self.model.labels)) if settings.class_weights == "balanced" else None
        return self._run("train", data, settings, data.labels, loss or self.label_loss(), weights, passes=passes)

    def training_rows(self, limit: int | None = None) -> Labelled:
        """The party's own labelled rows; if there are more than the limit or `train.rows`, so many drawn at random."""
        data = self._labelled(self.data.train)
        many = min(len(data), limit or len(data), self.spec.train.rows or len(data))
        return data if many == len(data) else data.pick(self.generator("rows").choice(len(data), many, replace=False))

    def labelled_rows(self) -> Labelled:
        """The public rows with the labels that the server keeps; raises for a client, which does not have them."""
        return self._labelled(self.data.labelled)

    def _labelled(self, data: Examples) -> Labelled:
        if not isinstance(data, Labelled) or not len(data):
            raise FedstillError(f"{self.name} has no labelled rows to train on.")
        return data

    def label_loss(self) -> Loss:
        """The loss that this model minimises on labelled rows."""
        if self.spec.train.heads == "task" and self.model.label_tasks is not None:
            return partial(task_ce, label_tasks=self.model.label_tasks.to(self.around.device))
        return self.model.loss

    def frozen_copy(self, parameters: Mapping[str, Tensor] | None = None) -> nn.Module:
        """A copy that is not trained, to be a teacher: the model as it is now, or with these parameters."""
        copy = deepcopy(self.model.module).requires_grad_(False).eval()
        if parameters is not None:
            copy.load_state_dict(dict(parameters))
        return copy

    def distill(
        self,
        targets: Tensor,
        loss: Loss,
        rows: Ints | None = None,
        also: Labelled | None = None,
        settings: PhaseSettings | None = None,
        until: Callable[[], bool] | None = None,
        data: Examples | None = None,
    ) -> EpochLosses:
        """Train one phase towards a teacher's logits on the public samples (or on these rows, or on other data).

        `also` mixes in labelled rows, whose loss is the cross-entropy with their labels. `until` is called after every
        epoch; the phase ends early when it returns true.
        """
        data = data if data is not None else self.data.public
        data = data if rows is None else data.pick(rows)
        if also is not None and len(also):
            targets = torch.cat(
                [F.pad(targets, (0, 1), value=-1.0), F.pad(also.labels[:, None].to(targets), (targets.shape[1], 0))]
            )
            data, loss = Examples(data.store, np.concatenate([data.rows, also.rows])), joint(loss)
        return self._run("distill", data, settings or self.spec.distill, targets, loss, until=until)

    def predict(self, data: Examples | None = None) -> Tensor:
        """The logits of the public samples (or of other rows), in eval mode."""
        data = data if data is not None else self.data.public
        if not len(data):
            return torch.empty(0, len(self.model.labels))
        return predict(self.model.module, data, self.around.precision)

    def phase(
        self, name: str, steps: int, settings: PhaseSettings | None = None, data: Examples | None = None
    ) -> Phase:
        """The open phase of this name, for conversations step by step; it stays open until the round ends."""
        if name not in self._phases:
            data = data if data is not None else self.data.public
            self._phases[name] = self._open(name, data, settings or self.spec.distill, steps)
        self._scored = None
        return self._phases[name]

    def new_phase(self, name: str, data: Examples, settings: PhaseSettings) -> Phase:
        """A phase over all epochs of these rows; the party does not keep it, and the caller runs it at once."""
        return self._open(name, data, settings)

    def extra(self, name: str, spec: ModelSpec | None = None) -> Party:
        """A second model of this party, as a party over the same rows; kept from round to round and never sent."""
        if name not in self._extras:
            model = self.make_extra(spec or self.spec.model, f"{self.name}'s {name}")
            model.module.to(self.around.device)
            own = replace(self.spec, model=model.spec)
            extra = Party(f"{self.name}'s {name}", own, self.data, self.around, lambda: model, round=self.round)
            if name in self._sleeping:
                extra.set_state(self._sleeping.pop(name))
                extra.enter(self.round)  # the restored state may be that of an earlier round
            self._extras[name] = extra
        return self._extras[name]

    def parameters(self) -> dict[str, Tensor]:
        """A copy of the model's parameters and buffers, on the CPU."""
        return {name: _copy(value) for name, value in self.model.module.state_dict().items()}

    def set_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Take these parameters; raises if they are another architecture's."""
        try:
            self.model.module.load_state_dict(dict(parameters))
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise FedstillError(f"{self.name} ({self.spec.model}) cannot take these parameters: {reason}") from error
        self.changed()

    def evaluate(self, stage: Stage, round: int | None = None) -> None:
        """Measure the model on the evaluation rows; only the numbers are sent."""
        evaluation = self.data.evaluation
        if not len(evaluation.data):
            return
        about = {"round": self.round if round is None else round, "party": self.name, "stage": stage}
        measured = evaluation.measure(self.scored(), self._written(evaluation))
        self.metrics += [about | {"split": split} | values for split, values in measured.items()]
        if self._has_learnt and stage != "trained" and (label := evaluation.only_class(self.scored())) is not None:
            named = f"{ONE_CLASS} ({self.model.labels[label]}) for nearly all test rows"
            self.notes.append(f"{self.name} {named} after round {about['round']}.")

    def changed(self) -> None:
        """Say that the model has changed: for methods that write to its module themselves, past every verb."""
        self._scored, self._has_learnt = None, True

    def scored(self) -> Tensor:
        """The logits of the evaluation rows, computed again only after the model has changed."""
        if self._scored is None:
            self._scored = self.predict(self.data.evaluation.data)
        return self._scored

    def _written(self, evaluation: Evaluation) -> dict[str, npt.NDArray[np.float64]]:
        """For a model that writes text: for every row, whether it writes the row's label."""
        module = self.model.module
        if not isinstance(module, TextToText):
            return {}
        written = generate(module, evaluation.data, self.around.precision)
        right = module.same_word(written, torch.from_numpy(evaluation.labels))
        return {"generated_accuracy": right.double().numpy()}

    def _open(self, name: str, data: Examples, settings: PhaseSettings, steps: int | None = None) -> Phase:
        times = self._opened[name] = self._opened.get(name, 0) + 1
        purpose = name if times == 1 else f"{name}#{times}"
        self.changed()
        rate = settings.rate_for(self.model.rate)
        seed = key(self.around.seed, self.round, self.name, purpose)
        return Phase(self.model.module, data, settings, rate, seed, self.around.precision, steps)

    def _run(
        self,
        name: str,
        data: Examples,
        settings: PhaseSettings,
        targets: Tensor,
        loss: Loss,
        weights: Tensor | None = None,
        until: Callable[[], bool] | None = None,
        passes: Passes | None = None,
    ) -> EpochLosses:
        try:
            if not len(data):
                raise FedstillError("there are no rows to learn from.")
            phase = self._open(name, data, settings)
            return phase.run(targets, loss, weights, partial(self.tell, name, settings.epochs), until, passes)
        except FedstillError as error:
            raise FedstillError(f"{self.name}, {name} in round {self.round}: {error}") from error

    def tell(self, phase: str, epochs: int, done: int, steps: int, loss: float) -> None:
        """Report progress."""
        self.around.tell(Step(self.name, phase, done, steps, epochs, loss))

    # State: defined at round boundaries only

    def state(self, wire: Mapping[str, Mapping[str, Tensor]] | None = None) -> dict[str, Tensor]:
        """Everything that the next round needs, as one flat mapping; `wire` in place of what codecs remember now."""
        wire = self.wire if wire is None else wire
        state = {f"model/{name}": value for name, value in self.parameters().items()} if self.has_model else {}
        # How often each phase was opened in this round: a client may be moved to disk between two calls of one round.
        state |= {f"opened/{self.round}/{name}": torch.tensor(times) for name, times in self._opened.items()}
        extras = self._sleeping | {name: extra.state() for name, extra in self._extras.items()}
        state |= {f"extra/{name}/{part}": value for name, parts in extras.items() for part, value in parts.items()}
        state |= {f"wire/{name}{BETWEEN}{part}": v for name, parts in wire.items() for part, v in parts.items()}
        return state | {name: _copy(value) for name, value in self.memory.state().items()}

    def move(self, device: torch.device) -> None:
        """Move the models to a GPU, or from there to the host's pinned memory, which a GPU reads fastest."""
        for party in (self, *self._extras.values()):
            module = party.model.module
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_cuda and device.type == "cpu":
                    pinned = torch.empty_like(tensor, device=device, pin_memory=True)
                    tensor.data = pinned.copy_(tensor.data, non_blocking=True)
                else:
                    tensor.data = tensor.data.to(device, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def tensors(self) -> Iterator[Tensor]:
        """All tensors that take memory, those of second models included."""
        if self.has_model:
            yield from self.model.module.state_dict().values()
            yield from (p for p in self.model.module.parameters() if self.model.spec.lora and not p.requires_grad)
        yield from self.memory.tensors()
        for extra in self._extras.values():
            yield from extra.tensors()

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state."""
        model = {name.removeprefix("model/"): value for name, value in state.items() if name.startswith("model/")}
        if model:
            self.set_parameters(model)
        self.memory, self.wire, self._has_learnt = Memory.from_state(state), {}, False
        self._opened, self._extras, self._sleeping = {}, {}, {}
        for name, value in state.items():
            kind, _, rest = name.partition("/")
            if kind == "opened":
                round, _, phase = rest.partition("/")
                self.round = int(round)
                self._opened[phase] = int(value)
            elif kind == "extra":
                outer, _, part = rest.partition("/")
                self._sleeping.setdefault(outer, {})[part] = value
            elif kind == "wire":
                outer, _, part = rest.partition(BETWEEN)
                self.wire.setdefault(outer, {})[part] = value


def _copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU, contiguous as files need it."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
