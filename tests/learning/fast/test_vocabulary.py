import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification

from fedstill.data.examples import Examples, Labelled, TensorStore
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.fast.vocabulary import shrink
from fedstill.learning.losses import ce
from fedstill.learning.phases import Passes, Phase, PhaseSettings
from fedstill.learning.predict import forward
from fedstill.models import ModelSpec, build
from fedstill.models.small import BagOfWords, TextCNN

LABELS = ("a", "b", "c")
WORDS = [7, 1000, 1001, 2000, 29000, 30000, 12345, 101, 102]


def texts(count=20, seed=0, pad_id=0):
    """A store of which the examples are every second row, with few of BERT's words."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, 2 * count)
    ids = random.choice(WORDS, lengths.sum()).astype(np.int32)
    store = TokenStore(ids, np.concatenate([[0], np.cumsum(lengths)]), (ids % 2).astype(np.uint8), pad_id)
    return Labelled(store, np.arange(0, 2 * count, 2)[::-1].copy(), torch.from_numpy(random.integers(0, 3, count)))


def model(name, **fast):
    module = build(ModelSpec(name=name), LABELS, "bert-tiny", 0).module
    accelerate(module, Fast(**fast))
    return module


def learnt(name, settings, vocabulary, **options):
    module = model(name, vocabulary=vocabulary)
    data = texts()
    losses = Phase(module, data, settings, 1e-2, seed=3).run(data.labels, ce, **options)
    return module.state_dict(), losses.mean


@pytest.mark.parametrize("name", ["bert-tiny", "textcnn", "bigru"])
@pytest.mark.parametrize(
    "optimiser", [{}, {"optimiser": "sgd", "momentum": 0.9}, {"restart": "epoch"}, {"restart": "batch"}]
)
def test_learning_with_the_words_that_occur_gives_the_same_bits_as_with_all(name, optimiser):
    settings = PhaseSettings(epochs=2, batch=8, **optimiser)
    (small, small_losses), (whole, whole_losses) = (learnt(name, settings, on) for on in (True, False))
    assert small_losses == whole_losses
    assert small.keys() == whole.keys()
    assert all(torch.equal(small[key], whole[key]) for key in whole)


def sizes_during(module, settings, data=None, **options):
    """How many words the model knows at each step."""
    data, seen = data or texts(), []

    def loss(logits, wanted):
        seen.append(len(module.get_input_embeddings().weight if hasattr(module, "bert") else module.embedding.weight))
        return ce(logits, wanted)

    Phase(module, data, settings, 1e-3, 0).run(data.labels, loss, **options)
    return set(seen)


ONE = PhaseSettings(epochs=1, batch=8)


def test_only_the_words_of_the_phases_rows_and_the_padding_are_in_use():
    data = texts()
    own = np.concatenate([data.store.ids[slice(*data.store.offsets[[row, row + 1]])] for row in data.rows])
    assert sizes_during(model("bert-tiny"), ONE) == {len(set(own.tolist()) | {0})}


def test_the_whole_table_is_used_where_other_rows_could_move_or_be_read():
    assert sizes_during(model("bert-tiny", vocabulary=False), ONE) == {30522}
    assert sizes_during(model("bert-tiny"), PhaseSettings(epochs=1, weight_decay=0.1)) == {30522}
    assert sizes_during(model("bert-tiny"), PhaseSettings(epochs=1, optimiser="adafactor")) == {30522}
    two = lambda logits, wanted: ce(logits[0], wanted)  # noqa: E731
    data = texts()
    module, teacher = model("bert-tiny"), model("bert-tiny")
    before = module.get_input_embeddings().weight
    phase = Phase(module, data, ONE, 1e-3, 0)
    phase.run(data.labels, two, passes=Passes(teacher=teacher.eval()))
    assert phase.optimiser.state[before]["exp_avg"].shape == (30522, 128)


def test_models_whose_table_has_another_use_or_does_not_learn_are_left_alone():
    data = texts()
    frozen = model("bert-tiny")
    frozen.get_input_embeddings().weight.requires_grad_(False)
    assert shrink(frozen, data) is None
    tied = model("textcnn")
    tied.again = nn.Linear(128, 30522, bias=False)
    tied.again.weight = tied.embedding.weight
    assert shrink(tied, data) is None
    assert shrink(BagOfWords(30522, 3, 0), data) is None
    assert shrink(TextCNN(30522, 3, 0), Examples(TensorStore("inputs_embeds", torch.zeros(4, 5)), np.arange(4))) is None
    assert shrink(TextCNN(30001, 3, 0), data.pick(np.arange(3))) is not None


def test_a_table_of_which_most_words_occur_is_left_whole():
    ids = np.arange(1, 30).astype(np.int32)
    data = Examples(TokenStore(ids, np.array([0, 10, 29]), None), np.arange(2))
    assert shrink(TextCNN(40, 3, 0), data) is None
    assert shrink(TextCNN(80, 3, 0), data) is not None


def test_numbers_that_a_model_looks_for_stay_as_they_are():
    config = GPT2Config(
        vocab_size=900, n_embd=16, n_layer=1, n_head=2, n_positions=8, num_labels=3,
        pad_token_id=5, eos_token_id=6, bos_token_id=6,
    )  # fmt: skip
    torch.manual_seed(0)
    gpt = GPT2ForSequenceClassification(config).eval()
    # GPT-2 reads its answer at the last token that is no padding, which it knows by its number.
    data = Examples(TokenStore(np.array([800, 40, 300, 700], np.int32), np.array([0, 3, 4]), None, 5), np.arange(2))
    vocabulary, own = shrink(gpt, data)
    assert vocabulary.words.tolist() == [*range(7), 40, 300, 700, 800]
    cpu, rows = torch.device("cpu"), torch.arange(2)
    expected = forward(gpt, data.batch(rows, cpu))
    with vocabulary.in_use([], torch.optim.SGD(gpt.parameters())):
        torch.testing.assert_close(forward(gpt, own.batch(rows, cpu)), expected, rtol=0, atol=0)
    torch.testing.assert_close(forward(gpt, data.batch(rows, cpu)), expected, rtol=0, atol=0)


def test_whoever_looks_between_epochs_sees_the_whole_model_and_may_change_it():
    seen = []

    def until():
        table = module.get_input_embeddings().weight
        seen.append((table.shape[0], table[WORDS[1]].clone(), table[5].clone()))
        with torch.no_grad():
            table[WORDS[1]] = 7.0
        return False

    module, data = model("bert-tiny"), texts()
    start = module.get_input_embeddings().weight.detach().clone()
    settings = PhaseSettings(epochs=2, batch=64, optimiser="sgd", schedule="constant")
    Phase(module, data, settings, 1e-6, 0).run(data.labels, ce, until=until)
    assert [size for size, _, _ in seen] == [30522] * 2
    assert not torch.equal(seen[0][1], start[WORDS[1]])  # what the first epoch learnt is in it
    assert torch.allclose(seen[1][1], torch.full((128,), 7.0), atol=1e-2)  # the second learns on from the change
    assert torch.equal(seen[1][2], start[5])


def test_a_phase_that_breaks_off_leaves_the_whole_table_with_what_was_learnt():
    class Enough(Exception):
        pass

    steps = []

    def loss(logits, wanted):
        if len(steps) == 2:
            raise Enough
        steps.append(0)
        return ce(logits, wanted)

    def broken(vocabulary):
        steps.clear()
        module, data = model("textcnn", vocabulary=vocabulary), texts()
        phase = Phase(module, data, PhaseSettings(epochs=3, batch=5), 1e-2, 0)
        with pytest.raises(Enough):
            phase.run(data.labels, loss)
        assert any(each is module.embedding.weight for each in phase.parameters)
        return module.embedding.weight

    small, whole = broken(True), broken(False)
    assert torch.equal(small, whole)
    assert not torch.equal(small, model("textcnn").embedding.weight)


def test_a_phase_that_was_run_is_over():
    module, data = model("textcnn", vocabulary=True), texts()
    phase = Phase(module, data, ONE, 1e-2, 0, steps=9)
    phase.run(data.labels, ce)
    assert module.embedding.weight not in phase.optimiser.state  # nothing is made of the whole table's size
    with pytest.raises(AssertionError, match="is over"):
        phase.step(torch.arange(4), lambda logits: logits.square().sum())
    with pytest.raises(AssertionError, match="has begun"):
        phase.run(data.labels, ce)


def test_batches_of_the_renumbered_store_are_the_same_texts():
    data = texts(pad_id=0)
    module = TextCNN(30522, 3, 0)
    vocabulary, own = shrink(module, data)
    picked, cpu = torch.tensor([3, 0, 7]), torch.device("cpu")
    ours, theirs = own.batch(picked, cpu), data.batch(picked, cpu)
    assert torch.equal(vocabulary.words[ours.pop("input_ids")], theirs.pop("input_ids"))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert theirs.keys() == {"attention_mask", "token_type_ids"}
