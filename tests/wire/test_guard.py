import pytest
import torch

from fedstill.algorithms.fd import LabelMeans
from fedstill.algorithms.fedaux import Certainty
from fedstill.algorithms.fedmd import Consensus, Labels
from fedstill.wire.guard import Expected, check, check_measured, form_of, most_bytes
from fedstill.wire.messages import BadMessage, Hello, Opinion, Parameters, Scores
from tests.wire.test_encoding import Everything, opinion

DIMENSIONS = {"public": 4, "labels": 3, "labelled": 2}
EXPECTED = Expected(DIMENSIONS)


def test_the_guard_lets_a_right_message_pass():
    check(opinion(), EXPECTED)
    check(Hello(5, torch.tensor([1, 2, 2]), "bert"), EXPECTED)
    check(Everything({"w": torch.ones(9)}, 1, "x", rows=torch.ones(77)), EXPECTED)  # unknown dimensions are free


@pytest.mark.parametrize("shape", [(5, 3), (4, 2), (3, 4), (12,), (4, 3, 1), ()])
def test_the_guard_refuses_another_shape(shape):
    with pytest.raises(BadMessage, match=r"Opinion.logits has shape .*: \(4, 3\) is expected"):
        check(Opinion(torch.ones(shape)), EXPECTED)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_guard_refuses_what_is_not_finite(bad):
    poisoned = torch.ones(4, 3)
    poisoned[2, 1] = bad
    with pytest.raises(BadMessage, match=r"Opinion.logits holds values that are not finite"):
        check(Opinion(poisoned), EXPECTED)
    with pytest.raises(BadMessage, match=r"Opinion.loss holds values that are not finite"):
        check(Opinion(torch.ones(4, 3), loss=bad), EXPECTED)
    with pytest.raises(BadMessage, match=r"Everything.weights holds values that are not finite"):
        check(Everything({"fine": torch.ones(2), "w": poisoned}, 1, "x"), EXPECTED)


def test_the_guard_refuses_what_a_message_cannot_hold():
    with pytest.raises(BadMessage, match=r"Hello.size is a list"):
        check(Hello([1, 2]), EXPECTED)


def test_the_guard_knows_how_many_rows_were_asked_about():
    scores = Scores(torch.zeros(4, 3))
    check(scores, Expected({"labels": 3, "asked": 4}))
    with pytest.raises(BadMessage, match=r"\(4, 3\): \(5, 3\) is expected"):
        check(scores, Expected({"labels": 3, "asked": 5}))


def test_the_guard_refuses_a_fingerprint_that_was_not_agreed_on():
    check(Hello(5, public_fingerprint="ab"), Expected(DIMENSIONS, {"public_fingerprint": "ab"}))
    with pytest.raises(BadMessage, match=r"Hello.public_fingerprint differs from the server's"):
        check(Hello(5, public_fingerprint="ab"), Expected(DIMENSIONS, {"public_fingerprint": "cd"}))


def hello(size=6, counts=(1, 2, 3), **more):
    return Hello(size, None if counts is None else torch.tensor(counts), **more)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (hello(0, None), "Hello.size is 0: at least 1 is expected"),
        (hello(10**400, None), r"Hello.size is 10+\.\.\.: at most 1e\+09 is expected"),
        (hello(6, (7, -2, 1)), "Hello.label_counts is -2: at least 0 is expected"),
        (hello(6, (0, 0, 0)), "Hello.label_counts add up to 0, and Hello.size is 6"),
        (hello(6, (3, 3, 3)), "Hello.label_counts add up to 9, and Hello.size is 6"),
        (hello(6, (1.0, 2.0, 3.0)), "Hello.label_counts holds torch.float32: integers are expected"),
        (hello(unlike=7.0), "Hello.unlike is 7: at most 1 is expected"),
        (hello(architecture="x" * 20_000), "Hello.architecture has 20000 characters"),
        (Opinion(torch.ones(4, 3), loss=-1e9), r"Opinion.loss is -1e\+09: at least 0 is expected"),
        (Opinion(torch.ones(4, 3)), "Opinion.loss is missing, and the method needs it"),
        (Opinion(torch.ones(4, 3, dtype=torch.int64), 0.1), "Opinion.logits holds torch.int64: floats are expected"),
        (Opinion(torch.full((4, 3), 3e38), 0.1), r"Opinion.logits is 3e\+38: at most 1e\+06 is expected"),
        (Opinion(torch.full((4, 3), -3e38), 0.1), r"Opinion.logits is -3e\+38: at least -1e\+06 is expected"),
        (Opinion(torch.ones(4, 3), 0.1, f1=1.5), "Opinion.f1 is 1.5: at most 1 is expected"),
        (LabelMeans(torch.ones(3, 3), torch.tensor([1, -1, 2])), "LabelMeans.counts is -1: at least 0"),
        (Certainty(torch.full((4,), 2.0)), "Certainty.scores is 2: at most 1"),
        (Labels(torch.tensor([0, 3])), "Labels.labels is 3: at most 2 is expected"),
        (Consensus(rows=torch.tensor([0, 4])), "Consensus.rows is 4: at most 3 is expected"),
        (Everything({"w": torch.full((2,), 1e38)}, 1, "x"), r"Everything.weights is 1e\+38: at most 1e\+30"),
    ],
)
def test_every_field_has_its_type_its_range_and_its_need(message, complaint):
    expected = Expected(DIMENSIONS, required=frozenset({"Opinion.loss"}), rows_are_drawn=False)
    with pytest.raises(BadMessage, match=complaint):
        check(message, expected)


