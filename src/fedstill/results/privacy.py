"""The ledger of epsilon: what every client has spent of its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.parties.private import EPSILON
from fedstill.plan.plan import Plan


def spent(plan: Plan, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The budget and what each client has spent of it, for the summary; None if nothing was promised.

    What was spent and left after every round is in `metrics.jsonl`, as the observation `epsilon`.
    """
    settings = plan.experiment.privacy
    if settings is None:
        return None
    told = {line["party"]: line["values"]["spent"] for line in metrics if line.get("observation") == EPSILON}
    return {
        "kind": settings.kind,
        "budget": settings.epsilon,
        "delta": settings.delta,
        "neighbours": "one training row replaced by another",
        "noise": "of the operating system" if plan.is_real else "seeded (simulation)",
        "spent": {name: told.get(name, 0.0) for name in sorted(plan.clients)},
    }


def in_words(ledger: Mapping[str, Any]) -> str:
    """One line: how much of epsilon was spent, by how many, and whether the noise is worth anything."""
    by_client = ledger["spent"]
    least, most = min(by_client.values()), max(by_client.values())
    many = f"{least:.2f}" if most - least < 0.005 else f"{least:.2f} to {most:.2f}"
    who = f"each of {len(by_client)} clients" if len(by_client) > 1 else "the client"
    return (
        f"privacy: epsilon {many} of {ledger['budget']:.2f} spent by {who} (delta "
        f"{ledger['delta']:g}, {ledger['kind']}, noise {ledger['noise']})"
    )
