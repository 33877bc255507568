import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.algorithms.llm import Chat, Statistics, Unusable, ask, parse, prompt, statistics
from fedstill.common.errors import FedstillError

CLIENTS = [
    Statistics("health", 0.123456, 0.87654, (1.23456, -0.5, 0.0), (2.0, 0.333333, 4.5), 0.98766),
    Statistics("automotive", 1234.56, 0.5, (-1.0, 2.0, 3.0), (0.1, 0.2, 0.3), 0.001),
]


@dataclass
class Answer:
    """One scripted answer: a chat completion with `content`, unless `body` says otherwise."""

    content: Any = "0.3, 0.1"
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
        settings: dict[str, Any] = {"base_url": f"{self.address}/v1", "timeout_s": 600.0, "backoff_s": 0.001}
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
    yield service
    service.close()


def test_good_answer_gives_normalised_weights_from_one_request(service: Service) -> None:
    assert ask(service.chat(), CLIENTS) == pytest.approx([0.75, 0.25])
    assert len(service.requests) == 1


def test_request_carries_the_model_the_papers_words_and_every_clients_numbers(service: Service) -> None:
    ask(service.chat(model="some-model", temperature=0.5), CLIENTS)
    (request,) = service.requests
    assert request.path == "/v1/chat/completions"
    assert (request.body["model"], request.body["temperature"]) == ("some-model", 0.5)
    system, user = (message["content"] for message in request.body["messages"])
    assert system.startswith("You are an expert in federated learning and federated distillation.")
    assert "Return only the numerical values separated by commas" in system
    assert "please compute and normalize the weight for each client to maximize the global model performance" in user
    for number in ["0.1235", "0.8765", "[1.235, -0.5, 0]", "[2, 0.3333, 4.5]", "0.9877", "1235", "[0.1, 0.2, 0.3]"]:
        assert number in user
    assert user.index("health") < user.index("automotive")


