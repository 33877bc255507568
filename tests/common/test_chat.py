"""A question to a language model: what is sent, what counts as an answer, and how patiently it is asked again."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from fedstill.algorithms import make
from fedstill.common.chat import Chat, Unusable
from fedstill.common.errors import FedstillError

QUESTION = [{"role": "user", "content": "What do you get if you multiply six by nine?"}]


def number(reply: str) -> int:
    if not reply.isdecimal():
        raise Unusable(f"{reply!r} is not a number")
    return int(reply)


def ask(chat: Chat, sleep: Callable[[float], None] = time.sleep) -> int:
    return chat.ask(QUESTION, number, sleep)


@dataclass
class Answer:
    """One scripted answer: a chat completion with `content`, unless `body` says otherwise."""

    content: Any = "42"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    content_type: str = "application/json"
    is_slow: bool = False

    def payload(self) -> bytes:
        if self.body is not None:
            return self.body.encode()
        message = {"role": "assistant", "content": self.content}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        completion = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return json.dumps(completion).encode()


GOOD = Answer()


class Service:
    """A chat-completions service on loopback: plays its script, the last answer for ever, and keeps what it saw."""

    def __init__(self) -> None:
        self.script = [GOOD]
        self.requests: list[SimpleNamespace] = []
        self.is_closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def chat(self, **changes: Any) -> Chat:
        settings: dict[str, Any] = {"timeout_s": 600.0, "backoff_s": 0.001}
        return Chat(**(settings | changes))

    def handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append(SimpleNamespace(path=self.path, headers=self.headers, body=body))
                answer = service.script[min(len(service.requests), len(service.script)) - 1]
                if answer.is_slow:
                    service.is_closing.wait()
                    return
                payload = answer.payload()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *arguments: Any) -> None:
                pass

        return Handler

    def close(self) -> None:
        self.is_closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    pytest.importorskip("openai")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-default-variable")
    service = Service()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{service.address}/v1")
    yield service
    service.close()


def test_good_answer_is_read_from_one_request(service: Service) -> None:
    assert ask(service.chat()) == 42
    assert len(service.requests) == 1


def test_request_carries_the_model_the_temperature_and_the_question(service: Service) -> None:
    ask(service.chat(model="some-model", temperature=0.5))
    (request,) = service.requests
    assert request.path == "/v1/chat/completions"
    assert (request.body["model"], request.body["temperature"]) == ("some-model", 0.5)
    assert request.body["messages"] == QUESTION


def test_key_comes_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-mine\n")
    ask(service.chat())
    assert service.requests[0].headers["Authorization"] == "Bearer secret-of-mine"


@pytest.mark.parametrize("option", ["base_url", "api_key_variable"])
def test_an_experiment_names_neither_address_nor_key(option: str) -> None:
    with pytest.raises(FedstillError, match=f"Chat has no option '{option}'"):
        make({"name": "AdaFD", "weighting": {"name": "LLMWC", "chat": {option: "x"}}})


def test_loopback_service_needs_no_key(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert ask(service.chat()) == 42


def test_the_address_is_taken_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{service.address}/elsewhere")
    ask(service.chat())
    assert service.requests[0].path == "/elsewhere/chat/completions"


def test_without_a_key_a_remote_service_is_never_asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    # As the proxy, the loopback service sees what would have gone to the remote one.
    monkeypatch.setenv("HTTP_PROXY", service.address)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://example.invalid/v1")
    remote = service.chat()
    ask(remote)
    assert [request.path for request in service.requests] == ["http://example.invalid/v1/chat/completions"]
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(Unusable, match="OPENAI_API_KEY holds no key"):
        ask(remote)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Answer("Sure! 42"), "'Sure! 42' is not a number"),
        (Answer(None), "holds no text"),
        (Answer(body='{"choices": []}'), "not a chat completion"),
        (Answer(body="{"), "not a chat completion"),
        (Answer(body="<html>", content_type="text/html"), "not a chat completion"),
        (Answer("", status=429), "HTTP status 429"),
        (Answer("", status=500), "HTTP status 500"),
        (Answer("", status=503), "HTTP status 503"),
    ],
)
def test_passing_failure_is_asked_again_and_named_when_it_lasts(service: Service, bad: Answer, reason: str) -> None:
    service.script = [bad, GOOD]
    assert ask(service.chat()) == 42
    assert len(service.requests) == 2
    service.script = [bad]
    with pytest.raises(Unusable, match=reason):
        ask(service.chat(attempts=3))
    assert len(service.requests) == 2 + 3


def test_slow_answer_is_given_up_and_asked_again(service: Service) -> None:
    service.script = [Answer(is_slow=True), GOOD]
    # A slow machine may be late with the good answer too, and is asked again for it.
    assert ask(service.chat(timeout_s=0.6, attempts=100)) == 42
    assert len(service.requests) >= 2


def test_a_service_that_stays_slow_is_given_up(service: Service) -> None:
    service.script = [Answer(is_slow=True)]
    with pytest.raises(Unusable, match=r"no answer within 0\.3 s"):
        ask(service.chat(timeout_s=0.3, attempts=2))


def test_nobody_listening_is_tried_again_then_reported(service: Service) -> None:
    chat = service.chat(attempts=3)
    service.close()
    pauses: list[float] = []
    with pytest.raises(Unusable, match="the connection failed"):
        ask(chat, pauses.append)
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_refusal_is_final_and_its_words_are_not_repeated(service: Service, status: int) -> None:
    words = json.dumps({"error": {"message": "Incorrect API key provided: key-of-the-default-variable"}})
    service.script = [Answer(status=status, body=words), GOOD]
    with pytest.raises(Unusable, match=f"HTTP status {status}") as caught:
        ask(service.chat())
    assert len(service.requests) == 1
    assert "key-of" not in str(caught.value)


def test_pause_doubles_and_none_follows_the_last_attempt(service: Service) -> None:
    service.script = [Answer(status=500)]
    pauses: list[float] = []
    with pytest.raises(Unusable, match="in 4 attempts"):
        ask(service.chat(backoff_s=0.5), pauses.append)
    assert pauses == [0.5, 1.0, 2.0]
    assert len(service.requests) == 4


def in_half_a_minute() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        (lambda: "7", 7, 7),
        (lambda: "86400", 60, 60),
        (lambda: "0", 0.5, 0.5),
        (lambda: "soon", 0.5, 0.5),
        (in_half_a_minute, 25, 30),
        (lambda: "Wed, 21 Oct 2015 07:28:00 GMT", 0.5, 0.5),
    ],
    ids=["seconds", "capped", "below the backoff", "nonsense", "date", "past date"],
)
def test_retry_after_lengthens_the_pause(
    service: Service, header: Callable[[], str], least: float, most: float
) -> None:
    service.script = [Answer(status=429, headers={"Retry-After": header()}), GOOD]
    pauses: list[float] = []
    ask(service.chat(backoff_s=0.5), pauses.append)
    (pause,) = pauses
    assert least <= pause <= most


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(FedstillError, match=r'pip install "fedstill\[llm\]"'):
        ask(Chat())
