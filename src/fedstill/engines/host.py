"""A host: the clients that one process runs, which of them stay in memory, and where their time goes."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save, save_file

from fedstill.common.errors import FedstillError
from fedstill.common.events import Rested, Tell
from fedstill.common.files import MODELS, FileReference, file_name, follow_umask, write_whole
from fedstill.common.traces import keep_trace
from fedstill.engines.checkpoint import folder_of
from fedstill.engines.hosting import Request
from fedstill.engines.seconds import Slip
from fedstill.learning.fast import card
from fedstill.learning.fast.card import WIDEST
from fedstill.learning.precision import choose_device
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.plan.agreement import verb_of
from fedstill.plan.plan import Plan
from fedstill.wire.crossing import Crossing, Leaving
from fedstill.wire.guard import form_of
from fedstill.wire.masks import KEY_BYTES, REVEAL, Veil
from fedstill.wire.messages import Message


class Host:
    """Runs verbs on its clients, and keeps within the memory limits.

    A client is awake while it is in this process's memory. Above a limit, the least recently used clients doze (their
    models are moved from the GPU to the host's memory) or sleep (their states are in files only).
    """

    def __init__(self, plan: Plan, tell: Tell, leaving: Sequence[Leaving] = ()) -> None:
        self.plan, self.tell, self.leaving = plan, tell, leaving
        self.algorithm = plan.experiment.method
        self.awake: OrderedDict[str, Client] = OrderedDict()
        self.dozing: set[str] = set()
        """Awake clients whose models were moved from the GPU to the host."""
        self.files: dict[str, FileReference] = {}
        """The last state that was written to disk, by client."""
        self.changed: set[str] = set()
        """Clients whose state is newer than their file."""
        self.closed: set[str] = set()
        """Clients after their last verb: to make room, their model is written to the record instead of their state."""
        self.before: dict[str, FileReference | None] = {}
        """The state that a client returns to if its call fails, if the quorum allows that; otherwise the run ends."""
        self.round = 0
        self.bytes: dict[str, Counter[str]] = {}
        """Bytes of the awake clients, by kind of device."""
        self.meeting: set[str] = set()
        """Clients that are working at the same time now."""
        self.number = secrets.randbits(63)

    def answer(self, request: Request) -> bytes:
        """Do what is asked; returns the reply."""
        if request.what == "call":
            return self.call(request.client, request.payload)
        if request.what == "save":
            return json.dumps({name: asdict(file) for name, file in self.save(request.round).items()}).encode()
        if request.what == "restore":
            files = json.loads(request.payload)
            self.restore({name: FileReference(**file) for name, file in files.items()})
        elif request.what == "export":
            self.export(request.client)
        return b""

    def call(self, name: str, raw: bytes) -> bytes:
        """Run the verb in the envelope on a client; the reply carries its metrics and notes, and a `Slip`."""
        if name in self.closed:
            raise FedstillError(f"{name} has closed: `close` is the last verb that a client can run.")
        started = time.perf_counter()
        client = self.wake(name)
        crossing = Crossing(
            self.plan.agreement, client, leaving=self.leaving, form_of=lambda _: form_of(client.kind.module)
        )
        parcel = crossing.call(raw)
        self._enter(client, parcel.envelope["round"])
        verb = parcel.envelope["verb"]
        veil = self._veil(client, parcel.envelope)
        if veil is not None:
            crossing.leaving = [*self.leaving, veil.over]  # last: whatever else looks at a message sees it unmasked
        client.seconds.clear()
        awake, waited_s = time.perf_counter(), card.waited_s()
        try:
            if verb == REVEAL and veil is not None:
                message: Message | None = veil.reveal(parcel.message)
            else:
                message = client.released(verb_of(self.algorithm, verb)(self.algorithm, client, parcel.message))
            done = time.perf_counter()
            metrics, client.metrics = client.metrics, []
            notes, client.notes = client.notes, []
            envelope = {"round": client.round, "metrics": metrics, "notes": notes}
            reply = crossing.answer(message, envelope, client.round)
        except BaseException as error:
            self._go_back(name)
            if not self.plan.is_real:  # a site's worker has a log of its own
                keep_trace(error, self.plan.folder, f"{name}, {verb} of round {client.round}")
            raise
        if verb != "hello":
            self.changed.add(name)
        if verb == "close":
            self.closed.add(name)
        self.tell(Rested(name))
        encoded = time.perf_counter()
        self._make_room(except_for=name)
        built = client.seconds.get("building", 0.0)
        state_s = awake - started + built + time.perf_counter() - encoded
        phases_s = done - awake - built - (card.waited_s() - waited_s)
        return Slip(phases_s, state_s, self.number, client.seconds.get("digest", 0.0)).stick(reply)

    @property
    def at_once(self) -> int:
        """How many clients can be called at the same time: several where a GPU can stack their phases."""
        return (
            WIDEST
            if self.plan.experiment.fast.graphs and choose_device(self.plan.experiment.device).type == "cuda"
            else 1
        )

    def save(self, round: int) -> dict[str, FileReference]:
        """Write every changed client's state to disk; returns the files of all clients that have one."""
        for name in sorted(self.changed):
            self._store(name, round)
        return self.files

    def restore(self, files: Mapping[str, FileReference]) -> None:
        """Continue from these files, and drop all clients in memory."""
        self.awake.clear()
        self.changed.clear()
        self.closed.clear()
        self.files = dict(files)

    def export(self, name: str) -> None:
        """Write a client's model and predictions into the record, if it ever learnt anything, and forget it."""
        if name in self.files or name in self.changed:
            export(self.wake(name), self.plan.folder)
            del self.awake[name]
            self.changed.discard(name)
            self.files.pop(name, None)

    def _veil(self, client: Client, envelope: Mapping[str, Any]) -> Veil | None:
        """What masks the client's reply, if the experiment says so."""
        spec = self.plan.experiment.wire.mask
        if spec is None:
            return None
        return Veil(client.name, client.size, self._master(client.name), spec, envelope, client.notes)

    def _master(self, name: str) -> bytes:
        """The secret that a client's keys are made of: from the seed in a simulation, else a file of its own."""
        if self.plan.experiment.engine != "flare":
            return hashlib.sha256(f"{self.plan.experiment.seed}/{name}/masks".encode()).digest()
        path = self.plan.folder / f"masks-{file_name(name)}.key"
        if not path.exists():
            write_whole(path, secrets.token_bytes(KEY_BYTES))
            path.chmod(0o600)
        return path.read_bytes()

    def _enter(self, client: Client, round: int) -> None:
        """Begin a client's round; first save its state if it may fail: a client that fails misses the whole round."""
        if round != self.round:
            self.round = round
            self.before.clear()
        if self.plan.experiment.quorum < 1 and client.name not in self.before:
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

    def wake(self, name: str) -> Client:
        """The client, in memory and on its device; made, or read from its file, if it was not."""
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
        """Move clients away until the GPU's limit holds, and then the host's."""
        if except_for in self.bytes and self.awake[except_for].has_open_phase:
            return  # in the middle of a conversation, where it stays and hardly changes its weight
        self._weigh(except_for)
        staying = self.meeting | {except_for} | {name for name, client in self.awake.items() if client.has_open_phase}
        for name in in_excess(self._bytes_on("cuda"), self.plan.device_bytes, staying):
            self.awake[name].move(torch.device("cpu"))
            self.dozing.add(name)
            self._weigh(name)
        for name in in_excess(self._bytes_on("cpu"), self.plan.host_bytes, staying):
            if name in self.closed:
                self.export(name)
                continue
            if name in self.changed:
                self._store(name, self.awake[name].round)
            del self.awake[name]

    def _weigh(self, name: str) -> None:
        self.bytes[name] = Counter()
        for tensor in self.awake[name].tensors():
            # Torch allocates pinned memory in powers of two.
            own = 1 << (tensor.nbytes - 1).bit_length() if name in self.dozing else tensor.nbytes
            self.bytes[name][tensor.device.type] += own

    def _bytes_on(self, kind: str) -> dict[str, int]:
        return {name: self.bytes[name][kind] for name in self.awake if self.bytes[name][kind]}

    def _store(self, name: str, round: int) -> None:
        self.files[name] = write_state(self.plan.folder, self.awake[name], round)
        self.changed.discard(name)


