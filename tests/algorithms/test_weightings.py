import json
import math
import os
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from fedstill.algorithms import make
from fedstill.algorithms.adafd import AdaFD
from fedstill.algorithms.weightings import ENWC, LLMWC, RNWC, Weighting
from fedstill.common.chat import Chat
from fedstill.common.errors import FedstillError
from fedstill.plan.prepare import prepare


def numbers(*losses):
    return torch.tensor(losses, dtype=torch.float64)


def test_rnwc_weighs_by_the_reciprocal_of_the_loss():
    # 1/0.5, 1/1, 1/2 are 2, 1, 0.5 of 3.5.
    weights = RNWC()(None, None, numbers(0.5, 1.0, 2.0))
    assert weights.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7], rel=1e-12)


def test_rnwc_floors_a_loss_at_1e_8():
    # 1e8 and 1 of 1e8 + 1, for a loss of nothing and for one below the floor alike.
    for loss in (0.0, 1e-12):
        weights = RNWC()(None, None, numbers(loss, 1.0))
        assert weights.tolist() == pytest.approx([1e8 / (1e8 + 1), 1 / (1e8 + 1)], rel=1e-12)


def test_enwc_is_a_softmax_of_minus_beta_times_the_loss():
    # exp(-5 * 0.2), exp(-5 * 0.4) = e^-1, e^-2.
    weights = ENWC(beta=5.0)(None, None, numbers(0.2, 0.4))
    assert weights.tolist() == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)], rel=1e-12)


def test_enwc_takes_a_whole_number_for_beta():
    assert ENWC(beta=5)(None, None, numbers(0.2, 0.4)).tolist() == ENWC(5.0)(None, None, numbers(0.2, 0.4)).tolist()


def test_enwc_with_beta_0_counts_everybody_the_same():
    assert ENWC(beta=0.0)(None, None, numbers(0.1, 3.0, 7.0, 9.0)).tolist() == [0.25] * 4


def test_enwc_with_a_large_beta_and_large_losses_does_not_overflow():
    # exp(-1e6) alone is 0, and 0/0 would be NaN; the differences are what counts.
    weights = ENWC(beta=1e5)(None, None, numbers(10.0, 10.00001, 50.0))
    assert weights.tolist() == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1), 0.0], rel=1e-6)


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=20),
    st.one_of(st.just(RNWC()), st.builds(ENWC, st.floats(0, 1e4))),
)
def test_weights_are_no_less_than_nothing_sum_to_one_and_fall_with_the_loss(losses, weighting):
    weights = weighting(None, None, numbers(*losses)).numpy()
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    assert (np.diff(weights[np.argsort(losses)]) <= 1e-15).all()


LOSSES = (0.2, 0.9, 1.4)


def labelled_case(bench, opinions, tilt):
    """A server with twelve labelled rows and three teachers; `tilt` is how much each favours the true class."""
    labelled = bench.rows(np.arange(12, 24))
    random = torch.Generator().manual_seed(3)
    logits = [
        torch.randn(12, 3, generator=random)
        + amount * torch.nn.functional.one_hot(labelled.labels, 3)
        - amount * torch.nn.functional.one_hot((labelled.labels + 1) % 3, 3)
        for amount in tilt
    ]
    return bench.server(labelled=labelled), opinions(labelled_logits=logits)


def cross_entropy_of_the_blend(me, ups, beta):
    """The function that a learnable beta descends, in numpy."""
    weights = softmax(-beta * np.array(LOSSES))
    blend = np.einsum("k,knc->nc", weights, ups.column("labelled_logits").double().numpy())
    labels = me.data.labelled.labels.numpy()
    return float(np.mean(logsumexp(blend, axis=1) - blend[np.arange(len(labels)), labels]))


def test_a_learnable_beta_lands_near_the_minimiser_that_scipy_finds(bench, opinions):
    me, ups = labelled_case(bench, opinions, (0.6, 1.0, -0.5))

    def loss(beta):
        return cross_entropy_of_the_blend(me, ups, beta)

    best = minimize_scalar(loss, bounds=(0.01, 100), method="bounded").x
    assert 0.5 < best < 20, "the case must have its minimum inside"
    weights = ENWC(beta=5.0, learnable=True)(me, ups, numbers(*LOSSES))
    learnt = me.memory.numbers["beta"]
    assert learnt == pytest.approx(best, rel=0.05)
    assert loss(learnt) < loss(5.0)
    assert weights.tolist() == pytest.approx(softmax(-learnt * np.array(LOSSES)).tolist(), rel=1e-9)
    assert me.metrics == [
        {"round": 0, "party": "server", "observation": "beta", "values": {"beta": learnt}},
    ]


