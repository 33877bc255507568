"""A host: the clients that one process runs, and what of them stays in memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save, save_file

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.engines.checkpoint import folder_of
from fedstill.engines.plan import Plan
from fedstill.errors import FedstillError
from fedstill.files import FileReference, file_name
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.wire.messages import Hello, Message, decode, encode


class Host:
    """Runs verbs on its clients. Those over the memory limit sleep on disk until they are called again."""

    def __init__(self, plan: Plan, limit_bytes: int | None, tell: Callable[[dict[str, Any]], None]) -> None:
        self.plan, self.limit_bytes, self.tell = plan, limit_bytes, tell
        self.algorithm = algorithms.make(plan.algorithm)
        self.types = message_types(self.algorithm)
        self.awake: OrderedDict[str, Client] = OrderedDict()
        self.files: dict[str, FileReference] = {}
        """The last state of each client that is on disk."""
        self.changed: set[str] = set()
        """Clients whose state is newer than their file."""
        self.before: dict[str, dict[str, torch.Tensor]] = {}
        """What a client whose call fails goes back to, where a round can do without it; elsewhere the run ends."""

    def call(self, name: str, raw: bytes) -> bytes:
        """Run the verb in the envelope on a client; the reply carries its metrics and notes."""
        parcel = decode(raw, self.types)
        started = time.perf_counter()
        client = self._wake(name)
        self._enter(client, parcel.envelope["round"])
        verb = parcel.envelope["verb"]
        try:
            message = verb_of(self.algorithm, verb)(self.algorithm, client, parcel.message)
        except BaseException:
            del self.awake[name]
            if name in self.before:
                self._wake(name).set_state(self.before[name])
            raise
        if verb != "hello":
            self.changed.add(name)
        metrics, client.metrics = client.metrics, []
        notes, client.notes = client.notes, []
        reply = encode(message, {"round": client.round, "metrics": metrics, "notes": notes})
        self.tell({"party": name, "phase": "done", "seconds": time.perf_counter() - started})
        self._send_to_sleep(except_for=name)
        return reply

    def save(self, round: int) -> dict[str, FileReference]:
        """Bring every changed client's state to disk; the files of all clients that have one."""
        for name in sorted(self.changed):
            self._store(name, round)
        return self.files

    def restore(self, files: Mapping[str, FileReference]) -> None:
        """Go on from those files, whatever was awake before."""
        self.awake.clear()
        self.changed.clear()
        self.files = dict(files)

    def export(self, name: str) -> None:
        """Write a client's model and predictions into the record, if it ever learnt anything."""
        if name in self.files or name in self.changed:
            export(self._wake(name), self.plan.folder)
            self._send_to_sleep(except_for=name)

    def _enter(self, client: Client, round: int) -> None:
        """A client's state is defined at round boundaries: one that fails in a round was not there in it."""
        if self.plan.quorum < 1 and (client.round != round or client.name not in self.before):
            self.before[client.name] = client.state()
        client.enter(round)

    def _wake(self, name: str) -> Client:
        if name not in self.awake:
            client = self.plan.make_client(name, self.tell)
            if name in self.files:
                client.set_state(read_state(self.plan.folder, self.files[name]))
            self.awake[name] = client
        self.awake.move_to_end(name)
        return self.awake[name]

    def _send_to_sleep(self, except_for: str) -> None:
        if self.limit_bytes is None:
            return
        total = sum(_bytes(client) for client in self.awake.values())
        for name, client in list(self.awake.items()):
            if total <= self.limit_bytes:
                return
            if name != except_for and not client.has_open_phase:
                if name in self.changed:
                    self._store(name, client.round)
                total -= _bytes(client)
                del self.awake[name]

    def _store(self, name: str, round: int) -> None:
        self.files[name] = write_state(self.plan.folder, self.awake[name], round)
        self.changed.discard(name)


def _bytes(client: Client) -> int:
    return sum(value.nbytes for value in client.tensors())


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
