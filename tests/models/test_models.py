import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as RawTokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import fetch
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.predict import predict
from fedstill.models import ModelSpec, build, load
from fedstill.models.tokenizers import HashedNgrams, PretrainedTokenizer

LABELS = ("neutral", "positive", "negative")
TEXTS = [
    "A wonderful little game!",
    "no",
    "It crashed twice today, and then my save was gone. Never again.",
    "so so ok",
]


def make(seed=0, labels=LABELS, **spec):
    return build(ModelSpec(**spec), labels, "bert-tiny", seed)


def examples(model, texts=TEXTS, pairs=None, max_length=32):
    store = TokenStore(*model.tokenizer.encode(texts, pairs, max_length))
    store.pad_as(model.tokenizer.pad_id, model.pads_left)
    return Examples(store, np.arange(len(texts)))


def logits(model, texts=TEXTS, pairs=None):
    return predict(model.module, examples(model, texts, pairs))


def shaken(model, seed=0):
    """The model with all its weights moved, so that nothing is zero or equal by construction."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="module", params=[("bert-tiny", "bert-tiny", 2), ("minilm[:3]", "minilm", 3)], ids=lambda p: p[0])
def pretrained(request):
    name, source, layers = request.param
    return make(name=name), source, layers


def test_a_pretrained_model_has_its_layers_and_a_head_of_three(pretrained):
    model, _, layers = pretrained
    assert model.module.config.num_hidden_layers == len(model.module.bert.encoder.layer) == layers
    assert model.module.classifier.out_features == 3
    assert model.labels == LABELS
    assert model.module.config.id2label == dict(enumerate(LABELS))
    assert model.module.config.label2id == {"neutral": 0, "positive": 1, "negative": 2}
    assert model.longest == 512


def test_the_encoder_is_the_file_s_and_only_head_and_pooler_may_be_new(pretrained):
    model, source, _ = pretrained
    file = {
        name.removeprefix("bert.")
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("Norm.beta", "Norm.bias"): value
        for name, value in load_file(fetch(source) / "model.safetensors").items()
    }
    ours = {name: value for name, value in model.module.bert.named_parameters() if not name.startswith("pooler")}
    assert len(ours) > 30
    for name, value in ours.items():
        assert torch.equal(value, file[name].float()), name


def test_the_new_head_depends_on_the_seed_and_on_nothing_else():
    torch.manual_seed(123)
    first = make(name="bert-tiny", seed=4).module.state_dict()
    torch.rand(50)
    before = torch.get_rng_state()
    second = make(name="bert-tiny", seed=4).module.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = make(name="bert-tiny", seed=5).module.state_dict()
    assert {name.split(".")[0] for name in first if not torch.equal(first[name], other[name])} == {"bert", "classifier"}
    assert all("pooler" in n or "classifier" in n for n in first if not torch.equal(first[n], other[n]))


def test_transformers_loads_what_we_save(pretrained, tmp_path):
    model, _, layers = pretrained
    expected = logits(model)  # tokenises first: the length asked for here is not part of what is saved
    model.save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path, local_files_only=True).eval()
    assert theirs.config.id2label == dict(enumerate(LABELS))
    assert theirs.config.num_hidden_layers == layers
    # The batch as `predict` makes it, sorted by length: then even the last bit must agree.
    order = np.argsort(-examples(model).lengths, kind="stable")
    batch = tokenizer([TEXTS[row] for row in order], padding=True, truncation=True, max_length=32, return_tensors="pt")
    del batch["token_type_ids"]  # all zero, which is also what is assumed without them
    with torch.inference_mode():
        assert torch.equal(theirs(**batch).logits, expected[order])


def test_we_load_what_we_save(pretrained, tmp_path):
    model, *_ = pretrained
    model.save(tmp_path)
    again = load(tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert (again.labels, again.rate) == (model.labels, model.rate)


def test_narrow_models_get_a_larger_rate():
    assert make(name="bert-tiny").rate == 5e-4
    assert make(name="minilm[:1]").rate == 1e-4


def test_a_saved_tokenizer_does_not_remember_the_length_it_was_last_asked_for(tmp_path):
    tokenizer = PretrainedTokenizer(fetch("bert-tiny"))
    fresh = PretrainedTokenizer(fetch("bert-tiny")).fingerprint
    tokenizer.encode(TEXTS, None, 5)
    assert tokenizer.fingerprint == fresh
    tokenizer.save(tmp_path)
    raw = RawTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(raw.encode(TEXTS[2]).ids) == 17  # 12 words, 3 marks, [CLS] and [SEP]


SMALL = [
    {"name": "textcnn", "embedding": 16, "filters": 8},
    {"name": "textcnn", "embedding": 8, "widths": [1, 5]},
    {"name": "bigru", "embedding": 16, "hidden": 8},
    {"name": "bigru", "embedding": 8, "tokenizer": "minilm"},
    {"name": "bow"},
    {"name": "bow", "tokenizer": "bert-tiny"},
]
small = pytest.mark.parametrize("spec", SMALL, ids=lambda spec: "-".join(map(str, spec.values())))


@small
def test_a_small_model_comes_back_from_disk_with_equal_logits(spec, tmp_path):
    model = shaken(make(**spec))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(logits(again), logits(model))
    assert logits(model).unique(dim=0).shape == (4, 3)
    assert (again.labels, again.spec, again.rate) == (LABELS, ModelSpec(**spec), model.rate)
    assert again.architecture == model.architecture


@small
def test_a_texts_logits_do_not_change_when_batched_with_a_longer_one(spec):
    model = shaken(make(**spec))
    together = predict(model.module, examples(model))
    alone = torch.cat([logits(model, [text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["textcnn", "bigru"])
@pytest.mark.parametrize("extra", [1, 7])
def test_more_padding_changes_nothing(name, extra):
    model = shaken(make(name=name, embedding=16))
    batch = {key: torch.from_numpy(value) for key, value in examples(model).store.batch(np.arange(4)).items()}
    # Whatever stands under the mask must not count, so pad with a real word.
    padded = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, extra), value=2345),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, extra)),
    }
    model.module.eval()
    torch.testing.assert_close(model.module(**padded), model.module(**batch), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["textcnn", "bigru"])
def test_embeddings_of_the_ids_give_what_the_ids_give(name):
    model = shaken(make(name=name, embedding=16))
    batch = {key: torch.from_numpy(value) for key, value in examples(model).store.batch(np.arange(4)).items()}
    module = model.module.eval()
    embedded = module.embedding(batch["input_ids"])
    by_embedding = module(inputs_embeds=embedded, attention_mask=batch["attention_mask"])
    assert torch.equal(by_embedding, module(**batch))
    full = torch.ones_like(batch["attention_mask"])
    torch.testing.assert_close(module(inputs_embeds=embedded), module(batch["input_ids"], full))


def test_bigru_reads_both_ways_as_torchs_own_bidirectional_gru():
    model = shaken(make(name="bigru", embedding=6, hidden=5))
    module = model.module.eval()
    reference = torch.nn.GRU(6, 5, batch_first=True, bidirectional=True)
    for kind in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        getattr(reference, kind).data = getattr(module.forwards, kind).data
        getattr(reference, f"{kind}_reverse").data = getattr(module.backwards, kind).data
    store = examples(model).store
    for row in range(4):
        ids = torch.from_numpy(store.ids[store.offsets[row] : store.offsets[row + 1]].astype(np.int64))
        states = reference(module.embedding(ids)[None])[0][0]
        by_hand = module.head(torch.cat([states.mean(0), states.amax(0)]))
        torch.testing.assert_close(logits(model)[row], by_hand, rtol=1e-5, atol=1e-6)


def test_textcnn_is_the_largest_answer_of_each_filter_over_all_windows():
    model = shaken(make(name="textcnn", embedding=4, filters=3, widths=[2]))
    module, store = model.module.eval(), examples(model).store
    weight, bias = (p.detach().numpy() for p in module.convolutions[0].parameters())
    ids = store.ids[store.offsets[2] : store.offsets[3]]
    words = module.embedding.weight.detach().numpy()[ids]
    words = np.vstack([np.zeros((2, 4)), words, np.zeros((2, 4))])
    windows = np.stack([np.einsum("we,few->f", words[i : i + 2], weight) + bias for i in range(len(words) - 1)])
    expected = np.maximum(windows, 0).max(0) @ module.head.weight.detach().numpy().T + module.head.bias.detach().numpy()
    np.testing.assert_allclose(logits(model)[2], expected, rtol=1e-4, atol=1e-5)


def test_bow_with_words_is_linear_in_the_words_and_pairs_of_words_that_occur():
    model = shaken(make(name="bow"))
    ids, offsets, _ = model.tokenizer.encode(["good Good game!"], None, 2)
    # the bucket in every text, good, game, !, "good good", "good game", "game !": `max_length` cuts nothing
    assert len(set(ids.tolist())) == len(ids) == 7
    assert offsets.tolist() == [0, 7]
    table = model.module.weight.weight.detach()
    expected = table[torch.from_numpy(ids.astype(np.int64))].sum(0) / 7**0.5 + model.module.bias.detach()
    torch.testing.assert_close(logits(model, ["good Good game!"])[0], expected)


def test_bow_with_a_tokenizer_counts_tokens_and_neighbours_within_a_text_only():
    model = make(name="bow", tokenizer="bert-tiny")
    inner = fetch("bert-tiny")
    count = len(AutoTokenizer.from_pretrained(inner)(TEXTS[0])["input_ids"])
    together, offsets, _ = model.tokenizer.encode(TEXTS, None, 64)
    assert offsets[1] == 2 * count
    for row, text in enumerate(TEXTS):
        alone = model.tokenizer.encode([text], None, 64)[0]
        assert together[offsets[row] : offsets[row + 1]].tolist() == alone.tolist()
    assert not together[offsets[1:] - 1].any()  # after the last token comes nobody
    assert together.min() >= 0
    assert together.max() < model.tokenizer.vocabulary
    assert model.tokenizer.encode(["play game"], None, 64)[0].tolist() != (
        model.tokenizer.encode(["game play"], None, 64)[0].tolist()
    )


def test_bow_starts_with_the_same_opinion_of_everything():
    assert logits(make(name="bow")).tolist() == [[0, 0, 0]] * 4


@pytest.mark.parametrize("spec", [{"name": "bow"}, {"name": "bow", "tokenizer": "bert-tiny"}], ids=["words", "tokens"])
def test_bow_distinguishes_the_first_and_the_second_text_of_a_pair(spec):
    model = shaken(make(**spec))
    one, other = logits(model, ["good game"], ["bad film"]), logits(model, ["bad film"], ["good game"])
    assert (one - other).abs().max() > 1e-3


def test_the_second_text_of_a_pair_has_buckets_of_its_own():
    tokenizer = HashedNgrams()
    alone = tokenizer.encode(["good game"], None, 8)[0]
    first = tokenizer.encode(["good game"], [""], 8)[0]
    second = tokenizer.encode([""], ["good game"], 8)[0]
    assert first.tolist() == alone.tolist()
    assert second.tolist() == [0, *(alone[1:] + tokenizer.buckets)]
    assert second.max() < tokenizer.vocabulary


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(FedstillError, match="TextCNN has no option 'filter'; did you mean 'filters'"):
        ModelSpec(name="textcnn", filter=3).check()


def test_options_are_refused_where_there_are_none():
    with pytest.raises(FedstillError, match=r"bert-tiny takes no options \(given: hidden\)"):
        ModelSpec(name="bert-tiny", hidden=3).check()
    with pytest.raises(FedstillError, match="comes with its own tokenizer"):
        ModelSpec(name="bert-tiny", tokenizer="minilm").check()


@pytest.mark.parametrize("name", ["minilm[:9]", "bert-tiny[:0]"])
def test_more_layers_than_there_are_are_refused(name):
    with pytest.raises(FedstillError, match=r"the model has [26] layers, not [90]"):
        make(name=name)


def test_architectures_are_equal_if_and_only_if_parameters_fit():
    one = make(name="textcnn", embedding=8)
    assert make(name="textcnn", embedding=8, seed=9).architecture == one.architecture
    assert make(name="textcnn", embedding=9).architecture != one.architecture
    assert make(name="textcnn", embedding=8, labels=("a", "b")).architecture != one.architecture


OWN = """
import torch

