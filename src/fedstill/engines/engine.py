"""What every engine does the same way: rounds, draws, the crossing point, the journal and checkpoints.

An engine of its own says only how bytes reach clients (`deliver`) and how clients keep their state.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

from fedstill import algorithms
from fedstill.algorithms.base import Answers
from fedstill.common.errors import FedstillError
from fedstill.common.events import Measured, Noted, RoundDone, Saving, Tell
from fedstill.common.files import FileReference, file_name
from fedstill.common.randomness import generator
from fedstill.engines import checkpoint
from fedstill.engines.checkpoint import Manifest, folder_of
from fedstill.engines.host import export, message_types, owed, read_state, write_state
from fedstill.engines.journal import Journal
from fedstill.engines.seconds import Seconds, Slip
from fedstill.plan.needs import same_architecture
from fedstill.plan.plan import SERVER, Plan
from fedstill.wire.ledger import Ledger
from fedstill.wire.messages import BadMessage, Hello, Message, Sizes, check, check_measured, decode, encode
from fedstill.wire.replies import Failure, Replies


class Engine(ABC):
    """Conducts a run: it is the `fed` that algorithms see."""

    def __init__(self, plan: Plan, journal: Journal, tell: Tell) -> None:
        self.plan, self.journal, self.tell = plan, journal, tell
        self.algorithm = algorithms.make(plan.algorithm)
        self.types = message_types(self.algorithm)
        self.server = plan.make_server(tell)
        self.clients: Mapping[str, Hello] = {}
        self.active: Sequence[str] = ()
        self.round = 0
        self.rounds = plan.rounds
        self.ledger = Ledger()
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self.clock = Seconds()
        self._owed = cache(partial(owed, self.algorithm))

    # What an engine of its own provides

    @abstractmethod
    def deliver(self, parcels: Mapping[str, bytes]) -> Mapping[str, bytes | Failure]:
        """Bring each client its parcel and come back with its reply, or with why there is none."""

    @abstractmethod
    def save_clients(self) -> Mapping[str, FileReference]:
        """Bring the clients' states to disk."""

    @abstractmethod
    def restore_clients(self, files: Mapping[str, FileReference], round: int) -> None:
        """Let the clients go on from those states, which are those after that round."""

    @abstractmethod
    def export_clients(self) -> None:
        """Write the clients' models and predictions into the record."""

    @abstractmethod
    def close(self) -> None:
        """Let go of processes and files."""

    def judge(self, answered: Collection[str], failures: Sequence[Failure]) -> None:
        """Take note of who answered usably and who did not; an engine whose clients come and go does more with it."""
        for failure in failures:
            self._note(failure.client, f"no usable reply: {failure.reason}")

    # The run

    def conduct(self, after: Manifest | None = None) -> None:
        """All rounds from the beginning, or those after a checkpoint."""
        self._enter(0)
        with self.clock.spent("phases"):
            self._greet()
            self.algorithm.admit(self.server)
            answer = self._restore(after) if after is not None else self.algorithm.start(self)
        if after is None:
            self._write_ledger()
        self._write_seconds()
        for number in range(after.round + 1 if after else 1, self.rounds + 1):
            self._enter(number)
            self._draw()
            with self.clock.spent("phases"):
                answer = self.algorithm.round(self, answer)
                if self.algorithm.has_server_model:
                    with self.server.timed("measuring"):
                        self.server.evaluate("distilled")
            self._take(SERVER, self.server.metrics, self.server.notes)
            self._write_ledger()
            if number % self.plan.save_every == 0 or number == self.rounds:
                self._save(answer)
            self._write_seconds()
            self.tell(RoundDone(number, self.rounds, sum(self.ledger.totals.values())))
        self._enter(self.rounds + 1)  # so that the last digest draws what a next round's would
        with self.clock.spent("phases"):
            self.algorithm.finish(self, answer)
        self._take(SERVER, self.server.metrics, self.server.notes)
        self._write_ledger()
        self._write_seconds()
        self.tell(Saving())
        if self.algorithm.has_server_model:
            export(self.server, self.plan.folder)
        self.export_clients()

    @property
    def seconds(self) -> float:
        """Time spent on this run, that before an interruption included."""
        return self.seconds_before + time.monotonic() - self.started

    def call(self, verb: str, message: Answers = None, clients: Sequence[str] | None = None) -> Replies[Any]:
        """The one crossing point: encode, count, deliver, decode, check, count."""
        with self.clock.spent("calls"):
            return self._call(verb, message, clients)

    def _call(self, verb: str, message: Answers, clients: Sequence[str] | None) -> Replies[Any]:
        names = sorted(clients if clients is not None else self.active)
        parcels = self._pack(verb, message, names)
        messages: dict[str, Message] = {}
        failures: list[Failure] = []
        slips: list[Slip] = []
        with self.clock.spent("clients"):
            replies = self.deliver(parcels)
        for name in names:
            outcome = replies[name]
            try:
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                    continue
                raw, slip = Slip.take_off(outcome)
                messages[name] = self._open(verb, name, raw, _asked(message, name))
                slips.append(slip)
            except BadMessage as error:
                failures.append(Failure(name, str(error)))
        self.clock.account(slips)
        self.judge(messages, failures)
        enough = needed(self.plan.quorum, len(names))
        if len(messages) < enough:
            raise FedstillError(
                f"round {self.round}: {len(messages)} of {len(names)} clients answered, {enough} are needed "
                f"({_reasons(failures)})"
            )
        return Replies(messages, self.clients, tuple(failures))

    def _pack(self, verb: str, message: Answers, names: Sequence[str]) -> dict[str, bytes]:
        """The bytes for each client; what several receive is encoded and written down once."""
        envelope = {"verb": verb, "round": self.round}
        encoded: dict[int, bytes] = {}
        recipients: dict[bytes, list[str]] = {}
        for name in names:
            own = _for(message, name)
            if id(own) not in encoded:
                encoded[id(own)] = encode(own, envelope)
            # By content: two clients' answers that were one object are two after a resume.
            recipients.setdefault(encoded[id(own)], []).append(name)
        for raw, together in recipients.items():
            kind = type(_for(message, together[0])).__name__
            self.ledger.count("down", verb, kind, Sizes.of(raw), len(together))
        return {name: raw for raw, together in recipients.items() for name in together}

    def _open(self, verb: str, name: str, raw: bytes, asked: int) -> Message:
        """What a client sent, if it is what was agreed."""
        parcel = decode(raw, self.types)
        if parcel.message is None:
            raise BadMessage("an empty reply.")
        if parcel.envelope.get("round") != self.round:
            raise BadMessage(f"a reply for round {parcel.envelope.get('round')} in round {self.round}.")
        is_other = isinstance(parcel.message, Hello) != (verb == "hello")
        if is_other or not isinstance(parcel.message, self._owed(verb)):
            raise BadMessage(f"{type(parcel.message).__name__} is no reply to {verb}.")
        check(parcel.message, self.plan.dimensions | {"asked": asked})
        metrics, notes = parcel.envelope.get("metrics", []), parcel.envelope.get("notes", [])
        check_measured(metrics, notes)
        self.ledger.count("up", verb, type(parcel.message).__name__, parcel.sizes)
        self._take(name, metrics, notes)
        return parcel.message

    def _enter(self, round: int) -> None:
        self.round = self.ledger.round = round
        self.server.enter(round)

    def _greet(self) -> None:
        """Every client says what it has."""
        self.meet(self.call("hello", clients=list(self.plan.clients)).messages)

    def meet(self, clients: Mapping[str, Hello]) -> None:
        """Take them in; a public set or an architecture that differs where it must not is noticed."""
        for name, hello in clients.items():
            if hello.public_fingerprint != self.plan.public_fingerprint:
                raise FedstillError(
                    f"{name} holds another public set than the server: opinions would not fit together."
                )
        if "parameters" in self.algorithm.requires():
            same_architecture(self.algorithm, self.server, {n: hello.architecture for n, hello in clients.items()})
        self.clients = clients

    def _draw(self) -> None:
        """This round's active clients, from a generator that depends on seed and round only."""
        names = sorted(self.clients)
        many = max(1, round(self.plan.participation * len(names)))
        random = generator(self.plan.seed, self.round, "federation", "participants")
        self.active = names if many == len(names) else sorted(random.choice(names, many, replace=False).tolist())

    def _take(self, party: str, metrics: list[dict[str, Any]], notes: list[str]) -> None:
        """Write down what a party measured of itself (nobody speaks for another) and remarked."""
        measured = [metric | {"party": party} for metric in metrics]
        self.journal.write("metrics", measured)
        for metric in measured:
            self.tell(Measured(metric))
        for note in notes:
            self._note(party, note)
        metrics.clear()
        notes.clear()

    def _note(self, party: str, note: str) -> None:
        self.journal.write("log", [{"round": self.round, "party": party, "note": note}])
        self.tell(Noted(f"{party}: {note}"))

    def _write_seconds(self) -> None:
        """Where this round's time went: into the log, which differs from run to run."""
        seconds = self.clock.end(self.server.seconds)
        self.journal.write("log", [{"round": self.round, "active": len(self.active), "seconds": seconds}])
        self.server.seconds.clear()

    def _write_ledger(self) -> None:
        self.journal.write("ledger", self.ledger.lines())

    # State at round boundaries

    def _save(self, answer: Answers) -> None:
        run = self.plan.folder
        with self.clock.spent("state"):
            parties = dict(self.save_clients())
            parties[SERVER] = write_state(run, self.server, self.round)
        by_client = {"": answer} if not isinstance(answer, Mapping) else dict(answer)
        answers = {
            name: FileReference.write(folder_of(run), f"state/answer-{file_name(name)}.{self.round}", encode(message))
            for name, message in by_client.items()
        }
        manifest = Manifest(
            round=self.round,
            parties=parties,
            answer=answers,
            offsets=self.journal.offsets(),
            bytes=dict(self.ledger.totals),
            seconds=self.seconds,
            experiment=dict(self.plan.experiment),
            corpus=self.plan.corpus_fingerprint,
        )
        checkpoint.write(run, manifest)

    def _restore(self, manifest: Manifest) -> Answers:
        """Go back to that boundary; the answer that the next round starts from."""
        run = self.plan.folder
        self.ledger = Ledger()
        self.ledger.totals.update(manifest.bytes)
        self.seconds_before = manifest.seconds
        parties = dict(manifest.parties)
        self.server.set_state(read_state(run, parties.pop(SERVER)))
        self.restore_clients(parties, manifest.round)
        answers: dict[str, Message] = {}
        for name, reference in manifest.answer.items():
            data = reference.read(folder_of(run))
            assert data is not None  # `checkpoint.latest` has just checked it
            message = decode(data, self.types).message
            if message is None:
                return None
            answers[name] = message
        return answers.get("", answers)


def needed(quorum: float, asked: int) -> int:
    """How many of those who were asked must answer."""
    return max(1, math.ceil(quorum * asked - 1e-9))


def _for(message: Answers, name: str) -> Message | None:
    """What this client receives."""
    return message.get(name) if isinstance(message, Mapping) else message


def _asked(message: Answers, name: str) -> int:
    """About how many rows it was asked; any number will do where it was asked about none by name."""
    rows = getattr(_for(message, name), "rows", None)
    return -1 if rows is None else len(rows)


def _reasons(failures: Sequence[Failure]) -> str:
    """Why clients did not answer, each reason once."""
    clients: dict[str, list[str]] = {}
    for failure in failures:
        clients.setdefault(failure.reason.replace(failure.client, "..."), []).append(failure.client)
    return "; ".join(
        f"{', '.join(names)}: {reason if len(names) > 1 else reason.replace('...', names[0])}"
        for reason, names in clients.items()
    )
