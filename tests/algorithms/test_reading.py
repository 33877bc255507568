"""AdaFD's default: opinions and losses on one scale, and how clients take an answer in."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

import fedstill
from fedstill.algorithms.adafd import AdaFD
from fedstill.algorithms.reading import sharpness
from fedstill.algorithms.weightings import ENWC
from fedstill.data.examples import NO_ROWS, Examples, Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.losses import kl
from fedstill.learning.sign_test import sign_test
from tests.algorithms.conftest import reviews
from tests.algorithms.test_adafd import LOSSES, logits_of, paper


def test_by_default_the_answer_is_the_sharpened_blend_of_probabilities_and_the_server_distils_it_by_kl(
    bench, opinions, same
):
    me, ups = bench.server(), opinions(loss=LOSSES)
    answer = AdaFD().server(me, ups)
    probabilities = np.einsum("k,knc->nc", softmax(-np.array(LOSSES)), softmax(logits_of(ups), axis=-1))
    np.testing.assert_allclose(answer.logits.numpy(), probabilities / 0.3, rtol=1e-5)
    wanted = torch.softmax(answer.logits, -1)
    same(me, bench.after_one_step(lambda z: (wanted * (wanted.log() - z.log_softmax(-1))).sum(-1).mean()))


def test_loud_logits_do_not_decide_by_default(bench, opinions):
    ups = opinions(loss=LOSSES)
    loud = ups.change("logits", lambda z: z)
    loud.messages["shoes"] = replace(loud["shoes"], logits=1000 * loud["shoes"].logits)
    blends = [AdaFD(weighting=ENWC(0.0)).teachers(each).mean("logits") for each in (ups, loud)]
    assert float((blends[1] - blends[0]).abs().max()) <= 1 / 3  # its weight
    raw = [paper(weighting=ENWC(0.0)).teachers(each).mean("logits") for each in (ups, loud)]
    assert float((raw[1] - raw[0]).abs().max()) > 100


def test_without_sharpening_the_answer_is_the_log_of_the_blend(bench, opinions):
    ups = opinions(loss=LOSSES)
    answer = AdaFD(sharpen=0.0, weighting=ENWC(0.0)).server(bench.server(), ups)
    np.testing.assert_allclose(answer.logits.numpy(), np.log(softmax(logits_of(ups), axis=-1).mean(0)), atol=1e-5)


@pytest.mark.parametrize("classes", [5, 14, 100])
def test_with_many_classes_a_sure_blend_stays_nine_tenths_sure(classes):
    sure = np.eye(classes)[0] / sharpness(classes)
    assert softmax(sure)[0] == pytest.approx(0.9)
    assert sharpness(classes) < sharpness(4) == sharpness(2) == 0.3


def test_the_server_may_learn_from_softer_labels_than_it_answers_with(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    answer = AdaFD(sharpen=0.1, server_sharpen=0.0).server(me, ups)
    probabilities = np.einsum("k,knc->nc", softmax(-np.array(LOSSES)), softmax(logits_of(ups), axis=-1))
    np.testing.assert_allclose(answer.logits.numpy(), probabilities / 0.1, rtol=1e-5)
    wanted = torch.from_numpy(probabilities).float()
    same(me, bench.after_one_step(lambda z: (wanted * (wanted.log() - z.log_softmax(-1))).sum(-1).mean()))


def test_a_client_divides_its_loss_by_the_entropy_of_its_labels_at_least_a_tenth_of_the_largest(bench):
    for rows, expected in (
        (np.arange(12, 24), math.log(3)),
        (np.array([number for number in range(12, 24) if number % 3 == 0]), 0.1 * math.log(3)),
    ):
        opinions = []
        for scale in ("none", "label_entropy"):
            me = bench.client()
            me.data = replace(me.data, train=bench.rows(rows))
            opinions.append(AdaFD(loss_scale=scale).opine(me).loss)
        assert opinions[0] / opinions[1] == pytest.approx(expected, rel=1e-5)


def test_a_client_rehearses_its_own_rows_while_it_distils(bench, same):
    me = bench.client(distill={"batch": 24})
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD(linear="alike").digest(me, answer)
    module, device = bench.model().module, torch.device("cpu")
    public, own = bench.rows(bench.public), bench.rows(bench.private)
    optimiser = torch.optim.SGD(module.parameters(), lr=me.spec.distill.rate)
    wanted, heard = answer.logits.softmax(-1), module(**public.batch(torch.arange(12), device))
    towards = (wanted * (wanted.log() - heard.log_softmax(-1))).sum()
    labels = torch.nn.functional.cross_entropy(
        module(**own.batch(torch.arange(12), device)), own.labels, reduction="sum"
    )
    ((towards + labels) / 24).backward()
    optimiser.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(me.parameters()[name], value, rtol=1e-4, atol=1e-6)


REPLY = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))


def answer_of(classes):
    """An answer that names these classes."""
    return fedstill.Answer(torch.eye(3)[torch.tensor(classes)])


@pytest.mark.parametrize("classes", [[2] * 12, [2] * 19 + [0]])
def test_a_wary_client_learns_its_own_rows_instead_of_an_answer_that_names_one_class(bench, same, classes):
    me, twin = bench.client(), bench.client()
    AdaFD().digest(me, answer_of(classes))
    twin.train()
    same(me, twin.parameters(), tolerance=0)


def test_an_answer_that_names_several_classes_is_learnt_from_and_one_class_too_where_nobody_is_wary(bench, same):
    me, wary, bold = bench.client(), bench.client(), bench.client()
    AdaFD(wary=False).digest(me, answer_of([2] * 11 + [0]))
    AdaFD().digest(wary, answer_of([2] * 11 + [0]))
    same(wary, me.parameters(), tolerance=0)
    AdaFD(wary=False).digest(bold, answer_of([2] * 12))
    wanted = (torch.eye(3)[[2] * 12] * 0.3 / 0.1).softmax(-1)
    same(bold, bench.after_one_step(lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()))


def test_the_server_says_that_its_blend_names_one_class(bench, opinions):
    me = bench.server()
    me.enter(2)
    one = opinions(loss=[1.0, 1.0, 1.0]).change("logits", lambda logits: logits + 50 * torch.eye(3)[1])
    AdaFD().server(me, one)
    assert me.notes == [
        "the blend names one class (fine) for nearly all public rows of round 2: clients learn from their own rows "
        "instead."
    ]


def test_a_linear_client_learns_from_sharper_labels_and_does_not_rehearse(bench, same):
    me = bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD().digest(me, answer)
    wanted = (answer.logits * 0.3 / 0.1).softmax(-1)
    same(me, bench.after_one_step(lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()))


@pytest.mark.parametrize("how", [{"sharpen": 0}, {"sharpen": 0.05}, {"answer": "server"}])
def test_what_is_sharp_already_or_was_never_divided_stays_as_it_is_for_a_linear_client(bench, same, how):
    me = bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD(**how).digest(me, answer)
    wanted = answer.logits.softmax(-1)
    same(me, bench.after_one_step(lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()))


@pytest.mark.parametrize(
    ("method", "rate"),
    [
        (AdaFD(linear="alike"), 0.25),
        (AdaFD(linear="alike", settling=0.2), 0.1),
        (AdaFD(), 0.5),
        (AdaFD(settling=0, linear="alike"), 0.0),
        (paper(), 0.0),
    ],
)
def test_after_the_last_answer_a_client_learns_its_own_rows_for_one_epoch(bench, same, method, rate):
    me, twin = bench.client(train={"epochs": 3}), bench.client(train={"epochs": 3})
    method.settle(me, REPLY)
    method.digest(twin, REPLY)
    if rate:
        twin.train(settings=twin.spec.train.model_copy(update={"epochs": 1, "rate": rate}))
    same(me, twin.parameters(), tolerance=0)


def test_a_client_is_measured_once_after_its_last_answer_when_it_has_settled(bench):
    me, twin = bench.client(), bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    for party in (me, twin):
        party.enter(2)
    AdaFD().close(me, answer)
    AdaFD().settle(twin, answer)
    twin.evaluate("distilled", round=1)
    assert me.metrics == twin.metrics
    assert len({line["stage"] for line in me.metrics}) == 1


@pytest.fixture
def abroad(bench):
    """A client of thirty reviews, and thirty public rows about something else."""
    texts, labels = reviews(30)
    ids, offsets, _ = bench.tokenizer.encode(
        [*(f"{each} votes in the senate" for each in range(30)), *texts], None, 128
    )
    store = TokenStore(ids, offsets, None)

    def client(**settings):
        me = bench.client(**settings)
        own = Labelled(store, np.arange(30, 60), torch.from_numpy(labels))
        me.data = replace(me.data, public=Examples(store, np.arange(30)), train=own)
        return me

    return client


ANSWER = fedstill.Answer(torch.randn(30, 3, generator=torch.Generator().manual_seed(5)))


def test_a_client_whose_rows_are_unlike_the_public_ones_learns_from_the_last_answer_only_and_then_trains(abroad, same):
    me, twin = abroad(train={"epochs": 3}), abroad(train={"epochs": 3})
    assert me.unlike_public >= 0.95
    AdaFD().digest(me, ANSWER)
    same(me, twin.parameters(), tolerance=0)
    AdaFD().settle(me, ANSWER)
    twin.distill(ANSWER.logits, kl, also=twin.training_rows())
    twin.train()
    same(me, twin.parameters(), tolerance=0)
    assert me.notes == []


def test_it_goes_back_if_the_rows_that_it_held_out_are_worse_for_it_and_says_so(abroad, same):
    me, twin = abroad(), abroad()
    own = me.data.train
    right = (me.predict(own).argmax(-1) == own.labels).numpy()
    for party in (me, twin):  # held out are the rows that it knows already
        party.data = replace(party.data, validation=Labelled(own.store, own.rows[right], own.labels[right]))
    AdaFD().settle(me, ANSWER)
    twin.distill(ANSWER.logits, kl, also=twin.training_rows())
    twin.train()
    assert twin.held_out_f1() < 1
    same(me, fresh(abroad), tolerance=0)
    assert me.notes == ["books stays as it was alone: the last answer made it worse on the rows that it held out."]


def fresh(client):
    """Of a client that has learnt nothing."""
    return client().parameters()


def test_not_even_the_last_answer_if_it_names_one_class(abroad, same):
    me = abroad()
    AdaFD().settle(me, answer_of([2] * 30))
    same(me, fresh(abroad), tolerance=0)


def test_nothing_of_that_with_the_switch_off_or_where_the_rows_are_alike(abroad, bench, same):
    for client, method, answer in ((abroad, AdaFD(foreign="alike"), ANSWER), (bench.client, AdaFD(), REPLY)):
        me, twin = client(train={"epochs": 3}), client(train={"epochs": 3})
        method.settle(me, answer)
        method.digest(twin, answer)
        twin.train(settings=twin.spec.train.model_copy(update={"epochs": 1}))
        same(me, twin.parameters(), tolerance=0)


@pytest.fixture
def contradicted(bench):
    """A client that is right about the rows that it held out, and an answer that says otherwise."""

    def client():
        me = bench.client(train={"epochs": 3}, distill={"epochs": 30})
        me.train()
        own = me.data.train
        right = me.held_out_right().numpy()
        me.data = replace(me.data, validation=Labelled(own.store, own.rows[right], own.labels[right]))
        assert right.sum() >= 6
        return me

    wrong = (bench.labels[bench.public] + 1) % 3
    return client, fedstill.Answer(100 * torch.eye(3)[wrong])


def test_a_client_goes_on_without_the_last_answer_if_it_is_clearly_better_with_its_own_rows_alone(contradicted, same):
    client, answer = contradicted
    me, twin, persuaded = client(), client(), client()
    AdaFD().settle(me, answer)
    AdaFD(veto=0).settle(persuaded, answer)
    twin.train()
    assert sign_test(twin.held_out_right().numpy(), persuaded.held_out_right().numpy()) < 0.05
    same(me, twin.parameters())  # of other batches, each of all rows
    assert me.notes == [
        "books goes on without the last answer: its own rows alone are better for those that it held out."
    ]


def test_it_stays_with_the_answer_where_that_may_be_chance_or_nothing_was_held_out(contradicted, same):
    client, answer = contradicted
    persuaded = client()
    AdaFD(veto=0).settle(persuaded, answer)
    for veto, held_out in ((1e-9, True), (0.05, False)):
        me = client()
        me.data = me.data if held_out else replace(me.data, validation=NO_ROWS)
        AdaFD(veto=veto).settle(me, answer)
        same(me, persuaded.parameters(), tolerance=0)
        assert me.notes == []


def test_opinions_on_a_fitted_temperature_and_the_loss_of_the_rows_held_out(bench):
    me, twin = bench.client(), bench.client()
    held_out = bench.rows(bench.private[:6])
    for party in (me, twin):
        party.data = replace(party.data, validation=held_out)
    opinion = AdaFD(calibrate=True, loss="validation", loss_scale="none").opine(me)
    twin.train()
    logits = twin.predict(held_out).double()
    losses = {
        t: torch.nn.functional.cross_entropy(logits / t, held_out.labels).item() for t in np.geomspace(0.1, 20, 70)
    }
    best = min(losses, key=losses.get)
    assert opinion.loss == pytest.approx(losses[best], rel=1e-6)
    torch.testing.assert_close(opinion.logits, (twin.predict() / best).float(), rtol=1e-4, atol=1e-6)


def test_a_label_prior_is_taken_off_and_unit_spread_has_a_deviation_of_one(bench, opinions):
    me, twin = bench.client(), bench.client()
    said = paper(prior=True).opine(me).logits
    twin.train()
    shares = (twin.label_counts() + 1) / (twin.label_counts() + 1).sum()
    torch.testing.assert_close(said, twin.predict() - shares.log())
    spread = paper(opinions="unit_spread").teachers(opinions(loss=LOSSES)).column("logits")
    np.testing.assert_allclose(spread.std(dim=(1, 2)).numpy(), 1, rtol=1e-5)
    np.testing.assert_allclose(spread.mean(-1).numpy(), 0, atol=1e-6)


def test_as_released_the_optimiser_starts_again_with_every_epoch(bench, same):
    adam = {"epochs": 2, "optimiser": "adamw", "rate": 0.01}
    me, twin = bench.client(train=adam), bench.client(train={**adam, "restart": "epoch"})
    AdaFD(reading="released").opine(me)
    twin.train()
    same(me, twin.parameters())
    once = bench.client(train=adam)
    once.train()
    assert any(not torch.equal(value, me.parameters()[name]) for name, value in once.parameters().items())
