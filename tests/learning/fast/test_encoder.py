import copy

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from fedstill.data.examples import Examples, Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate, encoder, switched_off
from fedstill.learning.features import features
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.precision import input_gradients
from fedstill.learning.predict import forward
from fedstill.models import ModelSpec, build
from tests.conftest import BAD, GOOD, PLAIN

LABELS = ("a", "b", "c")
SMALL = {"num_labels": 3, "vocab_size": 60, "max_position_embeddings": 34}


def roberta():
    return RobertaForSequenceClassification(
        RobertaConfig(
            **SMALL, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, type_vocab_size=1
        )
    )


def distilbert(activation="gelu"):
    return DistilBertForSequenceClassification(
        DistilBertConfig(**SMALL, dim=24, n_layers=2, n_heads=3, hidden_dim=40, activation=activation)
    )


def tiny_bert(**options):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertForSequenceClassification(BertConfig(**SMALL, **(sizes | options)))


def pretrained(name):
    return build(ModelSpec(name=name), LABELS, "bert-tiny", 0).module


MODELS = {
    "bert-tiny": lambda: pretrained("bert-tiny"),
    "minilm[:2]": lambda: pretrained("minilm[:2]"),
    "roberta": roberta,
    "distilbert": distilbert,
    "distilbert relu": lambda: distilbert("relu"),
    "one layer": lambda: tiny_bert(num_hidden_layers=1),
    "another activation": lambda: tiny_bert(hidden_act="gelu_new"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(0)
    module = MODELS[request.param]().eval()
    with torch.no_grad():  # a fresh model's biases are zero and its norms one, which would hide an error in them
        for name, value in module.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():
                value.add_(torch.randn_like(value), alpha=0.1)
    return module


def batches(module):
    """Every kind of batch that a model may meet; for a large model, which takes its time, those that it will meet."""
    random = np.random.default_rng(1)
    pad = module.config.pad_token_id
    longest = min(34, module.config.max_position_embeddings) - (2 if hasattr(module, "roberta") else 0)

    def texts(lengths):
        lengths = np.array(lengths)[:, None]
        mask = np.arange(lengths.max()) < lengths
        ids = np.where(mask, random.integers(2, 60, mask.shape), pad)
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}

    found = {
        "different lengths": texts([3, 17, 1, 9, 9, 16, 2, 30, *random.integers(1, 31, 24)]),
        "equal lengths": texts([7, 7, 7]),
        "one token": texts([1, 1]),
        "one text": texts([5]),
        "at the limit": texts([longest, 4]),
        "no mask": {"input_ids": texts([6, 6])["input_ids"]},
    }
    holes = texts([12, 5, 20])
    holes["attention_mask"] *= torch.from_numpy(random.integers(0, 2, holes["attention_mask"].shape))
    holes["attention_mask"][:, 0] = 1
    padding_inside = texts([12, 5, 20])
    padding_inside["input_ids"][:, 2:4] = pad
    found |= {"holes": holes, "padding inside": padding_inside}
    if getattr(module.config, "type_vocab_size", 1) > 1:
        pairs = texts([12, 5, 20])
        found["pairs"] = pairs | {"token_type_ids": (torch.arange(20) > 3).long() * pairs["attention_mask"]}
    is_large = module.config.vocab_size > 60
    return {kind: found[kind] for kind in ("different lengths", "pairs", "holes")} if is_large else found


def outcome(module, compute, batch):
    """Logits, and the gradient of a random weighing of them."""
    module.zero_grad(set_to_none=True)
    logits = compute(batch)
    weights = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(2))
    (logits * weights).sum().backward()
    return logits.detach(), {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}


@pytest.mark.parametrize("last_layer", [True, False])
def test_in_float64_logits_and_gradients_are_those_of_hugging_face(model, last_layer):
    module, fast = copy.deepcopy(model).double(), Fast(last_layer=last_layer)
    for kind, batch in batches(module).items():
        expected, slopes = outcome(module, lambda given: module(**given).logits, batch)
        found, ours = outcome(module, lambda given: encoder.logits(module, given, fast), batch)
        assert (found - expected).abs().max() < 1e-9, kind
        with torch.inference_mode():
            assert (encoder.logits(module, batch, fast) - expected).abs().max() < 1e-9, kind
        for name, slope in slopes.items():
            assert (ours[name] - slope).abs().max() < 1e-9, (kind, name)
        assert sum(slope.abs().sum() for slope in slopes.values()) > 1


