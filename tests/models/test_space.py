"""Where inputs are invented: the statistics of embeddings, pixels, and the places of special tokens."""

import numpy as np
import pytest
import torch
from torch import nn

from fedstill.common.errors import FedstillError
from fedstill.models import Model, ModelSpec, build
from fedstill.models.space import space_of, special_positions, word_embeddings
from tests.models.tiny_t5 import make_tiny_t5


def make(name, shape=None, labels=("bad", "good")):
    return build(ModelSpec(name=str(name)), labels, "bert-tiny", 0, shape)


def test_texts_lie_as_the_words_do_dimension_by_dimension():
    model = make("textcnn")
    table = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]])
    model.module.embedding = nn.Embedding.from_pretrained(table)
    space = space_of(model, 9)
    assert (space.name, space.shape) == ("inputs_embeds", (9, 2))
    np.testing.assert_allclose(space.mean, [3.0, 2.0])
    np.testing.assert_allclose(space.deviation, [2.0, np.sqrt(12)], rtol=1e-6)  # (4+0+4)/2 and (4+4+16)/2
    drawn = space.draw(4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 9, 2)
    np.testing.assert_allclose(drawn.mean((0, 1)), [3.0, 2.0], atol=0.06)
    np.testing.assert_allclose(drawn.std((0, 1)), [2.0, np.sqrt(12)], atol=0.06)


def test_images_are_drawn_around_zero_as_normalised_ones_lie():
    space = space_of(make("cnn", (3, 8, 8)), 99)
    assert (space.name, space.shape) == ("pixels", (3, 8, 8))
    drawn = space.draw(500, torch.Generator().manual_seed(0))
    assert drawn.shape == (500, 3, 8, 8)
    assert abs(float(drawn.mean())) < 0.01
    assert abs(float(drawn.std()) - 1) < 0.01


def test_the_same_generator_draws_the_same():
    space = space_of(make("textcnn"), 5)
    one, other, different = (space.draw(3, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5))
    assert torch.equal(one, other)
    assert not torch.equal(one, different)


def test_a_bag_of_words_is_refused_in_one_sentence():
    with pytest.raises(
        FedstillError, match=r"^bow has no word embeddings to invent texts in: choose .*textcnn or bigru\.$"
    ):
        space_of(make("bow"), 8)


class Deaf(nn.Module):
    """Has words and takes nothing in their place."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)

    def forward(self, input_ids, attention_mask):
        return self.embedding(input_ids).mean(1)


def test_a_model_of_ones_own_that_takes_no_embeddings_is_refused():
    model = Model(Deaf(), None, ModelSpec(name="mine:Deaf"), ("a", "b"), 1e-3)
    with pytest.raises(FedstillError, match="mine:Deaf has no word embeddings"):
        word_embeddings(model)


@pytest.mark.parametrize("name", ["bert-tiny", "textcnn", "bigru"])
def test_bert_texts_begin_with_cls_and_end_with_sep(name):
    model = make(name)
    places, ids = special_positions(model, 12)
    assert places.tolist() == [0, 11]
    assert model.tokenizer.inner.convert_ids_to_tokens(ids.tolist()) == ["[CLS]", "[SEP]"]


@pytest.mark.parametrize(
    "texts", [["the lamp was a good one"], ["zebras rest"], ["book was great"]],
    ids=["known words", "unknown words", "words in pieces"],
)  # fmt: skip
def test_t5_texts_have_an_end_and_nothing_else(tmp_path, texts):
    places, ids = special_positions(make(make_tiny_t5(tmp_path, texts, ["good", "bad"])), 10)
    assert (places.tolist(), ids.tolist()) == ([9], [1])


def test_word_embeddings_are_those_that_the_model_looks_up(tmp_path):
    model = make(make_tiny_t5(tmp_path, ["a lamp"], ["good", "bad"]))
    assert word_embeddings(model) is model.module.inner.shared
    bert = make("bert-tiny")
    assert word_embeddings(bert) is bert.module.bert.embeddings.word_embeddings
