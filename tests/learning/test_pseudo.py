"""Pseudo-samples: every sampling loss and its slope by hand, what moves and what does not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import rel_entr, softmax

from fedstill.learning.losses import within_task
from fedstill.learning.pseudo import ModelAnswer, Reader, Sampling, descend, sampling_loss
from fedstill.models import ModelSpec, build
from fedstill.models.small import TextCNN
from tests.models.tiny_t5 import make_tiny_t5

LABELS = torch.tensor([0, 3, 1, 4, 2, 3])
TASKS = torch.tensor([0, 0, 0, 1, 1])  # labels 0 to 2 are one task's, 3 and 4 another's
EVERYWHERE = torch.ones(7, 1)
READ = Reader("inputs_embeds")


def classifier(seed, size=0.7):
    torch.manual_seed(seed)
    module = TextCNN(20, 5, 0, embedding=6, filters=8, widths=(2, 3)).double().eval()
    torch.nn.init.normal_(module.head.weight, std=size)
    return module


@pytest.fixture
def teacher():
    return classifier(1)


@pytest.fixture
def student():
    return classifier(2)


@pytest.fixture
def start():
    return torch.randn(6, 7, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """Two of them with words of two lengths, each closed by </s>."""
    texts = ["lamp was great", "the sofa was so so", "a poor book", "good bad"]
    folder = make_tiny_t5(tmp_path_factory.mktemp("t5"), texts, ["good", "so so", "bad"], vocabulary=80)
    made = []
    for seed in (1, 2):
        module = build(ModelSpec(name=str(folder)), ("good", "so so", "bad"), "bert-tiny", 0).module.double().eval()
        torch.manual_seed(seed)
        for parameter in module.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        made.append(module)
    assert len(set(made[0].lengths.tolist())) > 1
    return made


def log_probabilities(logits, tasks=None):
    """Written out; within a task, the others' labels are simply not there."""
    if tasks is not None:
        logits = torch.where(tasks[LABELS][:, None] == tasks, logits, torch.tensor(-1e300, dtype=logits.dtype))
    return logits - torch.logsumexp(logits, -1, keepdim=True)


def by_hand(teacher, student, start, how, tasks=None):
    """One plain gradient step of every sample on its own loss."""
    leaf = start.clone().requires_grad_()
    own, other = (log_probabilities(module(inputs_embeds=leaf), tasks) for module in (teacher, student))
    rows = torch.arange(6)
    wanted, missed = -own[rows, LABELS], -other[rows, LABELS]
    if how.adversary == "kl":
        known = torch.ones_like(own, dtype=torch.bool) if tasks is None else tasks[LABELS][:, None] == tasks
        missed = torch.stack([(o[k].exp() * (o[k] - s[k])).sum() for o, s, k in zip(own, other, known, strict=True)])
    missed = torch.where(missed > how.bound, torch.full_like(missed, how.bound), missed)
    slopes = [torch.autograd.grad(wanted[n] - how.strength * missed[n], leaf, retain_graph=True)[0] for n in rows]
    return start - how.rate * torch.stack([slope[n] for n, slope in enumerate(slopes)])


