"""The conductor: rounds, draws, calls and checkpoints, the same on every engine; the `fed` that algorithms see."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedstill.algorithms.base import Algorithm, Answers
from fedstill.common.errors import FedstillError
from fedstill.common.events import RoundDone, Saving
from fedstill.common.files import FileReference
from fedstill.common.randomness import generator
from fedstill.common.traces import in_words
from fedstill.engines.beside import beside
from fedstill.engines.books import Books
from fedstill.engines.checkpoint import Manifest, folder_of
from fedstill.engines.ending import Ending
from fedstill.engines.engine import Engine
from fedstill.engines.host import export, read_state
from fedstill.engines.masking import Masking
from fedstill.engines.seconds import Seconds, Slip
from fedstill.parties.server import Server
from fedstill.plan.caution import Caution, cautions
from fedstill.plan.needs import same_architecture
from fedstill.plan.plan import Plan
from fedstill.wire.blends import Blending
from fedstill.wire.crossing import Crossing, asked_of
from fedstill.wire.encoding import decode, seal
from fedstill.wire.faults import Faults
from fedstill.wire.guard import Form, form_of
from fedstill.wire.masks import is_masked
from fedstill.wire.messages import SERVER, BadMessage, Hello, M, Message
from fedstill.wire.replies import Failure, Replies


class Conductor:
    """Conducts a run over an engine.

    Where clients work in other processes, a round ends while they work on the next one: an answer that does not depend
    on the server's model is sent before the server has learnt from it.
    """

    def __init__(self, plan: Plan, books: Books, engine: Engine) -> None:
        self.plan, self.books, self.engine = plan, books, engine
        self.algorithm = plan.experiment.method
        self.blending = plan.experiment.blending()
        self._server = plan.make_server(books.tell)
        self._server.may_owe = engine.is_apart
        self.ending: Ending | None = None
        """What is left to do of the last round: it is done while clients work, or when the server is needed."""
        self.faults = Faults(plan.experiment.faults, list(plan.clients), plan.experiment.seed)
        arriving = [self.faults.arriving] if plan.experiment.faults else []
        self.crossing = Crossing(plan.agreement, self._server, books.ledger, arriving=arriving, form_of=self.form_of)
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
        self._close()
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
            self.cautions = cautions(self.algorithm, self.clients, len(self.server.data.public))
            for caution in self.cautions if after is None else ():
                self.books.caution(str(caution))
            for name, kinds in self.faults.liars().items() if after is None else ():
                self.books.note(name, f"{name} is made to lie or fail: {', '.join(kinds)}.")
            answer = self._restore(after) if after is not None else self.algorithm.start(self)
        self._close()
        return answer

    def play(self, number: int, answer: Answers) -> Answers:
        """One round, from the last answer to the next, with its checkpoint."""
        self._enter(number)
        self.engine.enter(number)
        self._greet_absent()
        self._draw()
        with self.clock.spent("phases"):
            answer = self.algorithm.round(self, answer)
        ending = self._begin_ending(answer)
        if self.engine.is_apart and type(self.algorithm).round is Algorithm.round:
            self.ending = replace(ending, spent=self._spent())
        else:
            self._end(ending)
        return answer

    @property
    def server(self) -> Server:
        """The server, after all of its work in the last round."""
        self.end_round()
        return self._server

    def end_round(self) -> None:
        """Do what is left of the last round now, if anything is."""
        if (ending := self._take_ending()) is not None:
            self._end(ending)
            self._enter(self.round)

    @contextmanager
    def _ending_meanwhile(self) -> Iterator[None]:
        """Do what is left of the last round in a thread while the block waits for clients in other processes."""
        if (ending := self._take_ending()) is None:
            yield
            return
        with beside(partial(self._end_beside, ending), waited=partial(self.clock.add, "phases")):
            yield
        self._enter(self.round)

    def _take_ending(self) -> Ending | None:
        """What is left of the last round, to be done by the caller; what is written meanwhile belongs to that round."""
        ending, self.ending = self.ending, None
        if ending is not None:
            self.books.enter(ending.round)
        return ending

    def _begin_ending(self, answer: Answers) -> Ending:
        """The part of a round's end that needs the clients, or what their next call would change."""
        self.books.write_ledger()
        files: Mapping[str, FileReference] | None = None
        if self._is_saved(self.round):
            with self.clock.spent("state"):
                files = dict(self.engine.save(self.round))
        wire = {name: {part: value.clone() for part, value in own.items()} for name, own in self._server.wire.items()}
        return Ending(
            self.round, answer, files, wire, dict(self.books.ledger.totals), dict(self.sizes), len(self.active)
        )

    def _end(self, ending: Ending) -> None:
        with self.clock.spent("phases"):
            self._catch_up()
        with self.clock.spent("state"):
            self._save(ending)
        self._tell_done(ending, ending.spent or self._spent())

    def _end_beside(self, ending: Ending) -> None:
        torch.set_num_threads(self.plan.experiment.threads)
        with self._server.timed("beside"):
            self._catch_up()
            self._save(ending)
        assert ending.spent is not None
        spent = ending.spent | {name: round(value, 3) for name, value in self._server.seconds.items()}
        self._server.seconds.clear()
        self._tell_done(ending, spent)

    def _catch_up(self) -> None:
        """The server's last work of a round: what it still owes, and measuring itself."""
        self._server.catch_up()
        if self.algorithm.has_server_model:
            with self._server.timed("measuring"):
                self._server.evaluate("distilled")
        self.books.take(SERVER, self._server.metrics, self._server.notes)

    def _tell_done(self, ending: Ending, spent: dict[str, float]) -> None:
        self.books.write_seconds(ending.active, spent)
        digest_s = spent["digest"] * len(self.clients) / max(1, ending.active)
        self.books.tell(RoundDone(ending.round, self.rounds, sum(ending.totals.values()), spent["total"], digest_s))

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
        with self._ending_meanwhile(), self.clock.spent("clients"):
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
        if self.ending is None:  # else the server is still in the round before
            self._server.enter(round)

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

    def _close(self) -> None:
        """End what is not a round: the greeting, and the last digest."""
        self.books.take(SERVER, self.server.metrics, self.server.notes)
        self.books.write_ledger()
        self.books.write_seconds(len(self.active), self._spent())

    def _spent(self) -> dict[str, float]:
        """Where the time since the last round's end went."""
        spent = self.clock.end(self._server.seconds)
        self._server.seconds.clear()
        return spent

    # State at round boundaries

    def _is_saved(self, round: int) -> bool:
        """Whether a round ends with a checkpoint."""
        return round % self.plan.experiment.save_every == 0 or round == self.rounds

    def _save(self, ending: Ending) -> None:
        """Write the checkpoint of a round, if it has one."""
        if ending.files is not None:
            ending.save(self.plan, self._server, self.books.journal.offsets(), self.seconds)

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
