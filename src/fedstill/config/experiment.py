"""The experiment, typed: everything a run needs, with a default for nearly all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.common.construct import settings_of
from fedstill.common.errors import FedstillError
from fedstill.common.plugins import absolute, name_of, nearest
from fedstill.common.settings import Settings
from fedstill.common.words import counted, listed
from fedstill.config.mistakes import Misplaced, read_settings, sentences
from fedstill.config.source import Source, dump
from fedstill.config.specs import Clients, ClientSpec, MemorySpec, WireSpec
from fedstill.data.corpora import CorpusSpec
from fedstill.data.corpora.spec import FILES
from fedstill.data.partition import PartitionSpec
from fedstill.data.public import PublicSpec
from fedstill.learning.fast import Fast
from fedstill.learning.phases import PhaseSettings
from fedstill.learning.private import PrivacySettings
from fedstill.models import ModelSpec
from fedstill.parties.party import PartySpec, TrainSettings
from fedstill.wire import blends, codecs
from fedstill.wire.blends import Blending, MaxShare
from fedstill.wire.codecs import Codecs
from fedstill.wire.faults import UNDER_MASKS, Fault

EXPERIMENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Allowed names of experiments; folders are named after them."""


class Experiment(Settings):
    """Everything a run needs; `fedstill.run(Experiment(...))` runs it.

    `corpus` may also be rows in memory (a DataFrame, a `datasets.Dataset`, a list of mappings, or such tables by name,
    as in a `datasets.DatasetDict`), and `algorithm` an object such as `fedstill.AdaFD(temperature=2)`:

    >>> import fedstill
    >>> fedstill.Experiment(algorithm=fedstill.AdaFD(temperature=2), rounds=1).algorithm
    {'name': 'AdaFD', 'temperature': 2}
    """

    name: str = Field("experiment", pattern=EXPERIMENT_NAME)
    corpus: CorpusSpec = CorpusSpec(name="tweets")
    labels: list[str] | None = None
    """Their order is the order of the classes; taken from the whole corpus when not given."""
    partition: PartitionSpec = PartitionSpec()
    public: PublicSpec | None = None
    """Another corpus to take the public samples from."""
    clients: Clients = ModelSpec(name="bert-tiny")
    """One model for all, a list (clients sorted by name; a short list is repeated), or client -> {model: ..., ...}."""
    server: ModelSpec = ModelSpec(name="bert-tiny")
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "AdaFD"})
    train: TrainSettings = TrainSettings()
    distill: PhaseSettings = PhaseSettings()
    """Settings that are not given here are those of `train`."""
    rounds: int = Field(3, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    """Share of the clients that are active in a round; every round draws again."""
    quorum: float = Field(1.0, ge=0, le=1)
    """Share of the active clients that must answer; if fewer do, the run ends."""
    client_tests: Literal["pooled", "own"] = "pooled"
    """In a simulation: clients are measured on the test rows of all clients, or only on their own."""
    alone: Literal["first", "rounds"] = "first"
    """What members are compared with at the end: each client's first training, or, in a simulation, everybody alone
    for as many rounds, which is run first, into the folder `alone` of the run. `fedstill run` takes `rounds`."""
    measure: Literal["test", "validation"] = "test"
    """The rows that scores are about. `validation`, to choose settings by: half of each client's validation rows take
    the place of its test rows, which nothing reads."""
    seed: int = Field(0, ge=0)
    engine: str = "local"
    """A run started by torchrun always uses its ranks; `torchrun` is an error without them. `flare` is a real
    federation, which `fedstill federation` runs."""
    workers: int | Literal["auto"] = "auto"
    """Processes that share the clients; auto: one per core."""
    threads: int = Field(1, ge=1)
    """CPU threads of each party; another number changes the rounding of gradients."""
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    fast: Fast = Fast()
    """Techniques that do the same work in less time; false: none of them, as in Hugging Face's own code."""
    memory: MemorySpec = MemorySpec()
    save_every: int = Field(1, ge=1)
    """Rounds between two checkpoints."""
    report_to: Literal["auto"] | list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = "auto"
    """Who is told the numbers of every round besides the record; auto: TensorBoard where it is installed."""
    wire: WireSpec = WireSpec()
    blend: str | dict[str, Any] = "auto"
    """How opinions or parameters become one: `mean` as in the papers, or one that lets no liar win: `agreement`,
    `median`, `trimmed`, `cronus`, `clipped`, `expguard`; {name: ..., option: value} sets options. auto: `agreement`
    for opinions, `mean` for parameters and under masks."""
    max_share: MaxShare = "auto"
    """The most that one client may weigh, whatever it tells about its loss, size or label counts; auto: one half, or 3
    of K clients' shares if that is less; null: no limit, as in the papers."""
    privacy: PrivacySettings | None = None
    """What may become known of any one private row: {kind: head, epsilon: 3}; null: nothing is promised."""
    faults: list[Fault] = Field(default_factory=list)
    """Clients that lie or fail, in a simulation: [{kind: flip, share: 0.2}, ...]."""

    _made: tuple[dict[str, Any], Algorithm] | None = PrivateAttr(None)
    """The algorithm, and the settings that it was made from."""

    def __init__(self, **values: Any) -> None:
        """An experiment in a program: the keys of a file, in all their short forms; mistakes are sentences."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FedstillError(sentences(error, Experiment, lambda path: "Experiment", values)) from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # files are validated without it

    @field_validator("labels")
    @classmethod
    def _different(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (len(value) < 2 or len(set(value)) < len(value)):
            raise ValueError("must be two or more different names")
        return value

    @field_validator("algorithm", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, Algorithm):
            return {"name": name_of(value)}
        if isinstance(value, Algorithm):
            return settings_of(value)
        options = {"name": value} if isinstance(value, str) else value
        if isinstance(options, dict) and isinstance(options.get("name", "AdaFD"), str):
            plain = {key: settings_of(part) if _is_made(part) else part for key, part in options.items()}
            return {**plain, "name": absolute(options.get("name", "AdaFD"))}
        return options

    @field_validator("workers")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be at least 1, or auto")
        return value

    @model_validator(mode="after")
    def _checked(self) -> Experiment:
        checks: list[tuple[Sequence[str | int], Callable[[], object]]] = [
            (["algorithm"], lambda: self.method),
            (["wire"], self.codecs),
            (["blend"], self.blending),
            (["faults"], self._refuse_faults),
            (["wire", "mask"], self._refuse_masks),
            (["server"], self.server.check),
        ]
        if isinstance(self.clients, ModelSpec):
            checks.append((["clients"], self.clients.check))
        elif isinstance(self.clients, list):
            checks += [(["clients", number], spec.check) for number, spec in enumerate(self.clients)]
        else:
            checks += [(["clients", name], spec.model.check) for name, spec in self.clients.items()]
        for path, check in checks:
            try:
                check()
            except FedstillError as error:
                raise Misplaced(path, error) from error
        return self

    def changed(self, **changes: Any) -> Experiment:
        """The same experiment with other values for some keys, checked again.

        >>> fedstill.Experiment(rounds=5).changed(algorithm=fedstill.Local()).algorithm
        {'name': 'Local'}
        """
        return Experiment(**{name: getattr(self, name) for name in self.model_fields_set} | changes)

    @property
    def method(self) -> Algorithm:
        """The algorithm as an object, made once from its settings."""
        if self._made is None or self._made[0] is not self.algorithm:
            self._made = (self.algorithm, algorithms.make(self.algorithm))
        return self._made[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    def __getstate__(self) -> dict[Any, Any]:
        """Without the algorithm: another process cannot unpickle a user's class before it has loaded it."""
        return super().__getstate__() | {"__pydantic_private__": {"_made": None}}

    def codecs(self) -> Codecs:
        """The codecs of `wire`, and the method's own where `wire` sets none."""
        own = self.method.codecs
        chosen = {kind: getattr(self.wire, kind) for kind in ("opinions", "parameters")}
        return replace(own, **{kind: codecs.make(spec) for kind, spec in chosen.items() if spec is not None})

    def blending(self) -> Blending:
        """How replies are blended."""
        only_mean = self.wire.mask is not None or not self.method.blends
        chosen = Blending(blends.make("mean" if self.blend == "auto" and only_mean else self.blend), self.max_share)
        if not (chosen.is_mean or self.method.blends):
            raise FedstillError(f"{type(self.method).__name__} uses every client's reply by itself: it has no blend.")
        return chosen

    def _refuse_faults(self) -> None:
        if self.faults and self.engine == "flare":
            raise FedstillError("faults are for simulations: nobody is made to lie in a federation.")

    def _refuse_masks(self) -> None:
        if self.wire.mask is None:
            return
        self.method.masked_weights()
        if not self.blending().is_mean:
            raise FedstillError(
                "a robust blend compares single replies, and masks leave only their sum: `blend: mean`."
            )
        if self.codecs().shrink:
            raise FedstillError("masked numbers cannot be shrunk: under masks the codecs of `wire` are fp32.")
        if liars := [fault.kind for fault in self.faults if fault.kind not in UNDER_MASKS]:
            raise FedstillError(
                f"{liars[0]} changes a single reply, which masks hide: {', '.join(UNDER_MASKS)} do not."
            )

    def server_spec(self) -> PartySpec:
        """The server's model and settings."""
        return PartySpec(self.server, self.train, _inherit(self.distill, self.train))

    def client_specs(self, names: Sequence[str]) -> dict[str, PartySpec]:
        """Every client's model and settings, by the names that the partition gave them."""
        if isinstance(self.clients, dict):
            unknown = [name for name in self.clients if name not in names]
            missing = [name for name in names if name not in self.clients]
            if unknown:
                raise FedstillError(
                    f"clients: the partition has no client {unknown[0]!r}; {nearest(unknown[0], names)}"
                )
            if missing:
                raise FedstillError(
                    f"clients: no model is given for {', '.join(missing)}; list every client, or one model for all."
                )
            return {name: self._client(self.clients[name]) for name in names}
        models = self.clients if isinstance(self.clients, list) else [self.clients]
        if not 0 < len(models) <= len(names):
            raise FedstillError(
                f"clients: {counted(len(models), 'model')} for {counted(len(names), 'client')} ({', '.join(names)}); "
                "give one for all, one each, or some that take turns."
            )
        distill = _inherit(self.distill, self.train)
        return {name: PartySpec(model, self.train, distill) for name, model in zip(names, cycle(models), strict=False)}

    def turns(self, names: Sequence[str]) -> list[str]:
        """A sentence if there are fewer models than clients, which then take turns."""
        if not isinstance(self.clients, list) or len(self.clients) == len(names):
            return []
        who = listed([f"{name} {spec.model}" for name, spec in self.client_specs(names).items()], len(self.clients) + 1)
        return [f"{counted(len(self.clients), 'model')} take turns among {len(names)} clients: {who}."]

    def _client(self, spec: ClientSpec) -> PartySpec:
        train = _inherit(spec.train, self.train)
        return PartySpec(spec.model, train, _inherit(spec.distill, _inherit(self.distill, train)))

    def resolved(self) -> Experiment:
        """The same experiment with inherited settings and absolute paths written out."""
        clients = self.clients
        if isinstance(clients, dict):
            specs = {name: self._client(spec) for name, spec in clients.items()}
            clients = {name: ClientSpec(model=s.model, train=s.train, distill=s.distill) for name, s in specs.items()}
        public = self.public and self.public.model_copy(update={"corpus": _with_whole_paths(self.public.corpus)})
        changes = {"corpus": _with_whole_paths(self.corpus), "public": public, "clients": clients}
        return self.model_copy(update={**changes, "distill": _inherit(self.distill, self.train)})

    def held_files(self) -> dict[str, bytes]:
        """Files for the rows that a program gave in memory, by name: `kept_in` a folder they are read from there."""
        return self.corpus.held_files() | (self.public.corpus.held_files() if self.public else {})

    def kept_in(self, folder: Path) -> Experiment:
        """The same experiment with rows that were given in memory in files of this folder."""
        public = self.public and self.public.model_copy(update={"corpus": self.public.corpus.kept_in(folder)})
        return self.model_copy(update={"corpus": self.corpus.kept_in(folder), "public": public})

    def to_yaml(self) -> str:
        """The whole experiment, defaults included."""
        return dump(self.resolved().model_dump(mode="json"))


def _with_whole_paths(corpus: CorpusSpec) -> CorpusSpec:
    """The corpus with absolute paths, which are valid from any folder."""
    if corpus.path is not None:
        # The paths of tasks are relative to this one and need no change.
        given = {key: value for key in FILES if (value := getattr(corpus, key)) and not corpus.held(key)}
        return corpus.model_copy(update={key: str(Path(value).expanduser().resolve()) for key, value in given.items()})
    if corpus.tasks is not None:
        return corpus.model_copy(
            update={"tasks": {task: part and _with_whole_paths(part) for task, part in corpus.tasks.items()}}
        )
    return corpus


def _is_made(value: object) -> bool:
    """Whether an option is an object, such as a weighting, and not the settings of one."""
    return is_dataclass(value) and not isinstance(value, type)


def _inherit(own: Any, general: BaseModel) -> Any:
    """`own`, with settings that it does not set taken from `general`."""
    inherited = {name: getattr(general, name) for name in general.model_fields_set if name in type(own).model_fields}
    chosen = {name: getattr(own, name) for name in own.model_fields_set}
    return type(own)(**(inherited | chosen))


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file and apply overrides; errors name the file and the line.

    >>> fedstill.load_experiment("shops.yaml", ["rounds=5", "train.rate=5e-4"]).rounds
    5
    """
    source = Source.read(Path(path))
    source.override(overrides)
    return from_source(source)


def load_begun(run: Path) -> Experiment:
    """The experiment of a run folder, wherever the folder is now."""
    return load_experiment(run / "experiment.yaml").kept_in(run.resolve())


def from_source(source: Source) -> Experiment:
    """The typed experiment."""
    return read_settings(source, Experiment)
