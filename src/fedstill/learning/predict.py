"""Prediction: in eval mode, in batches of similar length for little padding, results in the data's order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedstill.data.examples import Examples
from fedstill.learning.fast import card, encoder, fast_of
from fedstill.learning.fast.int8 import quantised
from fedstill.learning.precision import Precision, autocast


def forward(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The logits of a batch: our models return them, Hugging Face's return them inside an object."""
    card.heed_stop()
    quick = encoder.logits(model, batch, fast_of(model))
    if quick is not None:
        return quick
    output = model(**batch)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def predict(
    model: nn.Module, data: Examples, precision: Precision = "fp32", batch: int = 64, int8: bool = False
) -> Tensor:
    """The logits [N, C] of the data, in float32 (float64 for float64 models), on the CPU.

    `int8`: nearly the same, with weights in eight bits, which is faster on a CPU.
    """
    if int8:
        return _in_batches(model, quantised(model), data, "fp32", batch)
    if (packed := card.predict(model, data, precision)) is not None:
        return packed
    logits = _in_batches(model, lambda given: forward(model, given), data, precision, batch)
    return logits.double() if logits.dtype == torch.float64 else logits.float()


def generate(model: nn.Module, data: Examples, precision: Precision = "fp32", batch: int = 64) -> Tensor:
    """The labels [N] that a text-to-text model writes, -1 where it writes none, on the CPU."""
    return _in_batches(model, lambda given: model.generate_labels(**given), data, precision, batch)  # type: ignore[operator]


def _in_batches(
    model: nn.Module, answer: Callable[[dict[str, Tensor]], Tensor], data: Examples, precision: Precision, batch: int
) -> Tensor:
    device = next(model.parameters()).device
    order = torch.argsort(torch.from_numpy(data.lengths), descending=True, stable=True)
    was_training = model.training
    model.eval()
    pieces = []
    with torch.inference_mode(), autocast(device, precision):
        for rows in torch.split(order, batch):
            card.heed_stop()
            pieces.append(answer(data.batch(rows, device)))
    model.train(was_training)
    sorted_answers = torch.cat(pieces).cpu()
    answers = torch.empty_like(sorted_answers)
    answers[order] = sorted_answers
    return answers
