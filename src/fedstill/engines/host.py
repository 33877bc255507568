"""A host: the clients that one process runs, what of them stays in memory, and where their time goes."""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import torch
from safetensors.torch import load, save, save_file

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.common.events import Rested, Tell
from fedstill.common.files import FileReference, file_name
from fedstill.engines.checkpoint import folder_of
from fedstill.engines.seconds import Slip
from fedstill.learning.fast import card
from fedstill.learning.fast.card import WIDEST
from fedstill.learning.precision import choose_device
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.plan.plan import Plan
from fedstill.wire.messages import Hello, Message, decode, encode


class Host:
    """Runs verbs on its clients. The least recently used over the limits sleep on the host, or on disk."""

    def __init__(self, plan: Plan, limit_bytes: int | None, tell: Tell) -> None:
        self.plan, self.limit_bytes, self.tell = plan, limit_bytes, tell
        self.algorithm = algorithms.make(plan.algorithm)
        self.types = message_types(self.algorithm)
        self.awake: OrderedDict[str, Client] = OrderedDict()
        self.dozing: set[str] = set()
        """Those of them whose models were moved from the GPU to the host."""
        self.files: dict[str, FileReference] = {}
        """The last state of each client that is on disk."""
        self.changed: set[str] = set()
        """Clients whose state is newer than their file."""
        self.closed: set[str] = set()
        """Clients that have heard their last verb: what sleeps of them is the model in the record."""
        self.before: dict[str, FileReference | None] = {}
        """What a client whose call fails goes back to, where a round can do without it; elsewhere the run ends."""
        self.round = 0
        self.bytes: dict[str, Counter[str]] = {}
        """Of the clients that are awake, by kind of device."""
        self.meeting: set[str] = set()
        """Clients that are at work at the same time."""
        self.number = secrets.randbits(63)

    def call(self, name: str, raw: bytes) -> bytes:
        """Run the verb in the envelope on a client; the reply carries its metrics and notes, and a slip."""
        parcel = decode(raw, self.types)
        if name in self.closed:
            raise FedstillError(f"{name} has closed: `close` is the last verb that a client can hear.")
        started = time.perf_counter()
        client = self._wake(name)
        self._enter(client, parcel.envelope["round"])
        verb = parcel.envelope["verb"]
        client.seconds.clear()
        awake, waited_s = time.perf_counter(), card.waited_s()
        try:
            message = verb_of(self.algorithm, verb)(self.algorithm, client, parcel.message)
        except BaseException:
            self._go_back(name)
            raise
        done = time.perf_counter()
        if verb != "hello":
            self.changed.add(name)
        if verb == "close":
            self.closed.add(name)
        metrics, client.metrics = client.metrics, []
        notes, client.notes = client.notes, []
        reply = encode(message, {"round": client.round, "metrics": metrics, "notes": notes})
        self.tell(Rested(name))
        encoded = time.perf_counter()
        self._make_room(except_for=name)
        built = client.seconds.get("building", 0.0)
        state_s = awake - started + built + time.perf_counter() - encoded
        phases_s = done - awake - built - (card.waited_s() - waited_s)
        return Slip(phases_s, state_s, self.number).stick(reply)

    @property
    def at_once(self) -> int:
        """How many clients can be called at the same time: several where a GPU can stack their phases."""
        return WIDEST if self.plan.fast.graphs and choose_device(self.plan.device).type == "cuda" else 1

    def save(self, round: int) -> dict[str, FileReference]:
        """Bring every changed client's state to disk; the files of all clients that have one."""
        for name in sorted(self.changed):
            self._store(name, round)
        return self.files

    def restore(self, files: Mapping[str, FileReference]) -> None:
        """Go on from those files, whatever was awake before."""
        self.awake.clear()
        self.changed.clear()
        self.closed.clear()
        self.files = dict(files)

    def export(self, name: str) -> None:
        """Write a client's model and predictions into the record, if it ever learnt anything, and forget it."""
        if name in self.files or name in self.changed:
            export(self._wake(name), self.plan.folder)
            del self.awake[name]
            self.changed.discard(name)
            self.files.pop(name, None)

    def _enter(self, client: Client, round: int) -> None:
        """A client's state is defined at round boundaries: one that fails in a round was not there in it."""
        if round != self.round:
            self.round = round
            self.before.clear()
        if self.plan.quorum < 1 and client.name not in self.before:
            if client.name in self.changed:
                self._store(client.name, client.round)
            self.before[client.name] = self.files.get(client.name)
        client.enter(round)

    def _go_back(self, name: str) -> None:
        del self.awake[name]
        if name in self.before:
            self.changed.discard(name)
            self.files.pop(name, None)
            if (file := self.before[name]) is not None:
                self.files[name] = file

    def _wake(self, name: str) -> Client:
        if name not in self.awake:
            client = self.plan.make_client(name, self.tell)
            if name in self.files:
                client.set_state(read_state(self.plan.folder, self.files[name]))
            self.awake[name] = client
        elif name in self.dozing:
            self.awake[name].move(self.awake[name].around.device)
        self.dozing.discard(name)
        self.awake.move_to_end(name)
        return self.awake[name]

    def _make_room(self, except_for: str) -> None:
        """Keep to the limits of the GPU, and then to those of the host."""
        self._weigh(except_for)
        staying = self.meeting | {except_for} | {name for name, client in self.awake.items() if client.has_open_phase}
        for name in in_excess(self._bytes_on("cuda"), self.plan.device_bytes, staying):
            self.awake[name].move(torch.device("cpu"))
            self.dozing.add(name)
            self._weigh(name)
        for name in in_excess(self._bytes_on("cpu"), self.limit_bytes, staying):
            if name in self.closed:
                self.export(name)
                continue
            if name in self.changed:
                self._store(name, self.awake[name].round)
            del self.awake[name]

    def _weigh(self, name: str) -> None:
        self.bytes[name] = Counter()
        for tensor in self.awake[name].tensors():
            # Torch gives out pinned memory in powers of two.
            own = 1 << (tensor.nbytes - 1).bit_length() if name in self.dozing else tensor.nbytes
            self.bytes[name][tensor.device.type] += own

    def _bytes_on(self, kind: str) -> dict[str, int]:
        return {name: self.bytes[name][kind] for name in self.awake if self.bytes[name][kind]}

    def _store(self, name: str, round: int) -> None:
        self.files[name] = write_state(self.plan.folder, self.awake[name], round)
        self.changed.discard(name)