def test_key_comes_from_the_named_environment_variable(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-of-mine\n")
    ask(service.chat(api_key_variable="MY_KEY"), CLIENTS)
    assert service.requests[0].headers["Authorization"] == "Bearer secret-of-mine"


def test_loopback_service_needs_no_key(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert ask(service.chat(), CLIENTS) == pytest.approx([0.75, 0.25])


def test_base_url_is_taken_from_the_environment_when_not_given(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{service.address}/elsewhere")
    ask(service.chat(base_url=None), CLIENTS)
    assert service.requests[0].path == "/elsewhere/chat/completions"


def test_without_a_key_a_remote_service_is_never_asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    # As the proxy, the loopback service sees what would have gone to the remote one.
    monkeypatch.setenv("HTTP_PROXY", service.address)
    remote = service.chat(base_url="http://example.invalid/v1")
    ask(remote, CLIENTS)
    assert [request.path for request in service.requests] == ["http://example.invalid/v1/chat/completions"]
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(Unusable, match="OPENAI_API_KEY holds no key"):
        ask(remote, CLIENTS)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Answer("Sure! 0.3, 0.1"), "is not a number"),
        (Answer("0.3, 0.1, 0.6"), "3 values instead of 2"),
        (Answer("1.3, -0.3"), "-0.3 is negative"),
        (Answer("NaN, 0.5"), "'NaN' is not a number"),
        (Answer("0, 0.0"), "every weight is zero"),
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
    assert ask(service.chat(), CLIENTS) == pytest.approx([0.75, 0.25])
    assert len(service.requests) == 2
    service.script = [bad]
    with pytest.raises(Unusable, match=reason):
        ask(service.chat(attempts=3), CLIENTS)
    assert len(service.requests) == 2 + 3


def test_slow_answer_is_given_up_and_asked_again(service: Service) -> None:
    service.script = [Answer(is_slow=True), GOOD]
    # A slow machine may be late with the good answer too, and is asked again for it.
    assert ask(service.chat(timeout_s=0.6, attempts=100), CLIENTS) == pytest.approx([0.75, 0.25])
    assert len(service.requests) >= 2


def test_a_service_that_stays_slow_is_given_up(service: Service) -> None:
    service.script = [Answer(is_slow=True)]
    with pytest.raises(Unusable, match=r"no answer within 0\.3 s"):
        ask(service.chat(timeout_s=0.3, attempts=2), CLIENTS)


def test_nobody_listening_is_tried_again_then_reported(service: Service) -> None:
    chat = service.chat(attempts=3)
    service.close()
    pauses: list[float] = []
    with pytest.raises(Unusable, match="the connection failed"):
        ask(chat, CLIENTS, pauses.append)
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_refusal_is_final_and_its_words_are_not_repeated(service: Service, status: int) -> None:
    words = json.dumps({"error": {"message": "Incorrect API key provided: key-of-the-default-variable"}})
    service.script = [Answer(status=status, body=words), GOOD]
    with pytest.raises(Unusable, match=f"HTTP status {status}") as caught:
        ask(service.chat(), CLIENTS)
    assert len(service.requests) == 1
    assert "key-of" not in str(caught.value)


def test_pause_doubles_and_none_follows_the_last_attempt(service: Service) -> None:
    service.script = [Answer(status=500)]
    pauses: list[float] = []
    with pytest.raises(Unusable, match="in 4 attempts"):
        ask(service.chat(backoff_s=0.5), CLIENTS, pauses.append)
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
    ask(service.chat(backoff_s=0.5), CLIENTS, pauses.append)
    (pause,) = pauses
    assert least <= pause <= most


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(FedstillError, match=r'pip install "fedstill\[llm\]"'):
        ask(Chat(), CLIENTS)


@given(st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=20).filter(any))
def test_any_usable_weights_come_back_normalised(values: list[float]) -> None:
    weights = parse(", ".join(map(repr, values)), len(values))
    total = sum(map(Fraction, values))
    assert weights == pytest.approx([float(Fraction(value) / total) for value in values], rel=1e-12)
    assert sum(weights) == pytest.approx(1)


@pytest.mark.parametrize(
    "reply", [" 0.3,0.1\n", "0.3, 0.1.", "[0.3, 0.1]", "[0.3, 0.1].", "(3, 1)", "[ .3 , 1e-1 ]", "0.3,\n0.1", "+3, 1"]
)
def test_harmless_decoration_is_tolerated(reply: str) -> None:
    assert parse(reply, 2) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    "reply",
    [
        *("", "0.3", "0.3 0.1", "0.3; 0.1", "0.3, 0.1,", "0.3, 0.1..", "[0.3, 0.1", "[0.3, 0.1)", "[[0.3, 0.1]]"),
        *("30%, 10%", "0.3, inf", "0.3, 1e999", "0.3, 1_0", "0.3, ٣", "a: 0.3, b: 0.1", "`0.3, 0.1`", "0.3, 0x1"),
    ],
)
def test_anything_else_is_unusable(reply: str) -> None:
    with pytest.raises(Unusable):
        parse(reply, 2)


def test_statistics_agree_with_numpy() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 3), scale=4).astype(np.float32)
    found = statistics("baby", 0.25, 0.5, torch.from_numpy(logits).requires_grad_())
    wide = logits.astype(np.float64)
    probabilities = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    assert (found.client, found.loss, found.f1) == ("baby", 0.25, 0.5)
    assert found.logit_mean == pytest.approx(wide.mean(axis=0).tolist())
    assert found.logit_std == pytest.approx(wide.std(axis=0).tolist())
    assert found.entropy == pytest.approx(-(probabilities * np.log(probabilities)).sum(axis=1).mean())


def test_statistics_by_hand_at_the_edges() -> None:
    even = statistics("baby", 0.25, 0.5, torch.zeros(1, 4))
    assert even.logit_std == (0.0, 0.0, 0.0, 0.0)
    assert even.entropy == pytest.approx(np.log(4))
    assert statistics("baby", 0.25, 0.5, torch.tensor([[1e4, 0.0]])).entropy == 0.0


def test_prompt_is_the_appendix_with_the_query_filled_in() -> None:
    system, user = prompt(CLIENTS[:1])
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"].splitlines()[:2] == [
        "Input:",
        "Client health: training loss 0.1235, F1 score 0.8765, logits mean [1.235, -0.5, 0], "
        "logits standard deviation [2, 0.3333, 4.5], logits entropy 0.9877",
    ]
