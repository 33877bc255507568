"""Several passes of a batch through a model, and past a frozen teacher."""

import numpy as np
import torch

from fedstill.data.examples import Examples, TensorStore
from fedstill.learning.losses import ce
from fedstill.learning.phases import Passes, Phase, PhaseSettings
from fedstill.models.small import TextCNN


def model(seed=0, dropout=0.5):
    torch.manual_seed(seed)
    return TextCNN(30, 3, 0, embedding=5, filters=20, widths=(1, 2), dropout=dropout).double()


def teacher(seed=4):
    return model(seed).requires_grad_(False).eval()


def batch(many=6):
    words = torch.randn(many, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"inputs_embeds": words}


def examples(many=6):
    return Examples(TensorStore("inputs_embeds", batch(many)["inputs_embeds"]), np.arange(many))


def test_two_passes_drop_differently_and_the_teacher_drops_nothing():
    student, wise = model(), teacher()
    torch.manual_seed(0)
    logits = Passes(student=2, teacher=wise).logits(student.train(), batch())
    assert logits.shape == (3, 6, 3)
    assert not torch.isclose(logits[0], logits[1]).any()
    with torch.no_grad():
        torch.testing.assert_close(logits[2], wise(**batch()), rtol=1e-12, atol=1e-12)


def test_passes_without_dropout_are_the_plain_logits_in_the_order_of_the_batch():
    student = model(dropout=0.0)
    logits = Passes(student=3).logits(student, batch())
    assert logits.shape == (3, 6, 3)
    for own in logits:
        torch.testing.assert_close(own, student(**batch()), rtol=1e-12, atol=1e-12)


def test_the_teacher_gets_no_gradient_even_where_it_could():
    student, wise = model(), model(4).eval()
    logits = Passes(student=2, teacher=wise).logits(student, batch())
    logits.square().sum().backward()
    assert all(p.grad is None for p in wise.parameters())
    assert student.head.weight.grad.abs().sum() > 0
    (slope,) = torch.autograd.grad(logits.sum(), logits, retain_graph=True)
    assert slope.shape == (3, 6, 3)


def test_the_start_of_every_epoch_is_announced_before_its_first_step():
    student = model()
    settings = PhaseSettings(epochs=3, batch=2, rate=0.1, optimiser="sgd")
    phase = Phase(student, examples(), settings, 0.1, seed=0)
    seen = []
    # All rows are of class 0, so every step raises its bias.
    passes = Passes(student=1, before_epoch=lambda: seen.append((phase.taken, student.head.bias[0].item())))
    phase.run(torch.zeros(6, dtype=torch.long), lambda z, y: ce(z[0], y), passes=passes)
    assert [taken for taken, _ in seen] == [0, 3, 6]
    assert seen[0][1] < seen[1][1] < seen[2][1]


def test_a_loss_sees_every_pass_of_the_batch_and_the_labels_of_its_rows():
    phase = Phase(model(), examples(5), PhaseSettings(epochs=1, batch=2), 0.1, seed=0)
    seen = []

    def loss(logits, labels):
        seen.append((tuple(logits.shape), labels.tolist()))
        return ce(logits[0], labels)

    losses = phase.run(torch.tensor([0, 1, 2, 0, 1]), loss, passes=Passes(student=2, teacher=teacher()))
    assert [shape for shape, _ in seen] == [(3, 2, 3), (3, 2, 3), (3, 1, 3)]
    assert sorted(label for _, labels in seen for label in labels) == [0, 0, 1, 1, 2]
    assert len(losses.by_class[0]) == 3


def test_one_pass_and_no_teacher_learns_as_without_passes():
    finals = []
    for passes in (None, Passes()):
        student = model()
        phase = Phase(student, examples(), PhaseSettings(epochs=2, batch=2), 0.1, seed=3)
        phase.run(torch.tensor([0, 1, 2, 0, 1, 2]), lambda z, y: ce(z if z.ndim == 2 else z[0], y), passes=passes)
        finals.append(student.head.weight.detach().clone())
    assert torch.equal(*finals)
