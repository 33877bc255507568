"""What an engine is: it carries bytes between the server's process and the clients, and has them keep their states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from fedstill.common.files import FileReference
from fedstill.engines.books import Books
from fedstill.plan.plan import Plan
from fedstill.wire.replies import Failure


class Engine(ABC):
    """Never looks into what it carries."""

    def __init__(self, plan: Plan, books: Books) -> None:
        self.plan, self.books = plan, books

    @abstractmethod
    def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, bytes | Failure]:
        """Bring each client its call and come back with its reply, or with why there is none."""

    @abstractmethod
    def save(self, round: int) -> Mapping[str, FileReference]:
        """Bring the clients' states after that round to disk."""

    @abstractmethod
    def restore(self, files: Mapping[str, FileReference], round: int) -> None:
        """Let the clients go on from those states, which are those after that round."""

    @abstractmethod
    def export(self) -> None:
        """Write the clients' models and predictions into the record."""

    @abstractmethod
    def close(self) -> None:
        """Let go of processes and files."""

    # Only an engine whose clients come and go has more to do at these moments.

    def open(self) -> None:  # noqa: B027
        """Before the first call."""

    def enter(self, round: int) -> None:  # noqa: B027
        """Before a round; an engine may end the run here by raising."""

    def judge(self, answered: Collection[str], failures: Sequence[Failure]) -> None:
        """After every call: who answered usably, and who did not."""
        for failure in failures:
            self.books.note(failure.client, f"no usable reply: {failure.reason}")

    def explain(self, error: Exception) -> Exception:
        """What ends a run in which too few clients answered."""
        return error
