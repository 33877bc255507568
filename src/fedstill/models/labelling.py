"""Labels for new texts, from a model that has learnt them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedstill.common.errors import FedstillError
from fedstill.common.rows import Rows
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.predict import predict
from fedstill.models.text_to_text import TextToText

if TYPE_CHECKING:
    from fedstill.models.model import Model

LONGEST = 128
"""The tokens of a text that are read where nobody says how many: as many as an experiment reads by default."""

Texts = Sequence[str] | Sequence[tuple[str, str]]
"""Texts, or pairs of texts."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of some texts, in their order.

    >>> found = model.predict(["lovely, thank you"])
    >>> found.labels, found.probabilities.shape, found.classes
    (['good'], (1, 2), ('bad', 'good'))
    """

    labels: list[str]
    """The likeliest label of each text."""
    probabilities: npt.NDArray[np.float64]
    """[texts, classes]"""
    classes: tuple[str, ...]
    """The labels of the columns of `probabilities`."""

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self) -> Rows:
        """A row a text: its label, and the probability of every class under the class's name."""
        return Rows(
            {"label": label} | dict(zip(self.classes, values, strict=True))
            for label, values in zip(self.labels, self.probabilities.tolist(), strict=True)
        )

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`."""
        return self.rows().to_pandas()


def label(model: Model, texts: Texts, allowed: Sequence[str] | None = None, int8: bool = False) -> Predictions:
    """The labels of texts or pairs, among those that are `allowed` (default: all)."""
    if model.tokenizer is None:
        raise FedstillError(f"{model.spec} reads images, and labels no texts.")
    if isinstance(texts, str):
        raise FedstillError("give a list of texts: [text], if it is one.")
    given = list(texts)
    firsts = [text if isinstance(text, str) else text[0] for text in given]
    seconds = [text[1] for text in given if not isinstance(text, str)]
    if seconds and len(seconds) < len(firsts):
        raise FedstillError("give texts or pairs of texts, not some of each.")
    if not firsts:
        return Predictions([], np.empty((0, len(model.labels))), model.labels)
    encoded = model.tokenizer.encode(firsts, seconds or None, _length(model))
    store = TokenStore(*encoded, pad_id=model.tokenizer.pad_id, pads_left=model.pads_left)
    logits = predict(model.module, Examples(store, np.arange(len(firsts))), int8=int8)
    forbidden = torch.tensor([allowed is not None and name not in allowed for name in model.labels])
    probabilities = logits.masked_fill(forbidden, -torch.inf).double().softmax(-1).numpy()
    return Predictions([model.labels[best] for best in probabilities.argmax(-1)], probabilities, model.labels)


def pipeline(model: Model, **options: Any) -> Any:
    """A `transformers` pipeline for text classification around a model that transformers made."""
    if model.spec.is_small or isinstance(model.module, TextToText):
        raise FedstillError(
            f"{model.spec} is no sequence classifier of transformers, which alone have such a pipeline: use `predict`."
        )
    from transformers import pipeline as made_by_transformers

    model.module.eval()
    how = {"model": model.module, "tokenizer": getattr(model.tokenizer, "inner", None)}
    cut = {"truncation": True, "max_length": _length(model)}
    return made_by_transformers("text-classification", **how | cut | options)


def _length(model: Model) -> int:
    """The most tokens that are read of a text."""
    wanted = model.max_length or LONGEST
    return min(wanted, model.longest or wanted)