def in_excess(bytes: Mapping[str, int], limit: int | None, staying: Collection[str]) -> list[str]:
    """Who must go, the first first, for the others to fit; those who are staying never do."""
    left, going = sum(bytes.values()), []
    for name, own in bytes.items():
        if limit is not None and left > limit and name not in staying:
            going.append(name)
            left -= own
    return going


def message_types(algorithm: Algorithm) -> dict[str, type[Message]]:
    """What may travel for this algorithm."""
    types: list[type[Message]] = [Hello, *algorithm.messages]
    return {cls.__name__: cls for cls in types}


def verb_of(algorithm: Algorithm, verb: str) -> Callable[..., Message | None]:
    """The method of the algorithm's class that a call names; nothing else can be called."""
    method = getattr(type(algorithm), verb, None)
    if verb.startswith("_") or not callable(method):
        raise FedstillError(f"{type(algorithm).__name__} has no verb {verb!r}.")
    return method  # type: ignore[no-any-return]


def owed(algorithm: Algorithm, verb: str) -> tuple[type[Message], ...]:
    """The kinds of message that a verb's method promises to return; of a turn, those that `opine` does."""
    for method in (verb_of(algorithm, verb), algorithm.opine) if verb == "turn" else (verb_of(algorithm, verb),):
        try:
            promised = get_type_hints(method).get("return", Message)
        except NameError:  # a user's own class may name what is there for type checkers only
            continue
        kinds = tuple(k for k in get_args(promised) or (promised,) if isinstance(k, type) and issubclass(k, Message))
        if kinds and Message not in kinds:
            return kinds
    return (Message,)


def write_state(run: Path, party: Party, round: int) -> FileReference:
    """A party's state as its own immutable file (party, round)."""
    return FileReference.write(
        folder_of(run), f"state/{file_name(party.name)}.{round}.safetensors", save(party.state())
    )


def read_state(run: Path, reference: FileReference) -> dict[str, torch.Tensor]:
    """A state from its file, if it is what was written."""
    data = reference.read(folder_of(run))
    if data is None:
        raise FedstillError(
            f"the state file {folder_of(run) / reference.file} is gone or was changed while the run used it."
        )
    state: dict[str, torch.Tensor] = load(data)
    return state


def export(party: Party, run: Path) -> None:
    """Write a party's model, and its predictions on the pooled test, into the record."""
    party.model.save(run / "models" / file_name(party.name))
    evaluation = party.data.evaluation
    if evaluation is None or not len(evaluation.splits.get("test", ())):
        return
    rows = evaluation.splits["test"]
    tensors = {
        "rows": torch.from_numpy(evaluation.data.rows[rows]),
        "labels": torch.from_numpy(evaluation.labels[rows]),
        "predicted": torch.from_numpy(evaluation.decide(party.scored())[rows]),
        "logits": party.scored()[rows].contiguous(),
    }
    folder = run / "predictions"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / f"{file_name(party.name)}.safetensors")
