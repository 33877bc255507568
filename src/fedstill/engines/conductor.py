"""The conductor: rounds, draws, calls and checkpoints, the same on every engine; the `fed` that algorithms see."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from fedstill.algorithms.base import Answers
from fedstill.common.errors import FedstillError
from fedstill.common.events import RoundDone, Saving
from fedstill.common.files import FileReference, file_name
from fedstill.common.randomness import generator
from fedstill.common.traces import in_words
from fedstill.engines import checkpoint
from fedstill.engines.books import Books
from fedstill.engines.checkpoint import Manifest, folder_of
from fedstill.engines.engine import Engine
from fedstill.engines.host import export, read_state, write_state
from fedstill.engines.masking import Masking
from fedstill.engines.seconds import Seconds, Slip
from fedstill.plan.caution import Caution, cautions
from fedstill.plan.needs import same_architecture
from fedstill.plan.plan import Plan
from fedstill.wire.blends import Blending
from fedstill.wire.crossing import Crossing, asked_of
from fedstill.wire.encoding import decode, encode, seal
from fedstill.wire.faults import Faults
from fedstill.wire.guard import Form, form_of
from fedstill.wire.masks import is_masked
from fedstill.wire.messages import SERVER, BadMessage, Hello, M, Message
from fedstill.wire.replies import Failure, Replies


class Conductor:
    """Conducts a run over an engine."""

    def __init__(self, plan: Plan, books: Books, engine: Engine) -> None:
        self.plan, self.books, self.engine = plan, books, engine
        self.algorithm = plan.experiment.method
        self.blending = plan.experiment.blending()
        self.server = plan.make_server(books.tell)
        self.faults = Faults(plan.experiment.faults, list(plan.clients), plan.experiment.seed)
        arriving = [self.faults.arriving] if plan.experiment.faults else []
        self.crossing = Crossing(plan.agreement, self.server, books.ledger, arriving=arriving, form_of=self.form_of)
        self.masking = Masking(self, plan.experiment.wire.mask) if plan.experiment.wire.mask is not None else None
        self.forms: dict[str, Form] = {}
        """The parameters of every architecture that has sent some."""
        self.sizes: dict[str, int] = {}
        """n_k as each client first gave it."""
        self.clients: Mapping[str, Hello] = {}
        self.active: Sequence[str] = ()
        self.round = 0
        self.rounds = plan.experiment.rounds
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self.clock = Seconds()
        self.cautions: list[Caution] = []
        self.saved_soon = 0
        """The last round in which clients were told to save their states early."""

    def conduct(self, after: Manifest | None = None) -> None:
        """All rounds from the beginning, or those after a checkpoint."""
        answer = self.begin(after)
        for number in range(after.round + 1 if after else 1, self.rounds + 1):
            answer = self.play(number, answer)
        self._enter(self.rounds + 1)  # the last digest gets the random numbers of a next round
        with self.clock.spent("phases"):
            self.algorithm.finish(self, answer)
        self._close_round()
        self._write_seconds()
        self.books.tell(Saving())
        if self.algorithm.has_server_model:
            export(self.server, self.plan.folder)
        self.engine.export()

    def begin(self, after: Manifest | None = None) -> Answers:
        """Greet all clients; returns the answer that the first round, or the one after a checkpoint, starts from."""
        self._enter(0)
        with self.clock.spent("phases"):
            self.engine.open()
            self.sizes = dict(after.sizes) if after is not None else {}
            self._admit(self.call("hello", clients=list(self.plan.clients)).messages)
            self.algorithm.admit(self.server)
            self.cautions = cautions(self.algorithm, self.clients)
            for caution in self.cautions if after is None else ():
                self.books.caution(str(caution))
            for name, kinds in self.faults.liars().items() if after is None else ():
                self.books.note(name, f"{name} is made to lie or fail: {', '.join(kinds)}.")
            answer = self._restore(after) if after is not None else self.algorithm.start(self)
        self._close_round()
        self._write_seconds()
        return answer

    def play(self, number: int, answer: Answers) -> Answers:
        """One round, from the last answer to the next, with its checkpoint."""
        self._enter(number)
        self.engine.enter(number)
        self._greet_absent()
        self._draw()
        with self.clock.spent("phases"):
            answer = self.algorithm.round(self, answer)
            if self.algorithm.has_server_model:
                with self.server.timed("measuring"):
                    self.server.evaluate("distilled")
        self._close_round()
        if self._is_saved(number):
            self._save(answer)
        spent = self._write_seconds()
        digest_s = spent["digest"] * len(self.clients) / max(1, len(self.active))
        self.books.tell(RoundDone(number, self.rounds, self.books.ledger.total, spent["total"], digest_s))
        return answer

    @property
    def seconds(self) -> float:
        """Seconds spent on this run, including those before an interruption."""
        return self.seconds_before + time.monotonic() - self.started

    def call(self, verb: str, message: Answers = None, clients: Sequence[str] | None = None) -> Replies[Any]:
        """Run a verb on the active clients, or those named; raises if fewer than the quorum give a usable reply."""
        with self.clock.spent("calls"):
            names = sorted(clients if clients is not None else self.active)
            announced = self.masking.announce(verb, names) if self.masking is not None else None
            messages, failures = self.exchange(verb, message, names, announced)
        self.check_quorum(names, messages, failures)
        if self.masking is not None and any(is_masked(type(said)) for said in messages.values()):
            return self.masking.opened(names, messages, failures)
        return replace(self.replies(messages), failures=tuple(failures))

    def replies(self, messages: dict[str, M]) -> Replies[M]:
        """Messages by client as methods see them: with the clients' greetings and the experiment's blend."""
        return Replies(messages, self.clients, (), self.blending_now())

    def check_quorum(self, names: Sequence[str], messages: Mapping[str, Message], failures: Sequence[Failure]) -> None:
        enough = needed(self.plan.experiment.quorum, len(names))
        if len(messages) < enough:
            raise self.engine.explain(
                FedstillError(
                    f"round {self.round}: {len(messages)} of {len(names)} clients answered, {enough} are needed "
                    f"({_reasons(failures)})"
                )
            )

    def blending_now(self) -> Blending:
        """The experiment's blend; what it remembers of clients is part of the server's state."""
        return replace(self.blending, round=self.round, memory=self.server.memory.mappings.setdefault("blend", {}))

    def as_received(self, message: M) -> M:
        """This round's answer as clients will decode it: a codec may change it."""
        return self.crossing.as_received(message, self.round)

    def exchange(
        self, verb: str, message: Answers, names: Sequence[str], more: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Message], list[Failure]]:
        """The usable replies by client, and the failures of all other clients; `more` is for the calls' envelopes."""
        calls = self.crossing.calls(verb, message, names, self.round, more)
        asked = asked_of(message, names)
        self.engine.largest = max((self.crossing.most_bytes(name, verb, asked[name]) for name in names), default=0)
        with self.clock.spent("clients"):
            replies = self.engine.deliver(calls, self.round)
        if verb == "turn" and self._is_saved(self.round) and self.saved_soon != self.round:
            self.saved_soon = self.round
            self.engine.save_soon(self.round)  # a turn is mostly all of a client's round, and now the server is busy
        messages: dict[str, Message] = {}
        failures: list[Failure] = []
        slips: list[Slip] = []
        for name in names:
            outcome = replies[name]
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            try:
                raw, slip = Slip.take_off(outcome)
                parcel = self.crossing.reply(raw, name, verb, self.round, asked[name])
                assert parcel.message is not None
                if isinstance(parcel.message, Hello):
                    self._examine(name, parcel.message)
            except FedstillError as error:
                failures.append(Failure(name, str(error)))
                continue
            except Exception as error:  # whatever one client's bytes lead to is that client's failure
                failures.append(Failure(name, f"its reply cannot be used ({in_words(error)})."))
                continue
            messages[name] = parcel.message
            slips.append(slip)
            self.books.take(name, parcel.envelope["metrics"], parcel.envelope["notes"])
        self.clock.account(slips)
        if self.faults.chosen:
            self._let_lie(verb, asked, messages, failures)
        self.crossing.forget(failure.client for failure in failures)
        self.engine.judge(messages, failures)
        return messages, failures

    def _let_lie(
        self, verb: str, asked: Mapping[str, int], messages: dict[str, Message], failures: list[Failure]
    ) -> None:
        """Put what liars say in place of their replies; the guard looks at it as at any other reply."""
        memory = self.server.memory.mappings.setdefault("faults", {})
        lies = self.faults.act(verb, self.round, messages, self.plan.agreement.types, memory)
        for name, lie in lies.items():
            del messages[name]
            if isinstance(lie, Failure):
                failures.append(lie)
                continue
            try:
                self.crossing.guard(lie, name, verb, asked[name])
                messages[name] = lie
            except BadMessage as error:
                failures.append(Failure(name, str(error)))

    def _enter(self, round: int) -> None:
        self.round = round
        self.books.enter(round)
        self.server.enter(round)

    def _greet_absent(self) -> None:
        """Greet the clients that have not answered yet; one that cannot take part is only noted."""
        if absent := [name for name in self.plan.clients if name not in self.clients]:
            announced = self.masking.announce("hello", absent) if self.masking is not None else None
            self._admit(self.exchange("hello", None, absent, announced)[0])

    def _admit(self, hellos: Mapping[str, Any]) -> None:
        self.clients = dict(sorted({**self.clients, **hellos}.items()))
        self.sizes |= {name: hello.size for name, hello in hellos.items()}

    def _examine(self, name: str, hello: Hello) -> None:
        """Refuse a client whose architecture the method cannot use, or whose n_k is not what it was."""
        if self.sizes.get(name, hello.size) != hello.size:
            raise BadMessage(f"Hello.size is {hello.size}, and was {self.sizes[name]} when it first said hello.")
        if self.masking is not None:
            self.masking.examine(hello)
        if hello.label_counts is None and "label_counts" in self.algorithm.requires():
            raise BadMessage(f"{self.algorithm.title} needs label counts, and {name} withholds them.")
        if "parameters" in self.algorithm.requires():
            same_architecture(self.algorithm, self.server, {name: hello.architecture})
        elif self.plan.agreement.sends_parameters(self.plan.agreement.owed("turn")):
            self._form(hello.architecture)

    def form_of(self, client: str) -> Form:
        """The form of the parameters that a client can send."""
        return self._form(self.clients[client].architecture)

    def _form(self, architecture: str) -> Form:
        if architecture not in self.forms:
            is_own = architecture == self.server.model.architecture
            model = self.server.model if is_own else self.server.model_from(None, architecture).model
            self.forms[architecture] = form_of(model.module)
        return self.forms[architecture]

    def _draw(self) -> None:
        """This round's active clients, from a generator that depends on seed and round only."""
        names = sorted(self.clients)
        many = max(1, round(self.plan.experiment.participation * len(names)))
        random = generator(self.plan.experiment.seed, self.round, "federation", "participants")
        self.active = names if many == len(names) else sorted(random.choice(names, many, replace=False).tolist())

    def _close_round(self) -> None:
        self.books.take(SERVER, self.server.metrics, self.server.notes)
        self.books.write_ledger()

    def _write_seconds(self) -> dict[str, float]:
        spent = self.clock.end(self.server.seconds)
        self.books.write_seconds(len(self.active), spent)
        self.server.seconds.clear()
        return spent

    # State at round boundaries

    def _is_saved(self, round: int) -> bool:
        """Whether a round ends with a checkpoint."""
        return round % self.plan.experiment.save_every == 0 or round == self.rounds

    def _save(self, answer: Answers) -> None:
        run = self.plan.folder
        with self.clock.spent("state"), ThreadPoolExecutor(1) as beside:
            own = beside.submit(write_state, run, self.server, self.round)
            parties = dict(self.engine.save(self.round))
            parties[SERVER] = own.result()
        by_client = {"": answer} if not isinstance(answer, Mapping) else dict(answer)
        answers = {
            name: FileReference.write(folder_of(run), f"state/answer-{file_name(name)}.{self.round}", encode(message))
            for name, message in by_client.items()
        }
        manifest = Manifest(
            round=self.round,
            parties=parties,
            answer=answers,
            offsets=self.books.journal.offsets(),
            bytes=dict(self.books.ledger.totals),
            seconds=self.seconds,
            experiment=self.plan.experiment.model_dump(mode="json"),
            corpus=self.plan.corpus_fingerprint,
            sizes=self.sizes,
        )
        checkpoint.write(run, manifest)

    def _restore(self, manifest: Manifest) -> Answers:
        """Restore a checkpoint; returns the answer that the next round starts from."""
        run = self.plan.folder
        self.books.ledger.reset(manifest.bytes)
        self.seconds_before = manifest.seconds
        parties = dict(manifest.parties)
        self.server.set_state(read_state(run, parties.pop(SERVER)))
        self.engine.restore(parties, manifest.round)
        answers: dict[str, Message] = {}
        for name, reference in manifest.answer.items():
            raw = reference.read(folder_of(run)) or b""
            message = decode(seal(raw), self.plan.agreement.types).message  # earlier versions wrote no seal
            if message is None:
                return None
            answers[name] = message
        return answers.get("", answers)


def needed(quorum: float, asked: int) -> int:
    """How many of the clients that were asked must answer."""
    return max(1, math.ceil(quorum * asked - 1e-9))


def _reasons(failures: Sequence[Failure]) -> str:
    """Why clients did not answer, each reason once."""
    clients: dict[str, list[str]] = {}
    for failure in failures:
        clients.setdefault(failure.reason.replace(failure.client, "..."), []).append(failure.client)
    return "; ".join(
        f"{', '.join(names)}: {reason if len(names) > 1 else reason.replace('...', names[0])}"
        for reason, names in clients.items()
    )
