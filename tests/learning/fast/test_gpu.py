"""The GPU's fast path against Hugging Face's own computation; these need a card, and skip where there is none."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedstill.data.examples import Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.losses import ce, kl
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.precision import choose_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

transformers = pytest.importorskip("transformers")
FAMILIES = ["bert", "roberta", "distilbert"]


def model(family: str, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    common: dict[str, Any] = {"vocab_size": 500, "max_position_embeddings": 140, "num_labels": 3}
    if family == "distilbert":
        config = transformers.DistilBertConfig(
            dim=128, n_layers=3, n_heads=4, hidden_dim=256, dropout=dropout, attention_dropout=dropout,
            seq_classif_dropout=dropout, pad_token_id=0, **common,
        )  # fmt: skip
    else:
        kind = transformers.BertConfig if family == "bert" else transformers.RobertaConfig
        config = kind(
            hidden_size=128, num_hidden_layers=3, num_attention_heads=2, intermediate_size=256,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, pad_token_id=int(family == "roberta"),
            **common,
        )  # fmt: skip
    module: nn.Module = transformers.AutoModelForSequenceClassification.from_config(config).cuda()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1) if parameter.ndim > 1 else None
    accelerate(module, Fast())
    return module


def texts(many: int, seed: int = 0, pairs: bool = False) -> Labelled:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 129, many)
    lengths[0] = 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(3, 490, offsets[-1]).astype(np.int32)
    ids[offsets[:-1]] = 2  # as a tokenizer's first token
    types = (random.random(offsets[-1]) < 0.4).astype(np.uint8) if pairs else None
    labels = torch.from_numpy(ids[offsets[1:] - 1].astype(np.int64) % 3)
    return Labelled(TokenStore(ids, offsets, types), np.arange(many), labels)


def together() -> Any:
    from fedstill.learning.fast.gpu import together as module

    return module


def job(module: nn.Module, data: Labelled, **settings: Any) -> Any:
    phase = Phase(module, data, PhaseSettings(**({"epochs": 1, "batch": 16} | settings)), 1e-3, 7, "bf16")
    from fedstill.learning.fast.gpu.schedule import Job

    return Job(phase, data.labels, ce)


def moved(before: nn.Module, after: nn.Module) -> torch.Tensor:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return torch.cat([(b - a).detach().flatten() for a, b in pairs])


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_gpu_that_was_chosen_does_not_plan_attention_shape_by_shape(name: str) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    choose_device(name)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_equal_the_model_s_own_within_bf16(family: str) -> None:
    module, data = model(family).eval(), texts(50, pairs=family == "bert")
    with torch.no_grad():
        own = module(**data.batch(torch.arange(50), torch.device("cuda"))).logits.cpu()
    found = together().predict_packed(module, data, most_tokens=700)
    assert (found - own).norm() / own.norm() < 2e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_goes_where_the_model_s_own_gradient_leads(family: str) -> None:
    module, data = model(family), texts(16, pairs=family == "bert")
    before = copy.deepcopy(module)
    # AdamW's first step has every number's sign of the gradient: compare the optimiser's mean instead.
    from fedstill.learning.fast.gpu.stack import STACKS

    STACKS.clear()
    together().run_all([job(module, data)])
    (stack,) = STACKS.values()
    before.eval()
    batch = data.batch(torch.arange(16), torch.device("cuda"))
    ce(before(**batch).logits, data.labels.cuda()).mean().backward()
    from fedstill.learning.fast.anatomy import dissect
    from fedstill.learning.fast.gpu import stack as parts

    anatomy = dissect(before)
    assert anatomy is not None
    for slots, group in ((parts.matrices(anatomy), stack.matrices), (parts.vectors(anatomy), stack.vectors)):
        own = torch.cat([part.grad.flatten() for slot in slots for part in slot])
        mine = torch.cat([view[0].flatten().float() for view in group.views(group.gradient)])
        assert (own - mine).norm() / own.norm() < 2e-2


def test_losses_fall_as_they_do_in_hugging_face_s_own_code() -> None:
    data = texts(160)
    fast, plain = (model("bert", seed=3) for _ in range(2))
    accelerate(plain, Fast.model_validate(False))
    settings = PhaseSettings(epochs=4, batch=16)
    found = [Phase(module, data, settings, 1e-3, 7, "bf16").run(data.labels, ce).mean for module in (fast, plain)]
    assert np.allclose(found[0], found[1], rtol=0.05)
    assert found[0][-1] < found[0][0] * 0.9


def test_an_optimiser_that_restarts_every_epoch_learns_as_in_hugging_face_s_own_code() -> None:
    data = texts(160)
    fast, plain, never = (model("bert", seed=3) for _ in range(3))
    accelerate(plain, Fast.model_validate(False))
    settings = PhaseSettings(epochs=4, batch=16, restart="epoch")
    found = [Phase(module, data, settings, 1e-3, 7, "bf16").run(data.labels, ce).mean for module in (fast, plain)]
    assert np.allclose(found[0], found[1], rtol=0.05)
    Phase(never, data, PhaseSettings(epochs=4, batch=16), 1e-3, 7, "bf16").run(data.labels, ce)
    start = model("bert", seed=3)
    sizes = [float(moved(start, module).norm()) for module in (fast, plain, never)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)  # no restart ends with smaller steps, so elsewhere
    assert sizes[2] < 0.9 * sizes[0]


def test_an_optimiser_that_restarts_every_batch_is_left_to_the_ordinary_path() -> None:
    from fedstill.learning.fast import card

    data = texts(40)
    phase = Phase(model("bert"), data, PhaseSettings(epochs=1, batch=16, restart="batch"), 1e-3, 7, "bf16")
    assert card.learn(phase, data.labels, ce, None) is None
    assert len(phase.run(data.labels, ce).mean) == 1


def test_clients_together_learn_what_each_learns_alone() -> None:
    sizes = [40, 64, 33]
    alone, stacked = ([model("bert", seed=s) for s in range(3)] for _ in range(2))
    starts = [copy.deepcopy(m) for m in alone]
    for number, size in enumerate(sizes):
        together().run_all([job(alone[number], texts(size, seed=number), epochs=2)])
    losses = together().run_all(
        [job(m, texts(n, seed=k), epochs=2) for k, (m, n) in enumerate(zip(stacked, sizes, strict=True))]
    )
    assert [len(mean) for mean, _ in losses] == [2, 2, 2]
    # The order of batches differs but for the first client, so only it must end at the same place.
    first = moved(starts[0], alone[0]), moved(starts[0], stacked[0])
    assert (first[0] - first[1]).norm() / first[0].norm() < 0.1
    for start, one, other in zip(starts, alone, stacked, strict=True):
        assert 0.5 < moved(start, other).norm() / moved(start, one).norm() < 2


def test_twice_gives_the_same_bits_with_dropout() -> None:
    ends = []
    for _ in range(2):
        modules = [model("bert", dropout=0.1, seed=s) for s in range(2)]
        together().run_all([job(m, texts(40, seed=k)) for k, m in enumerate(modules)])
        ends.append([p.detach().cpu() for m in modules for p in m.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_distillation_moves_towards_the_teacher() -> None:
    data, module = texts(96), model("bert", dropout=0.1)
    teacher = torch.randn(96, 3, generator=torch.Generator().manual_seed(0)) * 2
    losses = Phase(module, data, PhaseSettings(epochs=6, batch=16), 2e-3, 7, "bf16").run(teacher, kl).mean
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("longest", [40, 300])
def test_long_texts_and_short_ones_learn_as_in_hugging_face_s_own_code(longest: int) -> None:
    random = np.random.default_rng(1)
    lengths = random.integers(1, longest + 1, 48)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(3, 490, offsets[-1]).astype(np.int32)
    data = Labelled(TokenStore(ids, offsets, None), np.arange(48), torch.from_numpy(random.integers(0, 3, 48)))
    config = transformers.BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    fast = transformers.BertForSequenceClassification(config).cuda()
    plain = copy.deepcopy(fast)
    accelerate(fast, Fast())
    found = [
        Phase(module, data, PhaseSettings(epochs=3, batch=16), 1e-3, 7, "bf16").run(data.labels, ce).mean
        for module in (fast, plain)
    ]
    assert np.allclose(found[0], found[1], rtol=0.03)


def test_models_of_different_kinds_learn_side_by_side() -> None:
    modules = [model(family, dropout=0.1) for family in FAMILIES]
    before = [copy.deepcopy(module) for module in modules]
    losses = together().run_all([job(m, texts(40, seed=k)) for k, m in enumerate(modules)])
    assert all(len(mean) == 1 and np.isfinite(mean[0]) for mean, _ in losses)
    assert all(moved(a, b).norm() > 0 for a, b in zip(before, modules, strict=True))
