"""What an engine is: it carries bytes between the server's process and the clients, and saves the clients' states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from fedstill.common.files import FileReference
from fedstill.engines.books import Books
from fedstill.plan.plan import Plan
from fedstill.wire.replies import Failure


class Engine(ABC):
    """Carries messages as bytes, and never looks into them."""

    def __init__(self, plan: Plan, books: Books) -> None:
        self.plan, self.books = plan, books
        self.largest = 0
        """The most bytes that a reply to the next call can have; an engine need not take in more."""
        self.is_apart = False
        """Whether clients work in other processes, so that the server's process can do something else meanwhile."""
        self.own_models: dict[str, str] = {}
        """The names of models that clients chose themselves, instead of the plan's."""

    @abstractmethod
    def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, bytes | Failure]:
        """Deliver each client's call; returns its reply, or why there is none."""

    @abstractmethod
    def save(self, round: int) -> Mapping[str, FileReference]:
        """Write the clients' states after this round to disk."""

    @abstractmethod
    def restore(self, files: Mapping[str, FileReference], round: int) -> None:
        """Restore the clients' states after this round from these files."""

    @abstractmethod
    def export(self) -> None:
        """Write the clients' models and predictions into the record."""

    @abstractmethod
    def close(self) -> None:
        """End processes and close files."""

    def save_soon(self, round: int) -> None:  # noqa: B027
        """Clients that wait anyway may begin to write their states; `save` writes what has changed since."""

    # Only an engine whose clients may come and go overrides these.

    def open(self) -> None:  # noqa: B027
        """Before the first call."""

    def enter(self, round: int) -> None:  # noqa: B027
        """Before a round; an engine may end the run here by raising."""

    def judge(self, answered: Collection[str], failures: Sequence[Failure]) -> None:
        """After every call: which clients gave a usable reply, and which did not."""
        for failure in failures:
            self.books.note(failure.client, f"no usable reply: {failure.reason}")

    def explain(self, error: Exception) -> Exception:
        """The exception that ends a run in which too few clients answered."""
        return error
