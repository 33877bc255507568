import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fedaux import FedAUX, in_unit_ball, separator
from fedstill.common.errors import FedstillError
from fedstill.learning.features import features
from fedstill.models import Model, ModelSpec
from fedstill.models.small import TextCNN
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies
from tests.algorithms.conftest import LABELS, Bench
from tests.algorithms.test_cfd import Fed
from tests.algorithms.test_fedgkd import shifted
from tests.algorithms.test_parameters import lending


class Convolutions(Bench):
    """The same parties with a model that has features."""

    def model(self, seed=7):
        torch.manual_seed(seed)
        module = TextCNN(self.tokenizer.vocabulary, len(LABELS), self.tokenizer.pad_id, 6, 4, dropout=0.0)
        return Model(module, self.tokenizer, ModelSpec(name="textcnn"), LABELS, rate=0.05)


@pytest.fixture
def convolutions(bench):
    return Convolutions(bench.store, bench.labels, bench.tokenizer)


def begun(bench, algorithm, failing=()):
    server, clients = bench.server(), {name: bench.client(name) for name in ("books", "films")}
    for number, client in enumerate(clients.values()):
        client.set_parameters(shifted(client.parameters(), number))
    fed = Fed(server, clients, failing)
    fed.algorithm = algorithm
    assert algorithm.start(fed) is None
    return server, clients


# Features in the unit ball, and the regression on them


def test_features_are_scaled_by_the_public_ones_alone_and_none_is_longer_than_1():
    random = torch.Generator().manual_seed(0)
    own, public = 9 * torch.randn(20, 5, generator=random), torch.randn(30, 5, generator=random)
    mine, theirs = in_unit_ball(own, public)
    longest = public.norm(dim=1).max().item()
    np.testing.assert_allclose(theirs[:, :5].numpy(), public.numpy() / longest / math.sqrt(2), rtol=1e-6)
    for rows in (mine, theirs):
        assert rows.norm(dim=1).max() <= 1 + 1e-12
        assert torch.allclose(rows[:, 5], torch.full((len(rows),), 1 / math.sqrt(2), dtype=torch.float64))
    np.testing.assert_allclose(theirs.norm(dim=1).max(), 1, rtol=1e-9)
    # One private row, however long, changes nothing about the others: the proof of privacy rests on it.
    other = own.clone()
    other[3] *= 1e6
    changed, same = in_unit_ball(other, public)
    assert torch.equal(same, theirs)
    assert torch.equal(changed[:3], mine[:3])
    assert torch.equal(changed[4:], mine[4:])


def test_rows_without_any_feature_are_no_error():
    mine, theirs = in_unit_ball(torch.zeros(2, 3), torch.zeros(4, 3))
    assert torch.isfinite(mine).all()
    assert torch.isfinite(theirs).all()


@pytest.mark.parametrize("regularisation", [0.01, 1.0])
def test_the_regression_is_scikit_learns_and_its_gradient_is_zero(regularisation):
    random = np.random.default_rng(0)
    rows = random.normal(size=(80, 6)) / 4 + np.repeat([[0.3], [0.0]], [30, 50], axis=0)
    sides = np.repeat([1.0, -1.0], [30, 50])
    found = separator(torch.from_numpy(rows), torch.from_numpy(sides), regularisation)

    w = found.clone().requires_grad_()
    margins = torch.from_numpy(sides) * (torch.from_numpy(rows) @ w)
    ((1 + (-margins).exp()).log().mean() + regularisation / 2 * (w**2).sum()).backward()
    assert w.grad.norm() < 1e-8
    theirs = LogisticRegression(C=1 / (regularisation * 80), fit_intercept=False, tol=1e-10, max_iter=10_000)
    np.testing.assert_allclose(found.numpy(), theirs.fit(rows, sides).coef_[0], rtol=1e-5, atol=1e-7)