@pytest.mark.parametrize("tasks", [None, TASKS], ids=["one head", "a head a task"])
@pytest.mark.parametrize(
    "how",
    [Sampling(1, 0.1, 0.0), Sampling(1, 0.1, 0.5), Sampling(1, 0.1, 0.5, adversary="kl")],
    ids=["target", "adversary", "adversary by divergence"],
)
def test_a_step_goes_down_each_samples_own_loss(teacher, student, start, how, tasks):
    read = Reader("inputs_embeds", tasks)
    made = descend(sampling_loss(read, teacher, student, how), start, LABELS, EVERYWHERE.double(), how)
    assert torch.isfinite(made).all()
    torch.testing.assert_close(made, by_hand(teacher, student, start, how, tasks), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "how", [Sampling(1, 0.1, 0.0), Sampling(1, 0.1, 0.3), Sampling(1, 0.1, 0.3, adversary="kl")],
    ids=["target", "adversary", "adversary by divergence"],
)  # fmt: skip
def test_a_text_to_text_model_descends_the_words_of_the_label(t5, how):
    labels = torch.tensor([0, 1, 2, 1])
    start = torch.randn(4, 6, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    how = replace(how, bound=1e9)
    made = descend(sampling_loss(READ, *t5, how), start, labels, torch.ones(6, 1).double(), how)

    leaf = start.clone().requires_grad_()
    words, lengths = t5[0].words[labels], t5[0].lengths[labels]
    given = words.masked_fill(torch.arange(words.shape[1]) >= lengths[:, None], -100)
    mask = torch.ones(4, 6, dtype=torch.long)
    own, other = (m.inner(inputs_embeds=leaf, attention_mask=mask, labels=given).logits.log_softmax(-1) for m in t5)
    total = torch.zeros((), dtype=torch.float64)
    for row, (ids, length) in enumerate(zip(words, lengths, strict=True)):
        for place in range(length):
            total = total - own[row, place, ids[place]]
            if how.adversary == "kl":
                p = own[row, place].exp()
                total = total - how.strength * (p * (own[row, place] - other[row, place])).sum()
            else:
                total = total + how.strength * other[row, place, ids[place]]
    expected = start - 0.1 * torch.autograd.grad(total, leaf)[0]
    torch.testing.assert_close(made, expected, rtol=1e-9, atol=1e-9)


def test_a_text_to_text_answer_is_its_likelihood_and_says_where_it_counts(t5):
    labels = torch.tensor([0, 1, 2])
    inputs = torch.randn(3, 6, 48, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    answer = READ(t5[0], inputs, labels)
    assert answer.mask.sum(1).tolist() == t5[0].lengths.tolist()
    likelihood = t5[0](inputs_embeds=inputs)[torch.arange(3), labels]
    torch.testing.assert_close(answer.cross_entropy(), -likelihood, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("adversary", ["ce", "kl"])
def test_the_students_term_is_held_at_the_bound(teacher, start, adversary):
    failing = classifier(2, size=60.0)  # misses most labels by far more than the bound
    how = Sampling(1, 0.1, 0.5, bound=2.0, adversary=adversary)
    each = sampling_loss(READ, teacher, failing, how)(start, LABELS)
    wanted, other = READ(teacher, start, LABELS), READ(failing, start, LABELS)
    missed = other.cross_entropy() if adversary == "ce" else wanted.divergence(other)
    assert (missed > 2.0).sum() > 1
    over = missed > 2.0
    torch.testing.assert_close(each[over], (wanted.cross_entropy() - 0.5 * 2.0)[over])
    made = descend(sampling_loss(READ, teacher, failing, how), start, LABELS, EVERYWHERE.double(), how)
    target = by_hand(teacher, failing, start, Sampling(1, 0.1, 0.0))
    torch.testing.assert_close(made[over], target[over], rtol=1e-9, atol=1e-9)  # only the teacher pulls there


@pytest.mark.parametrize("adversary", ["ce", "kl"])
def test_an_adversary_without_strength_is_target_sampling_exactly(teacher, student, start, adversary):
    none, target = Sampling(20, 0.1, 0.0, adversary=adversary), Sampling(20, 0.1, 0.0)
    moves = EVERYWHERE.double()
    one = descend(sampling_loss(READ, teacher, student, none), start, LABELS, moves, none)
    other = descend(lambda x, y: F.cross_entropy(teacher(inputs_embeds=x), y, reduction="none"),
                    start, LABELS, moves, target)  # fmt: skip
    assert torch.equal(one, descend(sampling_loss(READ, teacher, teacher, target), start, LABELS, moves, target))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_target_samples_become_their_labels_and_adversaries_are_missed_by_the_student(teacher, student, start):
    moves = EVERYWHERE.double()
    found = {}
    for strength in (0.0, 0.5):
        how = Sampling(200, 0.1, strength)
        found[strength] = descend(sampling_loss(READ, teacher, student, how), start, LABELS, moves, how)
        assert torch.equal(teacher(inputs_embeds=found[strength]).argmax(-1), LABELS)
    missed = {key: READ(student, inputs, LABELS).cross_entropy().mean() for key, inputs in found.items()}
    assert missed[0.5] > missed[0.0] + 1


def test_fixed_positions_stay_exactly_and_all_others_move(teacher, student, start):
    moves = EVERYWHERE.double().clone()
    moves[[0, 6]] = 0.0
    how = Sampling(30, 0.1, 0.1)
    before = start.clone()
    made = descend(sampling_loss(READ, teacher, student, how), start, LABELS, moves, how)
    assert torch.equal(start, before)
    assert torch.equal(made[:, [0, 6]], start[:, [0, 6]])
    assert (made[:, 1:6] != start[:, 1:6]).any(-1).all()
    assert not made.requires_grad


def test_a_sample_does_not_depend_on_its_batch(teacher, student, start):
    how = Sampling(25, 0.1, 0.1)
    loss, moves = sampling_loss(READ, teacher, student, how), EVERYWHERE.double()
    together = descend(loss, start, LABELS, moves, how)
    for n in range(6):
        alone = descend(loss, start[n : n + 1], LABELS[n : n + 1], moves, how)
        torch.testing.assert_close(together[n : n + 1], alone, rtol=1e-9, atol=1e-9)


def test_somebody_may_watch_every_step_and_the_end(teacher, student, start):
    how = Sampling(4, 0.1, 0.1)
    seen = []
    loss, moves = sampling_loss(READ, teacher, student, how), EVERYWHERE.double()
    made = descend(loss, start, LABELS, moves, how, lambda step, inputs: seen.append((step, inputs.detach().clone())))
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4]
    assert torch.equal(seen[0][1], start)
    assert torch.equal(seen[4][1], made)


def answer(logits, targets=LABELS):
    return ModelAnswer(logits.log_softmax(-1)[:, None], targets[:, None], torch.ones(len(targets), 1, dtype=torch.bool))


def random_logits(seed):
    return 2 * torch.randn(6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_divergence_is_scipys_and_torchs_with_the_teacher_first():
    own, other = random_logits(1), random_logits(2)
    found = answer(own).divergence(answer(other))
    scipy = rel_entr(softmax(own.numpy(), -1), softmax(other.numpy(), -1)).sum(-1)
    np.testing.assert_allclose(found.numpy(), scipy, rtol=1e-12)
    by_torch = F.kl_div(other.log_softmax(-1), own.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(found, by_torch, rtol=1e-12, atol=1e-12)


def test_the_divergence_over_positions_counts_those_of_the_label_only():
    own, other = (torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (1, 2))
    targets, mask = torch.zeros(2, 3, dtype=torch.long), torch.tensor([[True, True, False], [True, False, False]])
    first, second = (ModelAnswer(logits.log_softmax(-1), targets, mask) for logits in (own, other))
    each = rel_entr(softmax(own.numpy(), -1), softmax(other.numpy(), -1)).sum(-1)
    np.testing.assert_allclose(first.divergence(second).numpy(), [each[0, 0] + each[0, 1], each[1, 0]], rtol=1e-12)


def test_labels_of_other_tasks_make_neither_a_difference_nor_a_nan():
    own, other = (random_logits(seed).requires_grad_() for seed in (1, 2))
    first, second = (answer(within_task(logits, TASKS[LABELS], TASKS)) for logits in (own, other))
    found = first.divergence(second)
    expected = []
    for row, label in enumerate(LABELS):
        inside = (TASKS[label] == TASKS).numpy()
        p, q = (softmax(logits.detach().numpy()[row, inside]) for logits in (own, other))
        expected.append(rel_entr(p, q).sum())
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
    slopes = torch.autograd.grad(found.sum(), (own, other))
    outside = TASKS[LABELS][:, None] != TASKS
    for slope in slopes:
        assert torch.isfinite(slope).all()
        assert (slope[outside] == 0).all()
        assert (slope[~outside] != 0).all()
