from __future__ import annotations

import json
import math

from fedstill.common.events import Rested, Step, from_json, to_json


def test_progress_crosses_as_json() -> None:
    for event in (Rested("books"), Step("books", "train", 3, 9, epochs=2, loss=0.25)):
        assert from_json(json.loads(json.dumps(to_json(event)))) == event
    first = from_json(json.loads(json.dumps(to_json(Step("books", "train", 0, 9)))))  # no epoch has ended yet
    assert isinstance(first, Step)
    assert math.isnan(first.loss)