def test_replacing_a_row_moves_the_regression_by_no_more_than_the_sensitivity():
    random = np.random.default_rng(1)
    rows = random.normal(size=(40, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sides = torch.from_numpy(np.repeat([1.0, -1.0], 20))
    for regularisation in (0.01, 0.1):
        before = separator(torch.from_numpy(rows), sides, regularisation)
        for _ in range(10):
            other = rows.copy()
            other[0] = random.normal(size=4)
            other[0] /= np.linalg.norm(other[0])
            moved = (separator(torch.from_numpy(other), sides, regularisation) - before).norm()
            assert 0 < moved <= 2 / (regularisation * 40)


# Scores


def test_a_client_takes_theta_0_and_scores_every_public_row_by_how_much_it_looks_like_its_own(convolutions, same):
    server, client = convolutions.server(), convolutions.client()
    client.set_parameters(shifted(client.parameters(), 1))
    said = FedAUX(negatives=None, penalty="mean").certify(client, Parameters(server.parameters()))
    same(client, server.parameters(), tolerance=0)
    own, public = in_unit_ball(*(features(server.model.module, convolutions.rows(rows)) for rows in
                                 (convolutions.private, convolutions.public)))  # fmt: skip
    model = LogisticRegression(C=1 / (0.01 * 24), fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(np.concatenate([own, public]), np.repeat([1, 0], 12))
    np.testing.assert_allclose(said.scores.numpy(), model.predict_proba(public)[:, 1], rtol=1e-4)


def test_negatives_are_a_share_of_the_public_rows_and_only_the_others_are_scored_with_the_authors_l2(convolutions):
    server, client, method = convolutions.server(), convolutions.client(), FedAUX(negatives=0.25)
    negative, scored = method.divided(client)
    assert (len(negative), len(scored)) == (3, 9)
    assert sorted([*negative, *scored]) == list(range(12))
    assert [part.tolist() for part in method.divided(server)] == [negative.tolist(), scored.tolist()]
    other = convolutions.client(seed=1)
    assert method.divided(other)[0].tolist() != negative.tolist()
    said = method.certify(client, Parameters(server.parameters())).scores
    own, public = in_unit_ball(*(features(server.model.module, convolutions.rows(rows)) for rows in
                                 (convolutions.private, convolutions.public)))  # fmt: skip
    model = LogisticRegression(C=1 / 0.01, fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(np.concatenate([own, public[negative]]), np.repeat([1, 0], [12, 3]))
    np.testing.assert_allclose(said[scored].numpy(), model.predict_proba(public[scored])[:, 1], rtol=1e-4)
    assert (said[negative] == 0).all()


def test_the_l2_is_that_of_the_sum_of_the_losses_unless_scores_are_private():
    assert FedAUX(regularisation=0.02).pull(50) == pytest.approx(0.0004)
    assert FedAUX(regularisation=0.02, penalty="mean").pull(50) == 0.02
    assert FedAUX(regularisation=0.02, epsilon=1.0).pull(50) == 0.02


def test_a_regression_that_is_hardly_held_back_still_converges():
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 384)) + np.repeat([[0.05], [0.0]], [300, 100], axis=0)  # fewer rows than separate
    rows /= np.linalg.norm(rows, axis=1).max()
    sides = torch.from_numpy(np.repeat([1.0, -1.0], [300, 100]))
    found = separator(torch.from_numpy(rows), sides, 0.01 / 400)
    theirs = LogisticRegression(C=100, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(rows, sides.numpy())
    np.testing.assert_allclose(found.numpy(), theirs.coef_[0], rtol=1e-3, atol=1e-3)


def test_no_score_is_below_the_floor(convolutions):
    client = convolutions.client()
    method = FedAUX(floor=0.9)
    said = method.certify(client, Parameters(client.parameters()))
    assert said.scores[method.divided(client)[1]].min() == torch.tensor(0.9)


def test_the_server_keeps_everybodys_scores_and_they_survive_a_checkpoint(convolutions):
    server, _ = begun(convolutions, FedAUX())
    twin = convolutions.server()
    twin.set_state(server.state())
    assert sorted(twin.memory.mappings["certainty"]) == ["books", "films"]
    for name, scores in server.memory.mappings["certainty"].items():
        assert scores.shape == (12,)
        assert torch.equal(twin.memory.mappings["certainty"][name], scores)


def test_who_sent_no_scores_fails_in_the_first_round_and_does_not_teach_later(convolutions):
    server, clients = begun(convolutions, FedAUX(), failing=["films"])
    assert list(server.memory.mappings["certainty"]) == ["books"]
    for client in clients.values():
        client.enter(1)
    with pytest.raises(FedstillError, match="did not take the model that everybody starts from"):
        FedAUX().opine(clients["films"])
    books = FedAUX().opine(clients["books"])
    method, hellos = FedAUX(epochs=0), dict.fromkeys(("books", "films"), Hello(10, None, "textcnn", ""))
    both = {"books": books, "films": Parameters({name: 2 * value for name, value in books.parameters.items()})}
    answer = method.server(lending(convolutions, server), Replies(both, hellos))
    for name, value in books.parameters.items():  # both count in the mean
        torch.testing.assert_close(answer.parameters[name], 1.5 * value if value.is_floating_point() else value)


# Privacy


def test_the_noise_is_the_gaussian_mechanisms():
    # sqrt(2 ln 125000) = 4.844805, and the sensitivity is 2 / (0.01 * 500) = 0.4.
    assert FedAUX(epsilon=0.5).deviation(500) == pytest.approx(4.844805 * 0.4 / 0.5, rel=1e-6)
    assert FedAUX(epsilon=1.0, delta=1e-3, regularisation=0.1).deviation(100) == pytest.approx(
        math.sqrt(2 * math.log(1250)) * 0.2
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_that_much_noise_is_private_by_the_exact_criterion(epsilon, delta):
    """Balle and Wang 2018, Theorem 8, for a sensitivity of 1."""
    deviation = FedAUX(epsilon=epsilon, delta=delta, regularisation=0.01).deviation(200)  # 2 / (0.01 * 200) = 1
    a, b = 1 / (2 * deviation), epsilon * deviation
    assert norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) <= delta


def test_scores_are_those_of_weights_with_that_much_noise_drawn_anew_for_everybody(convolutions):
    client, strong = convolutions.client(), 1.0
    theta = Parameters(client.parameters())
    exact = FedAUX(regularisation=strong, penalty="mean", negatives=None).certify(client, theta).scores.double().logit()
    _, public = in_unit_ball(*(features(client.model.module, data) for data in (client.data.train, client.data.public)))
    algorithm, moves = FedAUX(regularisation=strong, epsilon=1.0, negatives=None), []
    for number in range(300):
        other = convolutions.client(f"client {number}")
        moves.append(algorithm.certify(other, theta).scores.double().logit() - exact)
    # The score of x moves by noise * x: a deviation of |x| times the mechanism's.
    measured = torch.stack(moves).std(0) / public.norm(dim=1)
    assert measured.mean().item() == pytest.approx(algorithm.deviation(24), rel=0.1)
    assert torch.stack(moves).mean(0).abs().max() < 4 * algorithm.deviation(24) / math.sqrt(300)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epsilon": 1.5}, "'epsilon'.*less than or equal to 1"),
        ({"epsilon": 0}, "'epsilon'.*greater than 0"),
        ({"delta": 1}, "'delta'.*less than 1"),
        ({"floor": 0}, "'floor'.*greater than 0"),
        ({"regularisation": 0}, "'regularisation'.*greater than 0"),
        ({"rate": -1}, "'rate'.*greater than 0"),
    ],
)
def test_other_options_are_refused(options, complaint):
    with pytest.raises(FedstillError, match=complaint):
        make({"name": "FedAUX", **options})


# Rounds


def test_the_server_distils_the_ensemble_weighed_by_scores_into_the_plain_average(convolutions, same):
    server = lending(convolutions, convolutions.server(distill={"epochs": 5}))
    random = torch.Generator().manual_seed(2)
    scores = {name: torch.rand(12, generator=random) for name in ("books", "films", "shoes")}
    server.memory.mappings["certainty"] = scores
    hellos = {"books": Hello(10), "films": Hello(30)}  # shoes sat the round out
    models = {name: shifted(server.parameters(), seed) for seed, name in enumerate(hellos)}
    method = FedAUX(rate=0.5)
    answer = method.server(server, Replies({n: Parameters(v) for n, v in models.items()}, hellos))

    module = convolutions.model().module
    scored = torch.from_numpy(method.divided(server)[1])
    assert len(scored) == 10
    batch = convolutions.rows(convolutions.public).batch(scored, torch.device("cpu"))
    teachers = []
    for parameters in models.values():
        module.load_state_dict(parameters)
        teachers.append(module(**batch).detach())
    module.load_state_dict({key: (models["books"][key] + models["films"][key]) / 2 for key in models["books"]})
    weights = [scores[name][scored, None] for name in hellos]
    blend = (weights[0] * teachers[0] + weights[1] * teachers[1]) / (weights[0] + weights[1])
    F.kl_div(module(**batch).log_softmax(-1), blend.softmax(-1), reduction="batchmean").backward()
    wanted = {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()}
    same(server, wanted, tolerance=1e-5)
    same(server, answer.parameters, tolerance=0)


SOME = {
    "algorithm": {"name": "FedAUX", "rate": 1e-3},
    "clients": {"name": "textcnn", "embedding": 16, "filters": 8},
    "server": {"name": "textcnn", "embedding": 16, "filters": 8, "tokenizer": "bert-tiny"},
    "train": {"epochs": 4, "batch": 8, "rate": 2e-2, "max_length": 16},
}


def test_a_run_costs_p_times_k_plus_1_and_a_score_a_public_row_once(experiment, tmp_path):
    record = fedstill.run(experiment(**SOME), tmp_path / "run")
    public = len(load_file(tmp_path / "run" / "partition.safetensors")["public"])
    theta = load_file(record.model_folder() / "model.safetensors")
    numbers = 4 * sum(value.numel() for value in theta.values())
    (once,) = [line for line in record.ledger if line["message"] == "Certainty"]
    assert (once["round"], once["direction"], once["payload"]) == (0, "up", 3 * 4 * public)
    lines = [line for line in record.ledger if line["message"] == "Parameters"]
    up = {line["round"]: line["payload"] for line in lines if line["direction"] == "up"}
    down = {line["round"]: (line["payload"], line["recipients"]) for line in lines if line["direction"] == "down"}
    assert up == {1: 3 * numbers, 2: 3 * numbers}
    assert down == {0: (numbers, 3), 2: (numbers, 3), 3: (numbers, 3)}
    assert record.summary["scores"]["server"]["test"]["f1"] > 0.6
    assert make("FedAUX").cost == "P(K+1)+N_a K once"


def test_clients_that_lack_classes_rounds_that_lack_clients_and_private_scores(experiment, tmp_path):
    changes = {
        "algorithm": {"name": "FedAUX", "epsilon": 0.5},
        "partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.05, "public": 0.3},
        "participation": 0.5,
        "rounds": 3,
    }
    record = fedstill.run(experiment(**(SOME | changes)), tmp_path / "run")
    assert 0 < record.summary["scores"]["server"]["test"]["f1"] < 1


def test_a_model_without_a_linear_layer_is_refused_before_any_training(experiment, tmp_path):
    with pytest.raises(FedstillError, match="FedAUX: bow has no linear layer"):
        fedstill.run(experiment(algorithm="FedAUX"), tmp_path / "run")