def test_label_counts_may_add_up_to_more_where_clients_train_on_some_of_their_rows():
    check(hello(6, (3, 3, 3)), EXPECTED)
    with pytest.raises(BadMessage, match="add up to 3"):
        check(hello(6, (1, 1, 1)), EXPECTED)


FORM = form_of(torch.nn.Linear(3, 2))


@pytest.mark.parametrize(
    "parameters",
    [
        {"weight": torch.ones(2, 3)},
        {"weight": torch.ones(2, 3), "bias": torch.ones(3)},
        {"weight": torch.ones(2, 3), "bias": torch.ones(2).long()},
        {"weight": torch.ones(2, 3), "bias": torch.ones(2), "more": torch.ones(2)},
    ],
)
def test_parameters_have_the_names_shapes_and_types_of_the_model(parameters):
    expected = Expected(DIMENSIONS, form=FORM)
    check(Parameters(dict(torch.nn.Linear(3, 2).state_dict())), expected)
    with pytest.raises(BadMessage, match=r"Parameters.parameters is not of the client's architecture .*(bias|more)"):
        check(Parameters(parameters), expected)
    with pytest.raises(BadMessage, match=r"Parameters.parameters is 3e\+38: at most 1e\+12"):
        check(Parameters({"weight": torch.full((2, 3), 3e38), "bias": torch.ones(2)}), expected)


def test_the_largest_message_follows_from_the_declared_shapes():
    numbers = 4 * 3 + 2 * 3  # logits and labelled logits
    small = most_bytes(Opinion, EXPECTED)
    large = most_bytes(Opinion, Expected({**DIMENSIONS, "public": 1004}))
    assert large - small == 1000 * (3 + 1) * 8  # logits and competence
    coded = frozenset({"opinions"})  # a codec may also send where a number is
    assert most_bytes(Opinion, Expected(DIMENSIONS, coded=coded)) - small == 4 * numbers
    assert small > 8 * numbers
    form = {"w": ((100, 10), True)}
    assert most_bytes(Parameters, Expected(DIMENSIONS, form=form)) < 20_000 + (1 << 18)


def measured(**changes):
    return {"round": 1, "party": "x", "stage": "trained", "split": "test", "f1": 0.5} | changes


@pytest.mark.parametrize(
    "metrics",
    [
        [measured()] * 1001,
        [measured(round=9)],
        [measured(round=True)],
        [measured(f1=10**400)],
        [measured(f1=[1])],
        [measured(stage=["trained"])],
        [measured(**{"x" * 5000: 1})],
        [{"round": 1, "observation": {"a": 1}, "values": {"a": 1}}],
        [{"round": 1, "observation": "a", "values": None}],
    ],
)
def test_what_accompanies_a_message_is_checked_too(metrics):
    check_measured([measured()], [], 3)
    with pytest.raises(BadMessage, match="measurement"):
        check_measured(metrics, [], 3)


def test_of_too_many_and_too_long_notes_the_rest_is_cut_off():
    notes = ["n" * 5000] * 300
    check_measured([], notes, 3)
    assert notes == ["n" * 1000] * 100
