"""A method that would send what its `messages` lack is refused before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedstill import (
    Algorithm,
    Answer,
    Answers,
    Client,
    Done,
    Federation,
    FedstillError,
    Opinion,
    Replies,
    Scores,
    Server,
    algorithms,
)
from fedstill.plan.agreement import check_messages, verb_of


@dataclass(frozen=True)
class Plain(Algorithm):
    def opine(self, me: Client) -> Opinion:
        raise NotImplementedError

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        raise NotImplementedError


@dataclass(frozen=True)
class Conversation(Algorithm):
    messages = (Scores,)

    def round(self, fed: Federation, answer: Answers) -> None:
        raise NotImplementedError

    def reply(self, me: Client, nothing: None) -> Scores:
        raise NotImplementedError


@pytest.mark.parametrize("method", algorithms.known(Algorithm).values(), ids=lambda cls: cls.__name__)
def test_every_built_in_method_names_what_it_sends(method: type[Algorithm]) -> None:
    check_messages(method())


def test_a_method_that_answers_needs_done() -> None:
    @dataclass(frozen=True)
    class Silent(Plain):
        messages = (Opinion, Answer)

    check_messages(Plain())
    with pytest.raises(FedstillError, match=r"says Done, .* write `messages = \(Opinion, Answer, Done\)`"):
        check_messages(Silent())


def test_a_method_that_never_answers_needs_none() -> None:
    @dataclass(frozen=True)
    class Vague(Conversation):
        def round(self, fed, answer):  # type: ignore[no-untyped-def]
            raise NotImplementedError

    check_messages(Conversation())
    with pytest.raises(FedstillError, match="or annotate `round` with `-> None`"):
        check_messages(Vague())


def test_a_verb_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(FedstillError, match=r"Plain has no verb 'digests'; did you mean 'digest'\?"):
        verb_of(Plain(), "digests")


def test_what_a_verb_returns_is_among_the_messages() -> None:
    @dataclass(frozen=True)
    class Listening(Conversation):
        def listen(self, me: Client, nothing: None) -> Done:
            raise NotImplementedError

    with pytest.raises(FedstillError, match=r"^Listening.listen returns a Done, .* `messages = \(Scores, Done\)`"):
        check_messages(Listening())


def test_a_method_that_closes_in_its_own_way_needs_no_done() -> None:
    @dataclass(frozen=True)
    class Closing(Plain):
        messages = (Opinion, Answer)

        def finish(self, fed: Federation, answer: Answers) -> None:
            return None

    check_messages(Closing())
