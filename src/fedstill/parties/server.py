"""The server: a party that holds no private rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedstill.data.tokens import Examples
from fedstill.parties.party import Party


@dataclass
class Server(Party):
    """The party that hears everybody."""

    pooled: Examples | None = field(default=None)
    """All private training rows together: simulation only, for the upper bound."""
