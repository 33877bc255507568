"""What methods that average parameters share: the weights of the mean, and how many rows each client trains on."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Federation
from fedstill.data.examples import Labelled
from fedstill.parties.client import Client
from fedstill.wire.messages import MOST_ROWS, Done, Message, number
from fedstill.wire.replies import Replies, Weights, uniform


@dataclass(frozen=True)
class Limit(Message):
    """The most rows that a client trains on in this round."""

    most: int = number(1, MOST_ROWS)


@dataclass(frozen=True)
class Averaging:
    """`weights`: clients count the same, or by n_k, the rows that they train on.

    `balance` (FedDRS, section 5.3): the active clients train on as many rows as the smallest of them has, but on
    `min_samples` if they have so many; that makes n_k the same for all who have `min_samples`.
    """

    weights: Weights = "size"
    balance: bool = False
    min_samples: Annotated[int, Field(ge=1)] = 1

    def shares(self, ups: Replies[Any]) -> Tensor:
        """1/K, or n_k/n, none above the experiment's `max_share`."""
        if self.weights == "uniform":
            return uniform(len(ups))
        sizes = ups.sizes
        if self.balance:
            sizes = sizes.clamp(max=max(self.min_samples, int(sizes.min())))
        return ups.cap(sizes / sizes.sum())

    def rows_for_all(self, fed: Federation) -> int:
        """As many rows as the smallest active client has; notes if most of the others lose half of theirs by that."""
        sizes = [fed.clients[name].size for name in fed.active]
        wanted = max(self.min_samples, min(sizes))
        if 2 * wanted < median(sizes):
            fed.server.notes.append(
                f"balance: every active client trains on {wanted} rows at most, as many as the smallest has, which is "
                "less than half of what most have; raise `min_samples`, or set `balance: false`."
            )
        return wanted

    def even_out(self, fed: Federation) -> None:
        """With `balance`, tell the active clients how many rows to train on in this round."""
        if self.balance:
            fed.call("limit", Limit(self.rows_for_all(fed)))

    def limit(self, me: Client, limit: Limit) -> Done:
        """A client's part of it."""
        me.memory.numbers["rows"] = limit.most
        return Done()

    def rows(self, me: Client) -> Labelled:
        """The rows that a client trains on."""
        return me.training_rows(int(me.memory.numbers.get("rows", 0)))
