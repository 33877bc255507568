"""A question to a language model over HTTP, asked again until its answer can be used."""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fedstill.common.errors import FedstillError

OPENAI_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
LONGEST_RETRY_AFTER_S = 60.0

T = TypeVar("T")


class Unusable(ValueError):
    """Nothing came of asking; the message says why in a few words."""

    def __init__(self, reason: str, *, final: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Chat:
    """Which model to ask, and how patiently. The environment says where and with which key: an experiment may not."""

    model: str = "gpt-4"
    timeout_s: float = 30.0
    attempts: int = 4
    backoff_s: float = 1.0
    temperature: float = 0.0

    def ask(
        self,
        messages: Sequence[dict[str, str]],
        read: Callable[[str], T],
        sleep: Callable[[float], None] = time.sleep,
    ) -> T:
        """What `read` makes of the answer; where it raises Unusable, the model is asked again, until patience ends."""
        sdk = _sdk()
        url = os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        last = "no attempt was allowed"
        with sdk.OpenAI(api_key=_key(url), base_url=url, timeout=self.timeout_s, max_retries=0) as connection:
            for attempt in range(self.attempts):
                try:
                    return read(_reply(sdk, connection, self, messages))
                except Unusable as problem:
                    if problem.final:
                        raise
                    last = str(problem)
                    pause_s = max(self.backoff_s * 2**attempt, problem.retry_after_s)
                if attempt + 1 < self.attempts:
                    sleep(pause_s)
        raise Unusable(f"no usable answer from {self.model} in {self.attempts} attempts; the last: {last}")


def _sdk() -> ModuleType:
    try:
        # By name, so that type checking does not need the optional package either.
        return importlib.import_module("openai")
    except ImportError as error:
        raise FedstillError(
            'Asking a language model needs the openai package; run: pip install "fedstill[llm]"'
        ) from error


def _key(url: str) -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if key:
        return key
    if _is_loopback(url):
        return "unused"
    raise Unusable(f"the environment variable {KEY_VARIABLE} holds no key", final=True)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reply(sdk: ModuleType, connection: Any, chat: Chat, messages: Sequence[dict[str, str]]) -> str:
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