def in_excess(bytes: Mapping[str, int], limit: int | None, staying: Collection[str]) -> list[str]:
    """The clients to move away, in the given order, until the others fit; never those that are staying."""
    left, going = sum(bytes.values()), []
    for name, own in bytes.items():
        if limit is not None and left > limit and name not in staying:
            going.append(name)
            left -= own
    return going


def write_state(
    run: Path, party: Party, round: int, wire: Mapping[str, Mapping[str, torch.Tensor]] | None = None
) -> FileReference:
    """Write a party's state to its own file, named after party and round, which never changes.

    `wire` stands for what codecs remember, where that has changed since.
    """
    name = f"state/{file_name(party.name)}.{round}.safetensors"
    return FileReference.write(folder_of(run), name, save(party.state(wire)))


def read_state(run: Path, reference: FileReference) -> dict[str, torch.Tensor]:
    """The state in a file; raises if the file has changed since it was written."""
    data = reference.read(folder_of(run))
    if data is None:
        raise FedstillError(
            f"the state file {folder_of(run) / reference.file} is gone or was changed while the run used it."
        )
    state: dict[str, torch.Tensor] = load(data)
    return state


def export(party: Party, run: Path) -> None:
    """Write a party's model, and its predictions on the pooled test, into the record."""
    party.model.save(run / MODELS / file_name(party.name))
    evaluation = party.data.evaluation
    if not len(evaluation.splits.get("test", ())):
        return
    rows = evaluation.splits["test"]
    tensors = {
        "rows": torch.from_numpy(evaluation.data.rows[rows]),
        "labels": torch.from_numpy(evaluation.labels[rows]),
        "predicted": torch.from_numpy(evaluation.decide(party.scored())[rows]),
        "logits": party.scored()[rows].contiguous(),
    }
    path = run / "predictions" / f"{file_name(party.name)}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    follow_umask([path])
