from dataclasses import replace

import pytest

from fedstill.plan.caution import Caution
from fedstill.results.members import Member, Score, causes, faults, members, verdict

MODELS = {"server": "minilm", "north": "bow", "south": "bow", "east": "textcnn", "west": "bigru", "inner": "bigru"}


def line(party, round, stage, split, f1):
    return {"party": party, "round": round, "stage": stage, "split": split, "f1": f1}


def test_alone_is_the_first_training_and_after_is_the_last_that_was_measured():
    measured = [
        line("north", 1, "trained", "test/north", 0.5),
        line("north", 1, "distilled", "test/north", 0.7),
        line("north", 2, "trained", "test/north", 0.65),
        line("north", 2, "distilled", "test/north", 0.6),
        line("north", 1, "trained", "test", 0.3),
        line("north", 2, "distilled", "test", 0.55),
        line("server", 2, "distilled", "test", 0.9),
    ]
    (north,) = members(measured, {"server": "minilm", "north": "bow"}, "f1")
    assert north.own == Score(0.5, 0.6)
    assert north.own.gain == pytest.approx(0.1)
    assert north.every == Score(0.3, 0.55)
    assert Member.from_json({"name": "north", "model": "bow", "own": {"alone": 0.5, "after": 0.6}, "every": None}).own


def test_alone_is_the_last_round_of_a_run_in_which_everybody_works_alone():
    measured = [line("north", 1, "trained", "test/north", 0.5), line("north", 2, "distilled", "test/north", 0.6)]
    alone = [line("north", round, "trained", "test/north", f1) for round, f1 in ((2, 0.7), (1, 0.5))]
    (north,) = members(measured, {"server": "minilm", "north": "bow"}, "f1", alone)
    assert north.own == Score(0.7, 0.6)
    assert (north.giver, north.is_worse_off) == ("north", True)


def test_a_client_that_heard_before_it_was_measured_has_no_score_of_its_own():
    measured = [line("north", 2, "distilled", "test", 0.5), line("north", 3, "trained", "test", 0.6)]
    assert members(measured, {"north": "bow"}, "f1") == []


def test_where_clients_receive_nothing_they_get_the_servers_model_and_where_nobody_learns_there_are_no_members():
    trained = [line("north", 1, "trained", "test", 0.5)]
    assert members(trained, {"north": "bow"}, "f1") == []
    (north,) = members([*trained, line("server", 3, "distilled", "test", 0.8)], {"server": "x", "north": "bow"}, "f1")
    assert north.every == Score(0.5, 0.8)


def test_the_verdict_names_the_worst_off_first_and_says_why():
    gains = {"north": -0.05, "south": -0.2, "east": 0.3, "west": -0.005}
    found = [Member(name, "bow", Score(0.5, 0.5 + gain), None) for name, gain in gains.items()]
    said = verdict(found, ["the server came to predict one class"])
    assert said.startswith("2 of 4 clients are worse off than alone by more than a point (south -20.0, north -5.0);")
    assert said.endswith("+1.1 points on average. Why: the server came to predict one class.")
    assert "no cause was found" in verdict(found, [])
    sure = [replace(member, p=p) for member, p in zip(found, (0.3, 0.01, None, None), strict=True)]
    assert "(south -20.0, north -5.0), 1 of them by more than chance; +1.1 points" in verdict(sure, [])
    assert "(south -20.0), which is more than chance; " in verdict(sure[1:], [])
    assert "(north -5.0), which may be chance; " in verdict([sure[0], found[2]], [])
    assert "chance" not in verdict([sure[0], found[1]], [])  # unknown of one
    assert verdict(found[2:], ["anything"]).startswith("No client is worse off")


def test_the_verdict_has_the_mean_gain_on_own_rows_and_on_everybodys():
    found = [Member("north", "bow", Score(0.5, 0.5), Score(0.3, 0.4)), Member("south", "bow", None, Score(0.3, 0.6))]
    assert verdict(found, []).endswith("; on average +0.0 points on own rows, +20.0 on everybody's.")
    assert verdict(found[1:], []).endswith("; +30.0 points on average.")


