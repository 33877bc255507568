"""T5 as a classifier: log-likelihoods of label words, generation, and a federation of them."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

import fedstill
from fedstill import Experiment
from fedstill.common.errors import FedstillError
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.losses import likelihood
from fedstill.learning.predict import generate, predict
from fedstill.models import ModelSpec, build, load
from fedstill.models.text_to_text import label_words
from tests.algorithms.conftest import LABELS, folder_of_reviews, reviews  # noqa: F401
from tests.models.tiny_t5 import make_tiny_t5

TASKS = ("cb/Entailment", "cb/Contradiction", "cb/Neutral", "rte/Entailment", "rte/Not_entailment")
TEXTS = ["lamp 3 was great", "book", "sofa 17 was poor and broken, poor and broken"]


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory):
    return make_tiny_t5(tmp_path_factory.mktemp("models") / "t5", reviews(180)[0], [*LABELS, *TASKS])


def make(folder, labels=TASKS, layers=""):
    return build(ModelSpec(name=f"{folder}{layers}"), labels, "bert-tiny", 0)


def examples(model, texts=TEXTS):
    store = TokenStore(*model.tokenizer.encode(texts, None, 64))
    store.pad_as(model.tokenizer.pad_id, model.pads_left)
    return Examples(store, np.arange(len(texts)))


def batch(model, texts=TEXTS):
    return examples(model, texts).batch(torch.arange(len(texts)), torch.device("cpu"))


@pytest.fixture
def model(tiny_t5):
    made = make(tiny_t5)
    made.module.double().eval()
    return made


@pytest.fixture
def tiny_bart(tiny_t5, tmp_path):
    """A model that knows positions, not distances."""
    config = BartConfig(
        vocab_size=300, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        pad_token_id=0, eos_token_id=1, bos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    make(tiny_t5).tokenizer.save(tmp_path / "bart")
    return tmp_path / "bart"


@pytest.mark.parametrize("name", ["tiny_t5", "tiny_bart"])
def test_logits_are_minus_the_inner_models_own_loss_times_the_tokens(name, request):
    model = make(request.getfixturevalue(name))
    model.module.double().eval()
    logits = model.module(**batch(model)).detach()
    inner, tokenizer = model.module.inner, model.tokenizer.inner
    words = ("Entailment", "Contradiction", "Neutral", "Entailment", "Not_entailment")
    targets = tokenizer(list(words), padding=True, return_tensors="pt")
    for row, text in enumerate(TEXTS):
        for label in range(len(TASKS)):
            target = targets.input_ids[label].masked_fill(targets.attention_mask[label] == 0, -100)
            own = tokenizer(text, return_tensors="pt")
            loss = inner(**own, labels=target[None]).loss.detach() * targets.attention_mask[label].sum()
            assert float(logits[row, label]) == pytest.approx(-float(loss), abs=1e-9)


def test_every_word_ends_with_the_end_token_and_tasks_share_words(model):
    ends = model.module.words.gather(1, model.module.lengths[:, None] - 1)
    assert set(ends.flatten().tolist()) == {model.tokenizer.inner.eos_token_id}
    assert model.module.word_of[0] == model.module.word_of[3]
    assert len(model.module.distinct) == 4
    logits = model.module(**batch(model))
    assert torch.equal(logits[:, 0], logits[:, 3])


def test_neighbours_in_a_batch_change_nothing(tiny_t5):
    made = make(tiny_t5)
    made.module.eval()
    together = made.module(**batch(made))
    for row, text in enumerate(TEXTS):
        alone = made.module(**batch(made, [text]))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=2e-6 * float(together.detach().abs().max()))
    torch.testing.assert_close(predict(made.module, examples(made)), together, rtol=1e-6, atol=1e-5)


def test_embeddings_of_the_ids_give_what_the_ids_give_and_carry_a_gradient(model):
    given = batch(model)
    embedded = model.module.get_input_embeddings()(given["input_ids"]).detach().requires_grad_()
    logits = model.module(inputs_embeds=embedded, attention_mask=given["attention_mask"])
    torch.testing.assert_close(logits, model.module(**given), rtol=0, atol=1e-12)
    tokens, _ = model.module.target_logits(
        torch.tensor([0, 1, 2]), inputs_embeds=embedded, attention_mask=given["attention_mask"]
    )
    tokens.sum().backward()
    assert embedded.grad.abs().sum() > 0


def test_target_logits_add_up_to_the_likelihood_of_the_label(model):
    labels = torch.tensor([4, 2, 0])
    logits, mask = model.module.target_logits(labels, **batch(model))
    assert mask.sum(1).tolist() == model.module.lengths[labels].tolist()
    each = logits.log_softmax(-1).gather(-1, model.module.words[labels][..., None])[..., 0]
    by_hand = (each * mask).sum(1)
    whole = model.module(**batch(model))
    torch.testing.assert_close(by_hand, whole.gather(1, labels[:, None])[:, 0], rtol=0, atol=1e-10)
    torch.testing.assert_close(likelihood(whole, labels), -by_hand, rtol=0, atol=1e-10)


def teach(model, labels, steps=60):
    """The model after learning to answer each of TEXTS with its label."""
    optimiser = torch.optim.AdamW(model.module.parameters(), lr=5e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        likelihood(model.module(**batch(model)), torch.tensor(labels)).mean().backward()
        optimiser.step()


def test_generation_is_the_inner_models_own_greedy_generation(model):
    assert model.module.generate_labels(**batch(model)).tolist() == [-1, -1, -1]  # random weights write no label
    teach(model, [4, 3, 1])
    written = generate(model.module, examples(model))
    assert written.tolist() == [4, 0, 1]  # the first of the labels that are written Entailment
    theirs = model.module.inner.generate(**batch(model), max_new_tokens=model.module.words.shape[1], do_sample=False)
    texts = model.tokenizer.inner.batch_decode(theirs, skip_special_tokens=True)
    assert [text.replace(" ", "").replace("▁", "") for text in texts] == [
        "Not_entailment",
        "Entailment",
        "Contradiction",
    ]


def test_labels_with_the_same_word_are_the_same_to_a_reader(model):
    one, other = torch.tensor([0, 0, 3, -1, -1]), torch.tensor([3, 4, 3, -1, 0])
    assert model.module.same_word(one, other).tolist() == [True, False, True, False, False]


def test_tied_tables_are_one_in_the_state_and_come_back_tied(model, tiny_t5):
    state = model.module.state_dict()
    assert sum(value.numel() for value in state.values()) == model.parameters
    other = make(tiny_t5)
    other.module.double().eval()
    moved = {name: value + 0.01 for name, value in state.items()}
    other.module.load_state_dict(moved)
    assert other.module.inner.lm_head.weight is other.module.inner.shared.weight
    model.module.load_state_dict(moved)
    assert torch.equal(other.module(**batch(model)), model.module(**batch(model)))


def test_architectures_do_not_depend_on_labels_but_on_layers(tiny_t5):
    assert make(tiny_t5).architecture == make(tiny_t5, LABELS).architecture
    assert make(tiny_t5).architecture != make(tiny_t5, layers="[:1]").architecture


def test_layers_are_those_of_encoder_and_decoder(tiny_t5):
    inner = make(tiny_t5, layers="[:1]").module.inner
    assert (len(inner.encoder.block), len(inner.decoder.block)) == (1, 1)
    with pytest.raises(FedstillError, match=r"the model has 2 layers, not 3"):
        make(tiny_t5, layers="[:3]")


def test_a_saved_model_is_loaded_with_its_labels_and_equal_logits(tiny_t5, tmp_path):
    model = make(tiny_t5)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.1)
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.labels == TASKS
    assert again.loss is likelihood
    assert again.architecture == model.architecture
    assert torch.equal(predict(again.module, examples(again)), predict(model.module, examples(model)))
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved", local_files_only=True)
    assert torch.equal(theirs.shared.weight, model.module.inner.shared.weight)


def test_labels_that_the_tokenizer_cannot_tell_apart_are_refused(tiny_t5):
    with pytest.raises(FedstillError, match="'Ω' and 'Ж' have the same tokens for this model's tokenizer"):
        label_words(make(tiny_t5).tokenizer.inner, ["good", "Ω", "Ж"])


def test_a_federation_learns_reviews_by_likelihood_and_by_generation(tiny_t5, folder_of_reviews, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder_of_reviews / "cache"))
    experiment = Experiment(
        name="t5",
        corpus={"path": str(folder_of_reviews / "reviews.csv"), "domain": "shop"},
        clients=str(tiny_t5),
        server=str(tiny_t5),
        algorithm="FedAvg",
        train={"epochs": 3, "batch": 8, "max_length": 32},
        rounds=2,
        workers=1,
        device="cpu",
    )
    record = fedstill.run(experiment, tmp_path / "run")
    assert record.score("accuracy") > 0.8
    assert record.score("generated_accuracy") > 0.8
    model = record.model()
    numbers = sum(value.numel() for value in model.module.state_dict().values())
    up = sum(line["payload"] for line in record.ledger if line["direction"] == "up" and line["message"] == "Parameters")
    assert up == 2 * 3 * 4 * numbers