@pytest.mark.parametrize("last_layer", [True, False])
def test_vectors_in_the_place_of_words_give_those_of_hugging_face_and_get_their_gradient(model, last_layer):
    module, fast = copy.deepcopy(model).double(), Fast(last_layer=last_layer)
    size, longest = module.get_input_embeddings().weight.shape[1], 30
    for texts, width in ((1, 1), (3, 7), (4, 8), (2, longest)):  # 4 x 8 is a multiple of what rows are rounded up to
        vectors = torch.randn(texts, width, size, dtype=torch.float64, requires_grad=True)
        with torch.inference_mode():  # what a prediction leaves behind must serve training, too
            encoder.logits(module, {"inputs_embeds": vectors}, fast)
        found = []
        for compute in (lambda given: module(**given).logits, lambda given: encoder.logits(module, given, fast)):
            vectors.grad = None
            found.append((*outcome(module, compute, {"inputs_embeds": vectors}), vectors.grad))
        (expected, slopes, slope), (logits, ours, own) = found
        assert (logits - expected).abs().max() < 1e-9
        assert (own - slope).abs().max() < 1e-9
        assert all((ours[name] - value).abs().max() < 1e-9 for name, value in slopes.items())
        with input_gradients(module):
            alone = torch.autograd.grad(encoder.logits(module, {"inputs_embeds": vectors}, fast).sum(), vectors)[0]
        expected = torch.autograd.grad(module(inputs_embeds=vectors).logits.sum(), vectors)[0]
        assert (alone - expected).abs().max() < 1e-9
    assert all(p.requires_grad for p in module.parameters())


def reviews(name):
    """A batch of 32 texts, as different in length as real ones are."""
    random = np.random.default_rng(0)
    words = ["the", "a", "it", "was", "is", "not", "and", ",", ".", "!", *GOOD, *BAD, *PLAIN]
    texts = [" ".join(random.choice(words, length)) for length in random.integers(1, 40, 32)]
    ids, offsets, _ = build(ModelSpec(name=name), LABELS, "bert-tiny", 0).tokenizer.encode(texts, None, 64)
    return Examples(TokenStore(ids, offsets, None), np.arange(32)).batch(torch.arange(32), torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "last_layer"),
    [(name, last) for name in ("bert-tiny", "minilm[:2]", "roberta", "distilbert") for last in (True, False)]
    + [("minilm", True)],
)
def test_in_float32_they_are_so_up_to_rounding(name, last_layer):
    torch.manual_seed(0)
    module = MODELS[name]().eval() if name in MODELS else pretrained(name).eval()
    batch = batches(module)["different lengths"] if module.config.vocab_size == 60 else reviews(name)
    expected, slopes = outcome(module, lambda given: module(**given).logits, batch)
    found, ours = outcome(module, lambda given: encoder.logits(module, given, Fast(last_layer=last_layer)), batch)
    assert (found - expected).abs().max() < 1e-5
    norms = {name: slope.norm().item() for name, slope in slopes.items()}
    errors = {name: (ours[name] - slope).norm().item() for name, slope in slopes.items()}
    total = np.linalg.norm([*norms.values()])
    assert np.linalg.norm([*errors.values()]) < 1e-5 * total
    counted = {name: errors[name] / norm for name, norm in norms.items() if norm > 1e-6 * total}
    assert len(counted) > 0.6 * len(norms)
    assert max(counted.values()) < 1e-5, max(counted, key=counted.get)


@pytest.mark.parametrize("name", ["bert-tiny", "minilm[:2]", "roberta", "distilbert"])
def test_in_bf16_they_are_as_near_to_float32_as_hugging_faces_own(name):
    torch.manual_seed(0)
    module = MODELS[name]().eval()
    batch = batches(module)["different lengths"] if module.config.vocab_size == 60 else reviews(name)

    def in_bf16(compute):
        def logits(given):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return compute(given).float()

        return logits

    plain, ours = (lambda given: module(**given).logits), (lambda given: encoder.logits(module, given, Fast()))
    expected, slopes = outcome(module, plain, batch)
    theirs, found = (outcome(module, in_bf16(compute), batch) for compute in (plain, ours))
    assert 0 < (found[0] - expected).norm() < 1.1 * (theirs[0] - expected).norm()

    def error(gradients):
        return np.linalg.norm([(gradients[name] - slope).norm() for name, slope in slopes.items()])

    assert 0 < error(found[1]) < 1.1 * error(theirs[1])
    assert all(slope.dtype == torch.float32 for slope in found[1].values())


