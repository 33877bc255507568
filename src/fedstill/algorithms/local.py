"""Local: every client alone; the lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstill.algorithms.base import Algorithm, Role
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done
from fedstill.wire.replies import Replies


@dataclass(frozen=True)
class Local(Algorithm):
    """Every client trains on its own rows, T times E epochs; nothing is exchanged."""

    has_server_model: ClassVar[bool] = False
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "0"

    def opine(self, me: Client) -> Done:
        return Done(loss=min(me.train().mean))

    def server(self, me: Server, ups: Replies[Done]) -> None:
        me.observe("losses", {name: up.loss for name, up in ups.items() if up.loss is not None})