def test_a_learnable_beta_goes_on_from_what_it_learnt_before(bench, opinions):
    # The teacher that fits worst is the best on the labels: beta falls for as long as it may.
    me, ups = labelled_case(bench, opinions, (-1.0, 0.0, 3.0))
    weighting = ENWC(beta=20.0, learnable=True)
    weighting(me, ups, numbers(*LOSSES))
    first = me.memory.numbers["beta"]
    weighting(me, ups, numbers(*LOSSES))
    second = me.memory.numbers["beta"]
    assert 20.0 > first > second >= 0.01
    assert weighting.current(me) == second


def test_a_learnable_beta_stays_within_its_bounds(bench, opinions):
    # The best fit is also by far the best teacher, so that more beta is always better, up to 100.
    me, ups = labelled_case(bench, opinions, (6.0, -3.0, -3.0))
    ENWC(beta=90.0, learnable=True)(me, ups, numbers(0.0, 0.01, 0.02))
    assert 90.0 < me.memory.numbers["beta"] <= 100.0 * (1 + 1e-12)


def test_a_fixed_beta_ignores_what_was_learnt(bench):
    me = bench.server()
    me.memory.numbers["beta"] = 1.0
    assert ENWC(beta=5.0).current(me) == 5.0


def test_a_learnable_beta_of_0_is_refused_because_its_logarithm_is_followed():
    with pytest.raises(FedstillError, match="learnable beta must start above 0"):
        make({"name": "AdaFD", "weighting": {"name": "ENWC", "beta": 0, "learnable": True}})


def test_a_learnable_beta_without_labelled_rows_is_refused_before_anything_runs(experiment, tmp_path):
    learnable = experiment(algorithm={"name": "AdaFD", "weighting": {"name": "ENWC", "learnable": True}})
    with pytest.raises(FedstillError, match=r"needs labelled rows.*partition\.labelled_public"):
        prepare(learnable, tmp_path)


class Service:
    """A chat-completions service on loopback that says the same to everybody, and keeps what it was asked."""

    def __init__(self, content):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                message = {"role": "assistant", "content": content}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
                payload = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *arguments):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self.thread.start()
        os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{self.server.server_port}/v1"
        return self

    def __exit__(self, *error):
        del os.environ["OPENAI_BASE_URL"]
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def chat(self):
        return Chat(attempts=2, backoff_s=0.001)


@pytest.fixture
def no_proxy(monkeypatch):
    pytest.importorskip("openai")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_llmwc_uses_the_weights_that_it_was_given(no_proxy, bench, opinions):
    me, ups = bench.server(), opinions(f1=[0.5, 0.6, 0.7125])
    with Service("0.1, 0.2, 0.7") as service:
        weights = LLMWC(chat=service.chat)(me, ups, numbers(*LOSSES))
    assert weights.tolist() == pytest.approx([0.1, 0.2, 0.7])
    assert me.notes == []
    (request,) = service.asked
    question = request["messages"][-1]["content"]
    assert "Client shoes: training loss 1.4, F1 score 0.7125" in question


def test_llmwc_falls_back_to_enwc_when_it_gets_words_and_says_so(no_proxy, bench, opinions):
    me, ups = bench.server(), opinions(f1=[0.5, 0.6, 0.7])
    with Service("The first client should count the most.") as service:
        weights = LLMWC(chat=service.chat, beta=2.0)(me, ups, numbers(*LOSSES))
    assert weights.tolist() == pytest.approx(softmax(-2.0 * np.array(LOSSES)).tolist(), rel=1e-12)
    assert len(service.asked) == 2
    (note,) = me.notes
    assert note.startswith("LLMWC fell back to ENWC(beta=2): ")
    assert "1 values instead of 3" in note


@dataclass(frozen=True)
class ByF1(Weighting):
    """A user's own: who scores better counts more."""

    wants_f1 = True

    def __call__(self, me, ups, losses):
        return ups.column("f1") / ups.column("f1").sum()


def test_a_weighting_of_one_s_own_that_wants_f1_needs_no_language_model():
    assert "openai" not in AdaFD(weighting=ByF1()).requires()
    assert "openai" in AdaFD(weighting=LLMWC()).requires()