def test_who_lost_on_everybodys_rows_only_is_named_too_with_why():
    gains = {"north": (0.1, -0.2), "south": (0.0, -0.005), "east": (-0.3, -0.3), "west": (0.0, -0.03)}
    found = [Member(name, "bow", Score(0.5, 0.5 + own), Score(0.5, 0.5 + all_)) for name, (own, all_) in gains.items()]
    said = verdict(found, ["few rows"])
    assert said.startswith("1 of 4 clients are worse off than alone by more than a point (east -30.0); on average -5.0")
    assert said.endswith(" On everybody's rows 2 more lost more than a point (north -20.0, west -3.0). Why: few rows.")
    said = verdict(found[:2], ["few rows"])
    assert said.startswith("No client is worse off than alone by more than a point; ")
    assert said.endswith(". On everybody's rows 1 lost more than a point (north -20.0). Why: few rows.")
    assert "Why" not in verdict(found[1:2], ["few rows"])


def test_what_failed_is_said_whoever_lost():
    (nobody,) = [Member("north", "bow", Score(0.5, 0.5), None)]
    assert verdict([nobody], [], faults=["The server is of no use."]).endswith(
        "points on average. The server is of no use."
    )
    assert "no cause was found" not in verdict(lost("north"), [], faults=["The server is of no use."])


def test_who_was_not_measured_is_named():
    found = [Member("north", "bow", Score(0.5, 0.6), None), Member("south", "bow", None, None)]
    assert verdict(found, []).endswith("+10.0 points on average. Not measured, and not counted here: south.")


BLEND = (
    "the blend names one class (good) for nearly all public rows of round 1: clients learn from their own rows instead."
)
FALLEN = "predicts one class (good) for nearly all test rows after round 1."


def lost(*names):
    return [Member(name, MODELS[name], Score(0.5, 0.3), None) for name in names]


def test_faults_are_blends_and_a_server_that_name_one_class():
    blends = [{"round": round, "party": "server", "note": BLEND} for round in (1, 3)]
    nobody = "the blend named one class for nearly all public rows, and nobody learnt from the others"
    assert faults([], blends, 3) == [f"In 2 of 3 rounds {nobody}."]
    own = "what clients gained, more training on their own rows gave them"
    assert faults([], blends, 2) == [f"In every round {nobody}: {own}."]
    server = {"round": 2, "party": "server", "note": f"server {FALLEN}"}
    learnt = [line("server", round, "distilled", "test", 0.5) for round in (1, 2)]
    assert faults(learnt, [server], 2) == ["The server's model names one class for nearly all test rows."]
    assert faults(learnt, [server | {"round": 1}], 2) == []  # it has learnt more since


def test_causes_are_one_class_models_weight_on_few_and_what_was_known_before():
    weights = {"north": 0.45, "south": 0.4, "east": 0.05, "west": 0.05, "inner": 0.05}
    observed = [{"observation": "weights", "values": weights}]
    known = [Caution("public rows unlike those of", "", ("west", "inner")), Caution("votes follow votes", "")]
    assert causes(observed, [], MODELS, known, lost("inner")) == [
        "the clients with bow had 85% of the weight",
        "public rows unlike those of inner",
        "votes follow votes",
    ]
    alone = [{"observation": "weights", "values": {"west": 0.8, "north": 0.2}}]
    assert causes(alone, [], MODELS, known[:1], lost("east")) == ["west (bigru) had 80% of the weight"]
    fair = [{"observation": "weights", "values": dict.fromkeys(weights, 0.2)}]
    assert causes(fair, [], MODELS, [], lost("east")) == []


def test_a_client_that_names_one_class_at_the_end_is_a_cause_if_it_lost():
    learnt = [line(party, round, "distilled", "test", 0.5) for party in ("server", "north", "west") for round in (1, 2)]
    told = {"server": 1, "north": 2, "west": 3}  # the server of round 1, north of round 1's answer, west of the last
    log = [{"round": round, "party": party, "note": f"{party} {FALLEN}"} for party, round in told.items()]
    end = {"round": 3, "seconds": {"digest": 0.1}}
    everybody = lost("north", "west")
    assert causes(learnt, [*log, end], MODELS, [], everybody) == ["west names one class for nearly all rows"]
    assert causes(learnt, [*log, end], MODELS, [], everybody[:1]) == []
    in_the_round = [{"round": 2, "party": "north", "note": f"north {FALLEN}"}, {"round": 3, "seconds": {"digest": 0.0}}]
    assert causes(learnt, in_the_round, MODELS, [], everybody) == ["north names one class for nearly all rows"]