def test_computing_leaves_the_parameters_as_they_are(model):
    before = copy.deepcopy(model.state_dict())
    outcome(model, lambda given: encoder.logits(model, given, Fast()), batches(model)["different lengths"])
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_frozen_parts_get_no_gradient_and_the_others_theirs():
    torch.manual_seed(0)
    module = tiny_bert().double().eval()
    module.bert.embeddings.requires_grad_(False)
    module.bert.encoder.layer[0].attention.requires_grad_(False)
    batch = batches(module)["different lengths"]
    _, slopes = outcome(module, lambda given: module(**given).logits, batch)
    _, ours = outcome(module, lambda given: encoder.logits(module, given, Fast()), batch)
    assert module.bert.embeddings.word_embeddings.weight.grad is None
    assert all((ours[name] - slope).abs().max() < 1e-9 for name, slope in slopes.items())


def test_other_models_inputs_and_numbers_are_left_to_hugging_face():
    sizes = {"embedding_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    electra = ElectraForSequenceClassification(ElectraConfig(**SMALL, **sizes, intermediate_size=16)).eval()
    bert = tiny_bert().eval()
    batch = batches(bert)["different lengths"]
    accelerate(electra, Fast())
    assert encoder.logits(electra, batch, Fast()) is None
    torch.testing.assert_close(forward(electra, batch), electra(**batch).logits, rtol=0, atol=0)

    assert encoder.logits(bert, batch, Fast()) is not None
    assert encoder.logits(bert, batch, Fast(encoder=False)) is None
    vectors = torch.zeros(1, 3, 16)
    assert encoder.logits(bert, {"inputs_embeds": vectors}, Fast()) is not None
    for other in (vectors.double(), torch.zeros(1, 3, 15), torch.zeros(1, 35, 16), torch.zeros(1, 0, 16), vectors[0]):
        assert encoder.logits(bert, {"inputs_embeds": other}, Fast()) is None
    assert encoder.logits(bert, {"inputs_embeds": vectors, "attention_mask": torch.ones(1, 3)}, Fast()) is None
    assert encoder.logits(bert, batch | {"position_ids": batch["input_ids"]}, Fast()) is None
    with torch.autocast("cpu", dtype=torch.float16):
        assert encoder.logits(bert, batch, Fast()) is None
    masked = batch | {"attention_mask": batch["attention_mask"].flip(1)}
    assert encoder.logits(bert, masked, Fast()) is None
    assert encoder.logits(distilbert().eval(), batch | {"token_type_ids": batch["input_ids"]}, Fast()) is None
    assert encoder.logits(copy.deepcopy(bert).bfloat16(), batch, Fast()) is None


def test_a_model_with_a_part_of_somebody_elses_is_left_to_hugging_face():
    class Doubled(torch.nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    bert = tiny_bert().eval()
    bert.bert.encoder.layer[0].attention.self.query = Doubled(16, 16)
    assert encoder.logits(bert, batches(bert)["one text"], Fast()) is None


def test_a_text_that_is_too_long_is_an_error_of_hugging_faces_own():
    bert = tiny_bert().eval()
    accelerate(bert, Fast())
    batch = {"input_ids": torch.full((1, 35), 5), "attention_mask": torch.ones(1, 35, dtype=torch.long)}
    with pytest.raises((IndexError, RuntimeError)):
        forward(bert, batch)


def test_a_module_computes_so_only_where_it_was_told_and_the_path_is_on():
    torch.manual_seed(0)
    bert = tiny_bert()
    batch = batches(bert)["different lengths"]

    def drawn():
        torch.manual_seed(3)
        return forward(bert, batch)

    torch.manual_seed(3)
    plain = bert(**batch).logits
    assert torch.equal(drawn(), plain)
    accelerate(bert, Fast())
    assert not torch.allclose(drawn(), plain)  # the masks are others
    with switched_off():
        assert torch.equal(drawn(), plain)


def data_of(module, count=24):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 20, count)
    ids = random.integers(2, 60, lengths.sum()).astype(np.int32)
    store = TokenStore(ids, np.concatenate([[0], np.cumsum(lengths)]), None, module.config.pad_token_id)
    return Labelled(store, np.arange(count), torch.from_numpy(random.integers(0, 3, count)))


def test_features_are_seen_in_the_order_of_the_rows():
    torch.manual_seed(0)
    module = roberta()
    data = data_of(module)
    plain = features(module, data)
    accelerate(module, Fast())
    torch.testing.assert_close(features(module, data), plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("last_layer", [True, False])
def test_dropout_in_training_leaves_the_expectation_where_it_is(masks, last_layer):
    """With one layer and small weights the logits are all but linear in the masks."""
    torch.manual_seed(0)
    module = tiny_bert(num_hidden_layers=1).train()
    batch = {name: value[:8].repeat(100, 1) for name, value in batches(module)["different lengths"].items()}
    fast = Fast(masks=masks, last_layer=last_layer)
    with torch.no_grad():
        drawn = torch.cat([encoder.logits(module, batch, fast).view(100, 8, 3) for _ in range(8)])
        plain = torch.cat([module(**batch).logits.view(100, 8, 3) for _ in range(8)])
    error = (drawn.var(0) / 800 + plain.var(0) / 800).sqrt()
    assert ((drawn.mean(0) - plain.mean(0)).abs() < 5 * error).all()
    # As much noise as Hugging Face's: a mask that is left out somewhere, or drawn with another probability, shows here.
    assert drawn.std(0).mean() / plain.std(0).mean() == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("place", ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"])
def test_each_kind_of_dropout_makes_the_noise_that_hugging_faces_makes(place):
    torch.manual_seed(0)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    module = tiny_bert(num_hidden_layers=2, **(none | {place: 0.4}), initializer_range=0.3).train()
    batch = {name: value[:4].repeat(100, 1) for name, value in batches(module)["different lengths"].items()}
    with torch.no_grad():
        ours = torch.stack([encoder.logits(module, batch, Fast()).view(100, 4, 3) for _ in range(10)]).flatten(0, 1)
        theirs = torch.stack([module(**batch).logits.view(100, 4, 3) for _ in range(10)]).flatten(0, 1)
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * (2 * theirs.var(0) / 1000).sqrt() + 1e-6).all()
    moving = theirs.std(0) > 1e-5
    assert moving.any()
    torch.testing.assert_close(ours.std(0)[moving], theirs.std(0)[moving], rtol=0.15, atol=0)


def test_the_gradient_of_a_pass_with_dropout_is_that_of_its_own_masks():
    torch.manual_seed(0)
    module = tiny_bert(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3).double().train()
    batch = batches(module)["different lengths"]

    def value():
        torch.manual_seed(4)
        return encoder.logits(module, batch, Fast()).square().sum()

    value().backward()
    for name, parameter in module.named_parameters():
        direction = torch.randn(parameter.shape, dtype=parameter.dtype)
        slope = (parameter.grad * direction).sum()
        sides = []
        for size in (1e-6, -1e-6):
            with torch.no_grad():
                parameter.add_(direction, alpha=size)
                sides.append(value())
                parameter.sub_(direction, alpha=size)
        assert ((sides[0] - sides[1]) / 2e-6).item() == pytest.approx(slope.item(), rel=1e-4, abs=1e-7), name


def trained(seed):
    torch.manual_seed(0)
    module = roberta()
    accelerate(module, Fast())
    data = data_of(module)
    losses = Phase(module, data, PhaseSettings(epochs=2, batch=8), 1e-3, seed).run(data.labels, ce)
    return torch.cat([p.detach().flatten() for p in module.parameters()]), losses.mean


def test_training_twice_with_one_seed_gives_the_same_bits_and_with_another_others():
    (first, losses), (again, losses_again), (other, _) = trained(3), trained(3), trained(4)
    assert torch.equal(first, again)
    assert losses == losses_again
    assert not torch.allclose(first, other)
