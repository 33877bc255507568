"""Prediction: eval mode, sorted by length so that little is padding, answers in the order asked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstill.data.examples import Examples
from fedstill.learning.precision import Precision, autocast


def forward(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The logits of a batch: our models return them, Hugging Face's return them inside an object."""
    output = model(**batch)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def predict(model: nn.Module, data: Examples, precision: Precision = "fp32", batch: int = 64) -> Tensor:
    """The logits [N, C] of the data, in float32 (float64 models stay so), on the CPU."""
    device = next(model.parameters()).device
    order = torch.argsort(torch.from_numpy(data.lengths), descending=True, stable=True)
    was_training = model.training
    model.eval()
    pieces = []
    with torch.inference_mode(), autocast(device, precision):
        for rows in torch.split(order, batch):
            pieces.append(forward(model, data.batch(rows, device)))
    model.train(was_training)
    logits = torch.cat(pieces)
    logits = logits.double() if logits.dtype == torch.float64 else logits.float()
    answer = torch.empty_like(logits, device="cpu")
    answer[order] = logits.cpu()
    return answer
