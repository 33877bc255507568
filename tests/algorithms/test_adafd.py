"""AdaFD's equations as printed, and its finer weights, by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.adafd import AdaFD
from fedstill.algorithms.competence import odds
from fedstill.algorithms.weightings import ENWC, RNWC
from fedstill.common.errors import FedstillError

LOSSES = [0.2, 0.5, 1.1]


def paper(**options):
    """The paper's equations as printed."""
    return AdaFD(reading="paper", **options)


def logits_of(ups):
    return ups.column("logits").double().numpy()


def squared_error(target):
    """Eq. 10 by hand: the mean over samples of the mean over classes."""
    return lambda logits: ((logits - torch.as_tensor(target, dtype=torch.float32)) ** 2).mean()


# The server's step


def test_the_server_steps_towards_the_weighted_sum_of_the_logits(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    paper(weighting=ENWC(5.0)).server(me, ups)
    target = np.einsum("k,knc->nc", softmax(-5 * np.array(LOSSES)), logits_of(ups))
    same(me, bench.after_one_step(squared_error(target)))


def test_a_server_loss_of_kl_steps_on_the_divergence_from_the_blend(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    paper(weighting=RNWC(), server_loss="kl", temperature=2.0).server(me, ups)
    weights = 1 / np.array(LOSSES) / sum(1 / np.array(LOSSES))
    target = torch.tensor(np.einsum("k,knc->nc", weights, logits_of(ups)), dtype=torch.float32)

    def divergence(logits):
        wanted = torch.softmax(target / 2, -1)
        return 4 * (wanted * (wanted.log() - torch.log_softmax(logits / 2, -1))).sum(-1).mean()

    same(me, bench.after_one_step(divergence))


def test_centred_logits_take_the_mean_over_classes_out_of_both_sides(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    paper(center_logits=True).server(me, ups)
    target = np.einsum("k,knc->nc", softmax(-5 * np.array(LOSSES)), logits_of(ups))
    centred = squared_error(target - target.mean(1, keepdims=True))
    same(me, bench.after_one_step(lambda logits: centred(logits - logits.mean(1, keepdim=True))))


def test_the_answer_is_the_servers_prediction_after_distilling_in_eval_mode(bench, opinions):
    me, ups = bench.server(), opinions(loss=LOSSES)
    # A dropout in front of the head: a model left in train mode would answer at random.
    me.model.module = Dropping(me.model.module)
    before = me.predict()
    answer = paper().server(me, ups)
    module = me.model.module.eval()
    batch = bench.rows(bench.public).batch(torch.arange(12), torch.device("cpu"))
    torch.testing.assert_close(answer.logits, module(**batch).detach())
    assert not torch.allclose(answer.logits, before)


class Dropping(torch.nn.Module):
    """A model whose logits are half dropped while it trains."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **batch):
        return torch.nn.functional.dropout(self.inner(**batch), 0.5, self.training)


def test_the_record_gets_the_weights(bench, opinions):
    me, ups = bench.server(), opinions(loss=LOSSES)
    me.enter(4)
    paper(weighting=ENWC(2.0)).server(me, ups)
    losses, line = me.metrics
    assert losses["values"] == pytest.approx(dict(zip(("books", "films", "shoes"), LOSSES, strict=True)))
    expected = softmax(-2 * np.array(LOSSES)).tolist()
    assert line["values"] == pytest.approx(dict(zip(("books", "films", "shoes"), expected, strict=True)))
    assert {key: line[key] for key in ("round", "party", "observation")} == {
        "round": 4,
        "party": "server",
        "observation": "weights",
    }


# Finer weights


def test_per_sample_weighs_a_client_less_where_it_is_unsure(bench, opinions):
    ups = opinions(loss=LOSSES)
    weights = paper(per_sample=True).weights(bench.server(), ups)
    uncertainty = entropy(softmax(logits_of(ups), axis=-1), axis=-1) / np.log(3)
    expected = softmax(-5 * np.array(LOSSES))[:, None] * np.exp(-uncertainty)
    expected /= expected.sum(0)
    np.testing.assert_allclose(weights[:, :, 0].numpy(), expected, rtol=1e-9)
    blend = np.einsum("kn,knc->nc", expected, logits_of(ups))
    np.testing.assert_allclose(ups.blend("logits", weights).numpy(), blend, rtol=1e-5, atol=1e-6)


CLASS_LOSSES = np.array([[0.1, 0.9, -1.0], [0.4, -1.0, -1.0], [0.2, 0.3, -1.0]])
"""The second client has never seen the second class, and nobody the third; -1 stands for unseen."""


def per_class_by_hand(beta):
    weights = np.empty((3, 3))
    weights[:, 0] = softmax(-beta * CLASS_LOSSES[:, 0])
    weights[[0, 2], 1] = softmax(-beta * CLASS_LOSSES[[0, 2], 1])
    weights[1, 1] = 0
    weights[:, 2] = softmax(-beta * np.array(LOSSES))
    return weights


def test_per_class_weighs_those_who_have_the_class_and_everybody_where_nobody_has(bench, opinions, same):
    me = bench.server()
    ups = opinions(loss=LOSSES, class_losses=[torch.tensor(row, dtype=torch.float32) for row in CLASS_LOSSES])
    algorithm = paper(weighting=ENWC(3.0), per_class=True)
    weights = algorithm.weights(bench.server(), ups)
    np.testing.assert_allclose(weights[:, 0, :].numpy(), per_class_by_hand(3.0), rtol=1e-6)
    algorithm.server(me, ups)
    centred = logits_of(ups) - logits_of(ups).mean(-1, keepdims=True)
    same(me, bench.after_one_step(squared_error(np.einsum("kc,knc->nc", per_class_by_hand(3.0), centred))))


def test_per_class_and_per_sample_multiply_and_sum_to_one(bench, opinions):
    ups = opinions(loss=LOSSES, class_losses=[torch.tensor(row, dtype=torch.float32) for row in CLASS_LOSSES])
    weights = paper(weighting=ENWC(3.0), per_class=True, per_sample=True).weights(bench.server(), ups)
    sure = np.exp(-entropy(softmax(logits_of(ups), axis=-1), axis=-1) / np.log(3))
    expected = per_class_by_hand(3.0)[:, None, :] * sure[:, :, None]
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum(0), rtol=1e-6)


def test_per_class_with_another_weighting_than_enwc_is_refused():
    with pytest.raises(FedstillError, match=r"per_class .* `weighting: ENWC`"):
        make({"name": "AdaFD", "weighting": "RNWC", "per_class": True})


def test_competence_weighs_by_size_and_by_the_odds_that_a_sample_is_like_a_clients_own(bench, opinions):
    told = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) + 0.1
    ups = opinions(loss=LOSSES, competence=list(told))
    weights = paper(competence=True, weighting=ENWC(1.0)).weights(bench.server(), ups)
    sizes = np.array([ups.clients[name].size for name in ups])
    expected = (softmax(-np.array(LOSSES)) * sizes)[:, None] * told.double().numpy()
    np.testing.assert_allclose(weights[:, :, 0].numpy(), expected / expected.sum(0), rtol=1e-6)


def test_a_client_finds_public_samples_with_its_own_words_more_likely(bench):
    me = bench.client()
    me.data = replace(me.data, train=bench.rows(np.arange(0, 6)))  # half of the public rows are its own
    told = odds(me)
    assert told.shape == (12,)
    assert told[:6].min() > told[6:].max()


# The client's side


def test_a_client_reports_the_smallest_epoch_mean_of_its_losses(bench):
    # Plain gradient descent on a batch of everything, at a rate that overshoots: the losses go up and down.
    opinion = paper().opine(bench.client(train={"epochs": 4, "rate": 40.0}))
    module = bench.model().module
    rows = bench.rows(bench.private)
    batch = rows.batch(torch.arange(12), torch.device("cpu"))
    descent = torch.optim.SGD(module.parameters(), lr=40.0)
    seen = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(module(**batch), rows.labels)
        seen.append(loss.item())
        descent.zero_grad()
        loss.backward()
        descent.step()
    assert opinion.loss == pytest.approx(min(seen), rel=1e-5)
    assert min(seen) < seen[-1], "the smallest must not be the last here"


def test_a_client_speaks_of_the_public_rows_after_training_and_of_its_loss_only(bench):
    me, twin = bench.client(), bench.client()
    opinion = paper().opine(me)
    twin.train()
    torch.testing.assert_close(opinion.logits, twin.predict())
    assert (opinion.class_losses, opinion.f1, opinion.labelled_logits) == (None, None, None)


def test_per_class_losses_mark_a_class_that_the_client_has_not(bench):
    me = bench.client()
    two_classes = np.array([number for number in range(12, 24) if number % 3 != 1])
    me.data = replace(me.data, train=bench.rows(two_classes))
    opinion = paper(per_class=True).opine(me)
    assert opinion.class_losses[1] == -1.0
    module = bench.model().module
    batch = bench.rows(two_classes).batch(torch.arange(8), torch.device("cpu"))
    each = torch.nn.functional.cross_entropy(module(**batch), bench.labels[two_classes], reduction="none")
    for label in (0, 2):
        mean = each[bench.labels[two_classes] == label].mean().item()
        assert opinion.class_losses[label].item() == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("how", ["kl", "hard"])
def test_a_client_steps_towards_the_answer(bench, same, how):
    me = bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    paper(client_loss=how).digest(me, answer)

    def towards(logits):
        if how == "hard":
            return torch.nn.functional.cross_entropy(logits, answer.logits.argmax(-1))
        wanted = answer.logits.softmax(-1)
        return (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()

    same(me, bench.after_one_step(towards))


def test_the_title_names_the_variant():
    assert make("AdaFD").title == "AdaFD w/ ENWC"
    assert make({"name": "AdaFD", "reading": "paper"}).title == "AdaFD (paper) w/ ENWC"
    finer = make({"name": "AdaFD", "per_sample": True, "loss_scale": "none", "weighting": "RNWC"})
    assert finer.title == "AdaFD w/ RNWC per_sample loss_scale=none"