class Mine(torch.nn.Module):
    rate = 0.125

    def __init__(self, vocabulary, classes, pad_id, {arguments}):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(vocabulary, {width}, mode="sum", padding_idx=pad_id)
        self.head = torch.nn.Linear({width}, classes)

    def forward(self, input_ids, attention_mask):
        return self.head(self.table(input_ids))

class NoModel:
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "width"), [("width=4", "width"), ("**options", 'options["width"]')], ids=["named", "any"]
)
def test_a_class_of_ones_own_is_a_model_with_options(tmp_path, arguments, width):
    (tmp_path / "mine.py").write_text(OWN.format(arguments=arguments, width=width))
    model = make(name=f"{tmp_path}/mine.py:Mine", width=6)
    assert model.module.head.in_features == 6
    assert model.rate == 0.125
    model.save(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved", trust_code=True)), logits(model))


def test_what_a_class_of_ones_own_does_not_take_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(OWN.format(arguments="width=4", width="width"))
    with pytest.raises(FedstillError, match="Mine has no option 'widht'; did you mean 'width'"):
        make(name=f"{tmp_path}/mine.py:Mine", widht=6)
    with pytest.raises(FedstillError, match="is not a torch"):
        make(name=f"{tmp_path}/mine.py:NoModel")


class Trap:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_folder_with_only_a_pickle_is_refused_unopened(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(fetch("bert-tiny"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"bert.weight": Trap(tmp_path / "sprung")}))
    with pytest.raises(FedstillError, match="not a text classifier that transformers can load"):
        make(name=str(folder))
    assert not (tmp_path / "sprung").exists()


def test_a_classifier_of_other_labels_gets_a_new_head(tmp_path):
    first = make(name="bert-tiny")
    first.save(tmp_path)
    other = build(ModelSpec(name=str(tmp_path)), ["a", "b", "c", "d", "e"], "bert-tiny", seed=3)
    assert other.module.classifier.out_features == 5
    assert torch.equal(
        other.module.bert.embeddings.word_embeddings.weight, first.module.bert.embeddings.word_embeddings.weight
    )


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FedstillError, match="holds no model"):
        load(tmp_path)


@pytest.mark.parametrize("spec", [{"name": "textcnn"}, {"name": "bert-tiny"}], ids=lambda spec: spec["name"])
def test_weights_can_be_read_by_whom_the_umask_allows_and_others_are_told(spec, tmp_path):
    before = os.umask(0o022)
    try:
        make(**spec).save(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights)  # unreadable even for root
    with pytest.raises(FedstillError, match=r"model\.safetensors cannot be read \(Too many levels of symbolic links\)"):
        load(tmp_path)


def test_a_saved_small_model_says_what_it_is(tmp_path):
    make(name="textcnn", filters=5).save(tmp_path)
    about = json.loads((tmp_path / "fedstill.json").read_text())
    spec = {"name": "textcnn", "tokenizer": None, "filters": 5}
    assert about == {"spec": spec, "labels": list(LABELS), "shape": None}
