"""Weights from a language model: AdaFD's LLMWC (Appendix A of the paper)."""

import importlib
import ipaddress
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import torch

from fedstill.common.errors import FedstillError

OPENAI_URL = "https://api.openai.com/v1"
LONGEST_RETRY_AFTER_S = 60.0
NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

SYSTEM = (
    "You are an expert in federated learning and federated distillation. Analyze and compute the optimal weight "
    "allocation for all clients based on the following data in a federated distillation scenario. Return only the "
    "numerical values separated by commas, without any explanation or calculation process."
)
QUESTION = (
    "Based on these factors, please compute and normalize the weight for each client to maximize the global model "
    "performance. Assign weights to each client and return the values separated by commas. Do not include any "
    "additional text or calculation details."
)


@dataclass(frozen=True)
class Chat:
    """Which model to ask, where, and how patiently; the key stays in the environment."""

    model: str = "gpt-4"
    base_url: str | None = None
    api_key_variable: str = "OPENAI_API_KEY"
    timeout_s: float = 30.0
    attempts: int = 4
    backoff_s: float = 1.0
    temperature: float = 0.0


@dataclass(frozen=True)
class Statistics:
    """All that the language model is told about one client."""

    client: str
    loss: float
    f1: float
    logit_mean: tuple[float, ...]
    logit_std: tuple[float, ...]
    entropy: float


class Unusable(ValueError):
    """No weights came of asking; the message says why in a few words."""

    def __init__(self, reason: str, *, final: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.retry_after_s = retry_after_s


def statistics(client: str, loss: float, f1: float, logits: torch.Tensor) -> Statistics:
    """Sums up logits [N, C] by class mean, class standard deviation and mean entropy of the softmax in nats."""
    # Moved before widening: not every accelerator has float64.
    values = logits.detach().cpu().double()
    entropy = torch.special.entr(values.softmax(dim=1)).sum(dim=1).mean()
    return Statistics(
        client=client,
        loss=loss,
        f1=f1,
        logit_mean=tuple(values.mean(dim=0).tolist()),
        # The population's deviation, so that a single sample gives 0 and not NaN.
        logit_std=tuple(values.std(dim=0, correction=0).tolist()),
        entropy=entropy.item(),
    )


def prompt(clients: Sequence[Statistics]) -> list[dict[str, str]]:
    """The appendix's messages, with one line a client in the order given."""
    query = "\n".join(_line(client) for client in clients)
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Input:\n{query}\n{QUESTION}"},
    ]


def _line(client: Statistics) -> str:
    return (
        f"Client {client.client}: training loss {client.loss:.4g}, F1 score {client.f1:.4g}, "
        f"logits mean {_row(client.logit_mean)}, logits standard deviation {_row(client.logit_std)}, "
        f"logits entropy {client.entropy:.4g}"
    )


def _row(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"


def parse(reply: str, count: int) -> list[float]:
    """The reply's weights, summing to 1; anything but `count` usable numbers raises Unusable."""
    fields = _bare(reply).split(",")
    if len(fields) != count:
        raise Unusable(f"{len(fields)} values instead of {count}")
    values = [_weight(field.strip()) for field in fields]
    largest = max(values)
    if largest == 0:
        raise Unusable("every weight is zero")
    # Scaled by the largest first, because the sum of huge weights would overflow.
    scaled = [value / largest for value in values]
    total = math.fsum(scaled)
    return [value / total for value in scaled]


def _bare(reply: str) -> str:
    text = reply.strip().removesuffix(".").rstrip()
    return text[1:-1] if (text[:1], text[-1:]) in {("[", "]"), ("(", ")")} else text


def _weight(text: str) -> float:
    # float() alone would also take "nan", "inf" and "1_000".
    if NUMBER.fullmatch(text) is None:
        raise Unusable(f"{text[:20]!r} is not a number")
    value = float(text)
    if value < 0:
        raise Unusable(f"{text[:20]} is negative")
    if math.isinf(value):
        raise Unusable(f"{text[:20]} is too large")
    return value


def ask(chat: Chat, clients: Sequence[Statistics], sleep: Callable[[float], None] = time.sleep) -> list[float]:
    """One weight a client, in order, summing to 1; raises Unusable with the last reason when patience runs out."""
    sdk = _sdk()
    url = chat.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    messages = prompt(clients)
    last = "no attempt was allowed"
    with sdk.OpenAI(api_key=_key(chat, url), base_url=url, timeout=chat.timeout_s, max_retries=0) as connection:
        for attempt in range(chat.attempts):
            try:
                return parse(_reply(sdk, connection, chat, messages), len(clients))
            except Unusable as problem:
                if problem.final:
                    raise
                last = str(problem)
                pause_s = max(chat.backoff_s * 2**attempt, problem.retry_after_s)
            if attempt + 1 < chat.attempts:
                sleep(pause_s)
    raise Unusable(f"no usable weights from {chat.model} in {chat.attempts} attempts; the last: {last}")


def _sdk() -> ModuleType:
    try:
        # By name, so that type checking does not need the optional package either.
        return importlib.import_module("openai")
    except ImportError as error:
        raise FedstillError(
            'Weights from a language model need the openai package; run: pip install "fedstill[llm]"'
        ) from error


def _key(chat: Chat, url: str) -> str:
    key = os.environ.get(chat.api_key_variable, "").strip()
    if key:
        return key
    if _is_loopback(url):
        return "unused"
    raise Unusable(f"the environment variable {chat.api_key_variable} holds no key", final=True)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reply(sdk: ModuleType, connection: Any, chat: Chat, messages: list[dict[str, str]]) -> str:
    # The service's own words stay out of the reasons: a 401 may quote part of the key, and reasons are recorded.
    try:
        answer = connection.chat.completions.create(model=chat.model, messages=messages, temperature=chat.temperature)
    except sdk.APITimeoutError as error:
        raise Unusable(f"no answer within {chat.timeout_s:g} s") from error
    except sdk.APIConnectionError as error:
        raise Unusable(f"the connection failed ({type(error.__cause__).__name__})") from error
    except sdk.APIStatusError as error:
        raise _refusal(error.status_code, error.response.headers.get("retry-after", "")) from error
    except (sdk.APIError, json.JSONDecodeError) as error:
        raise Unusable("the answer is not a chat completion") from error
    return _content(answer)


def _refusal(status: int, retry_after: str) -> Unusable:
    is_passing = status == 429 or status >= 500
    return Unusable(f"HTTP status {status}", final=not is_passing, retry_after_s=_retry_after_s(retry_after))


def _retry_after_s(header: str) -> float:
    """Seconds a Retry-After header asks for, as a number or a date, within 0 and the cap; 0 if it says nothing."""
    try:
        if header.strip().isdecimal():
            wait_s = float(header)
        else:
            wait_s = (parsedate_to_datetime(header).astimezone(UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(wait_s, 0.0), LONGEST_RETRY_AFTER_S)


def _content(answer: Any) -> str:
    # The SDK does not validate: a page of HTML arrives as a string, a missing field as None.
    try:
        content = answer.choices[0].message.content
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise Unusable("the answer is not a chat completion") from error
    if not isinstance(content, str):
        raise Unusable("the answer holds no text")
    return content
