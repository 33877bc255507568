"""Phases that are taken step by step on a GPU, against the ordinary path; these need a card, and skip without one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.fast.card import meet
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.precision import Precision
from fedstill.learning.predict import predict
from tests.learning.fast.test_gpu import FAMILIES, model, moved, texts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def stepping(family: str = "bert", seed: int = 0, dropout: float = 0.0, steps: bool = True) -> nn.Module:
    module = model(family, dropout, seed)
    accelerate(module, Fast(steps=steps))
    return module


def conversation(
    module: nn.Module, seed: int, said: list[Any], precision: Precision = "bf16", **settings: Any
) -> Callable[[], Phase]:
    """Six steps, every other one with a second batch, and what the model says after each."""
    data, also = texts(40, seed=seed), texts(5, seed=9 + seed)
    phase = Phase(module, data, PhaseSettings(batch=8, **settings), 1e-3, 7, precision, steps=8)

    def go() -> Phase:
        for step in range(6):
            rows = torch.arange(step * 5, step * 5 + 8 - step % 3)

            def loss(logits: Tensor, more: Tensor | None = None, rows: Tensor = rows) -> Tensor:
                value = ce(logits, data.labels[rows].cuda()).mean()
                said.append(phase.gradient_norm(value))
                return value if more is None else value + 0.5 * ce(more, also.labels.cuda()).mean()

            said.append(float(phase.step(rows, loss, also if step % 2 else None)))
            said.append(predict(module, data.pick(np.arange(11)), precision))
        return phase

    return go


def error(found: list[list[Any]], exact: list[list[Any]]) -> float:
    """The root of the mean squared difference of everything that was said."""
    mine, true = ([np.asarray(part, float).ravel() for said in every for part in said] for every in (found, exact))
    squares = np.square(np.concatenate(mine) - np.concatenate(true))
    return float(np.sqrt(squares.mean()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"restart": "batch"}, {"clip": 0.3, "weight_decay": 0.01}])
def test_steps_together_are_as_near_to_fp32_as_hugging_face_s_own_code(family: str, settings: dict[str, Any]) -> None:
    ways = (True, False, False, False)
    fast, plain, exact, starts = ([stepping(family, seed, steps=on) for seed in range(3)] for on in ways)
    said: list[list[list[Any]]] = [[[] for _ in range(3)] for _ in range(3)]
    meet([conversation(m, seed, said[0][seed], **settings) for seed, m in enumerate(fast)])
    for modules, own, precision in ((plain, said[1], "bf16"), (exact, said[2], "fp32")):
        for seed, module in enumerate(modules):
            accelerate(module, Fast.model_validate(False))
            conversation(module, seed, own[seed], precision, **settings)()  # type: ignore[arg-type]
    assert error(said[0], said[2]) < 1.5 * error(said[1], said[2])
    if "restart" in settings:
        return  # AdamW's first step follows the sign of a gradient, also where that is nothing but rounding
    for start, mine, other in zip(starts, fast, plain, strict=True):
        assert torch.cosine_similarity(moved(start, mine), moved(start, other), 0) > 0.9


def test_a_question_before_the_first_step_leaves_the_parameters_as_they_are() -> None:
    from fedstill.learning.fast.gpu.stack import STACKS

    STACKS.clear()  # so that graphs are captured while the question is asked
    module, start = stepping(), stepping()
    phase = Phase(module, texts(8), PhaseSettings(batch=8), 1e-3, 7, "bf16", steps=8)
    assert torch.isfinite(phase.spoken(phase.data)).all()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), start.parameters(), strict=True))


def test_twice_gives_the_same_bits_with_dropout_and_models_keep_their_own_numbers() -> None:
    ends = []
    for _ in range(2):
        modules = [stepping(seed=seed, dropout=0.1) for seed in range(3)]
        phases = meet([conversation(m, seed, []) for seed, m in enumerate(modules)])
        assert [phase.taken for phase in phases] == [6, 6, 6]
        ends.append([p.detach().cpu() for m in modules for p in m.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_who_goes_on_alone_remembers_its_moments() -> None:
    modules, plain = ([stepping(seed=seed) for seed in range(2)] for _ in range(2))
    accelerate(plain[1], Fast.model_validate(False))
    rows = torch.arange(8)
    phases = meet([conversation(m, seed, []) for seed, m in enumerate(modules)])
    alone = conversation(plain[1], 1, [])()
    start = stepping(seed=1)
    for phase in (phases[1], alone):
        for _ in range(2):
            phase.step(rows, lambda logits, p=phase: ce(logits, p.data.labels[rows].cuda()).mean())  # type: ignore[misc]
    assert torch.cosine_similarity(moved(start, modules[1]), moved(start, plain[1]), 0) > 0.9


def test_a_round_later_the_same_graphs_serve_other_models() -> None:
    from fedstill.learning.fast.gpu.stack import STACKS

    STACKS.clear()
    first, second = ([stepping(seed=seed) for seed in seeds] for seeds in ((0, 1), (2, 3)))
    meet([conversation(m, seed, []) for seed, m in enumerate(first)])
    kept = [p.detach().clone() for m in first for p in m.parameters()]
    stacks = {id(stack) for stack in STACKS.values()}
    gc.collect()  # a stack is free when its phases are gone
    meet([conversation(m, seed, []) for seed, m in enumerate(second)])
    assert {id(stack) for stack in STACKS.values()} == stacks
    assert all(torch.equal(a, p) for a, p in zip(kept, (p for m in first for p in m.parameters()), strict=True))
