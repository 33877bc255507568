"""A site alone, asked directly: what it refuses, what it never says, and how it outlives its worker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstill.engines.checkpoint import folder_of
from fedstill.engines.hosting import Request
from fedstill.engines.seconds import Slip
from fedstill.federation.data import read_public
from fedstill.federation.files import Limits, to_values
from fedstill.federation.host import SiteHost
from fedstill.federation.requests import Refusal, frame, unframe
from fedstill.federation.site import DEATHS, Site
from fedstill.federation.worker import Errand
from fedstill.plan.plan import PRIVATE
from fedstill.wire.encoding import decode, encode
from fedstill.wire.messages import BadMessage, Done, Opinion
from tests.federation.together import Caller, Together, two_shops, write_two_shops

OWN = """
from dataclasses import dataclass
from fedstill.algorithms.adafd import AdaFD

@dataclass(frozen=True)
class Mine(AdaFD):
    pass
"""

Make = Callable[..., Together]


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Make]:
    made: list[Together] = []

    def make(**changes: Any) -> Together:
        reviews = write_two_shops(tmp_path / "reviews.csv")
        made.append(Together(two_shops(reviews, **changes), tmp_path / f"together-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def turn(round: int) -> bytes:
    return encode(None, {"verb": "turn", "round": round})


def opened(stage: Together, site: Site) -> Caller:
    """A site that has opened and has the public samples."""
    ask = Caller(site)
    assert ask("open")[0] == {"state": "done", "notes": [], "wants_public": True, "model": "bow"}
    assert ask("public", read_public(stage.centre).pack())[0]["state"] == "done"
    return ask


def kill(site: Site) -> None:
    assert site.worker is not None
    site.worker.process.kill()
    site.worker.process.wait()


def host(stage: Together, **changes: Any) -> SiteHost:
    """What a worker does, in this process."""
    folder = stage.folder / "host"
    folder.mkdir(exist_ok=True)
    (folder / "public.bin").write_bytes(read_public(stage.centre).pack())
    errand = Errand(
        "garden", stage.job.to_json(), to_values(stage.file("garden", **changes)), str(folder), f"{folder}/public.bin"
    )
    assert Errand(**json.loads(json.dumps(asdict(errand)))) == errand
    return SiteHost(errand, lambda event: None)


# What it takes part in


def test_limits_refuse_in_one_sentence_what_the_file_does_not_allow(together: Make) -> None:
    stage = together()

    def refusal(name: str = "garden", **changes: Any) -> str:
        return Caller(stage.site(name, **changes)).refusal()

    assert refusal() == ""
    assert refusal(limits={"rounds": 3}) == ""
    assert refusal(limits={"rounds": 2}) == "it takes part in 2 rounds at most, and the experiment has 3."
    assert refusal(limits={"parameters": False}) == ""
    assert refusal(limits={"experiments": ["0" * 12, stage.job.hash[:12]]}) == ""
    assert refusal(limits={"experiments": ["0" * 12]}) == (
        f"it has not accepted this experiment, whose hash is {stage.job.hash[:16]}."
    )
    assert refusal("stranger") == "it is not among the experiment's sites."
    assert refusal(job=replace(stage.job, version="0.0.1")).startswith("it runs fedstill ")
    averaging = together(algorithm="FedAvg")
    assert Caller(averaging.site("garden", limits={"parameters": True})).refusal() == ""
    assert Caller(averaging.site("garden", limits={"parameters": False})).refusal() == (
        "its limits do not allow parameters to leave, and FedAvg sends them."
    )
    assert not Limits().parameters
    assert Caller(together(algorithm="FedED").site("garden", limits={"parameters": False})).refusal() == ""


def test_a_site_may_insist_on_masks(together: Make) -> None:
    plain, masked = together(algorithm="LogitAvg"), together(algorithm="LogitAvg", wire={"mask": True})
    assert Caller(plain.site("garden", limits={"masks": True})).refusal() == (
        "it takes part only in experiments with `wire: {mask: true}`, and this one has no masks."
    )
    assert Caller(masked.site("garden", limits={"masks": True})).refusal() == ""


def test_the_centre_cannot_make_a_site_train_on_fewer_rows_than_it_allows(together: Make) -> None:
    stage = together(train={"rows": 1, "epochs": 1, "max_length": 16})
    assert stage.file("garden").limits.min_rows == 1  # what a rehearsal needs is written into its own files
    allowed = {"min_rows": Limits().min_rows}
    assert Caller(stage.site("garden", limits=allowed)).refusal() == (
        "it trains on 50 rows at least (min_rows), and train.rows is 1."
    )
    assert Caller(stage.site("garden", limits=allowed, train={"rows": 60})).refusal() == ""


def test_a_site_with_too_few_rows_trains_nothing_and_does_not_say_how_few(together: Make) -> None:
    stage = together()
    with pytest.raises(Refusal, match=r"^it has fewer rows to train on than the 10000 of its limits \(min_rows\)\.$"):
        host(stage, limits={"min_rows": 10_000}).answer(Request("call", "garden", 1, turn(1)))


def test_the_tokens_of_private_rows_stay_in_the_sites_folder(
    together: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    stage = together()
    made = host(stage)
    assert [path.parent.parent for path in made.plan.stores.values()] == [made.folder]
    assert not (tmp_path / "cache" / "tokens").exists()


def test_another_version_of_fedstill_is_refused_and_both_are_named(together: Make) -> None:
    stage = together()
    reason = Caller(stage.site("garden", job=replace(stage.job, version="0.0.1"))).refusal()
    assert reason == f"it runs fedstill {stage.job.version}, and the centre 0.0.1: install the same version."


def test_a_site_that_refused_does_nothing_else(together: Make) -> None:
    ask = Caller(together().site("garden", limits={"rounds": 1}))
    assert ask.refusal()
    assert ask("call", turn(1), round=1)[0] == {"state": "failed", "reason": "it has not opened for this experiment."}
    assert ask.site.worker is None


def test_a_job_that_is_none_of_this_fedstill_is_refused_in_the_jobs_own_words(together: Make) -> None:
    stage = together()
    odd = replace(stage.job, experiment=stage.job.experiment | {"algorithm": "AdaDF"})
    reason = Caller(stage.site("garden", job=odd)).refusal()
    assert reason.startswith("it cannot run the experiment: ")
    assert "AdaFD" in reason


def test_an_algorithm_of_ones_own_runs_only_where_the_sites_file_names_it(together: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    stage = together(algorithm=f"{tmp_path / 'mine.py'}:Mine")
    assert stage.job.experiment["algorithm"]["name"] == "own:Mine"
    assert Caller(stage.site("garden")).refusal() == ""
    refused = Caller(stage.site("garden", own={})).refusal()
    assert "own:Mine is not allowed here" in refused
    elsewhere = replace(
        stage.job, experiment=stage.job.experiment | {"algorithm": {"name": f"{tmp_path / 'mine.py'}:Mine"}}
    )
    assert "is not allowed here" in Caller(stage.site("garden", job=elsewhere, own={})).refusal()


def test_where_a_sites_own_files_lie_and_what_is_wrong_with_them_stays_there(together: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    stage = together(algorithm=f"{tmp_path / 'mine.py'}:Mine")
    broken = tmp_path / "cellar" / "mine.py"
    broken.parent.mkdir()
    broken.write_text("raise ValueError('Mrs Smith, 1 High Street')")
    site = stage.site("garden", own={"Mine": f"{broken}:Mine"})
    assert Caller(site).refusal() == "FedstillError; the site's own log says more."
    assert "Mrs Smith" in (site.folder / "site.log").read_text()


# The public samples


def test_public_samples_are_wanted_once(together: Make) -> None:
    stage = together()
    opened(stage, stage.site("garden"))
    assert Caller(stage.site("garden"))("open")[0]["wants_public"] is False


def test_a_copy_of_the_public_samples_that_differs_in_one_row_is_refused(together: Make, tmp_path: Path) -> None:
    stage = together()
    rows = (stage.written.server.parent / "public.jsonl").read_text().splitlines()
    copy = tmp_path / "copy.jsonl"
    copy.write_text("\n".join(rows) + "\n")
    assert Caller(stage.site("garden", public={"path": str(copy)}))("open")[0]["wants_public"] is False
    copy.write_text("\n".join([*rows[:-1], json.dumps({"text": "another row"})]) + "\n")
    reason = Caller(stage.site("books", public={"path": str(copy)})).refusal()
    assert reason.startswith("its public samples are not the experiment's")
    assert "another row" not in reason
    copy.write_text("\n".join(rows[:-1]) + "\n")
    assert Caller(stage.site("books", public={"path": str(copy)})).refusal().startswith("FedstillError;")


def test_other_public_samples_than_the_experiments_are_not_taken(together: Make) -> None:
    stage = together()
    ask = Caller(stage.site("garden"))
    ask("open")
    other = replace(read_public(stage.centre), samples=1)
    texts = replace(other, texts=[*other.texts[1:], other.texts[0]])
    assert ask("public", texts.pack())[0]["reason"].startswith("its public samples are not the experiment's")
    assert ask("public", b"nothing of the kind")[0]["state"] == "failed"
    assert not ask.site.public.exists()


# What does not leave


def test_an_error_that_quotes_a_private_row_stays_in_the_sites_log(together: Make) -> None:
    stage = together()
    rows = stage.written.sites["garden"].parent / "train.jsonl"
    private = {"text": "Mrs Smith of 1 High Street", "label": "a rare disease"}
    rows.write_text(rows.read_text() + json.dumps(private) + "\n")
    ask = opened(stage, stage.site("garden"))
    said, payload = ask("call", encode(None, {"verb": "hello", "round": 0}), round=0)
    assert said["state"] == "failed"
    assert "the site's own worker.log says more" in said["reason"]
    assert "disease" not in json.dumps(said)
    assert payload == b""
    assert "a rare disease" in (ask.site.folder / "worker.log").read_text()


@given(st.binary(max_size=200) | st.text(max_size=20) | st.none())
def test_whatever_is_no_request_is_answered_so(raw: object) -> None:
    site = object.__new__(Site)  # nothing of it is needed to see that
    said, payload = unframe(site.answer(raw))
    assert said["state"] == "failed"
    assert said["reason"].startswith("the request is unreadable (")
    assert payload == b""


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), st.binary(max_size=50))
def test_frames_invert(header: dict[str, Any], payload: bytes) -> None:
    assert unframe(frame(header, payload)) == (header, payload)


@pytest.mark.parametrize("raw", [b"", b"\x01\x00\x00\x00[", b"[" * 100_000, frame({})[:-1], 7, "text", None])
def test_what_is_no_frame_is_a_bad_message_and_nothing_worse(raw: object) -> None:
    if isinstance(raw, bytes) and len(raw) > 1000:  # nested deeper than any reader follows
        raw = len(raw).to_bytes(4, "little") + raw
    with pytest.raises(BadMessage, match=r"no frame|where bytes are expected"):
        unframe(raw)


# The worker


@pytest.mark.slow
def test_a_worker_that_dies_over_and_over_is_a_failure_and_not_an_endless_loop(
    together: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstill.federation.site.WAIT_S", 0.3)
    stage = together()
    site = stage.site("garden")
    ask = opened(stage, site)
    number, request, seen = 100, {"what": "call", "round": 1}, set()
    while True:
        said, _ = unframe(site.answer(frame({**request, "number": number}, turn(1))))
        if said["state"] != "working":
            break
        if site.worker is not None:
            seen.add(site.worker.process.pid)
            site.worker.process.kill()
    assert len(seen) == DEATHS + 1
    assert said == {
        "state": "failed",
        "reason": "its worker died 3 times during one request (killed by signal 9; out of memory?).",
    }
    ask.numbers = iter(range(101, 200))  # type: ignore[assignment]
    assert ask("call", turn(1), round=1)[0] == {"state": "done", "notes": []}  # and the next request finds a new one


@pytest.mark.slow
def test_a_worker_is_brought_back_to_where_the_site_was_or_not_asked_at_all(together: Make) -> None:
    stage = together()
    ask = opened(stage, stage.site("garden"))
    _, first = ask("call", turn(1), round=1)
    assert ask("save", round=1)[0]["state"] == "done"
    kill(ask.site)

    rows = stage.written.sites["garden"].parent / "train.jsonl"
    shutil.copy(rows, rows.with_suffix(".before"))
    rows.write_text("".join(reversed(rows.read_text().splitlines(keepends=True))))
    for _ in range(2):
        said, payload = ask("call", turn(2), round=2)
        assert said["state"] == "failed"
        assert said["reason"].startswith("its rows are not those that the experiment began with")
        assert payload == b""
    shutil.copy(rows.with_suffix(".before"), rows)
    _, second = ask("call", turn(2), round=2)
    undisturbed = host(stage)
    heard = [undisturbed.answer(Request("call", "garden", round, turn(round))) for round in (1, 2)]
    assert [Slip.take_off(raw)[0] for raw in heard] == [Slip.take_off(raw)[0] for raw in (first, second)]


def test_states_of_an_older_run_do_not_drive_out_those_of_this_one(together: Make) -> None:
    stage = together()
    before = host(stage)
    for round in (1, 2, 3, 4):
        before.answer(Request("call", "garden", round, turn(round)))
        before.answer(Request("save", "garden", round))
    anew = host(stage)  # the centre has lost its record and begins again
    anew.answer(Request("call", "garden", 1, turn(1)))
    anew.answer(Request("save", "garden", 1))
    assert host(stage).answer(Request("restore", "garden", 1)) == b"1"
    assert [path.name for path in folder_of(stage.folder / "host").glob("round-*")] == ["round-00001.json"]


def test_a_site_goes_back_no_further_than_it_must(together: Make) -> None:
    stage = together()
    before = host(stage)
    for round in (1, 2, 3):
        before.answer(Request("call", "garden", round, turn(round)))
        before.answer(Request("save", "garden", round))
    after = host(stage)
    assert after.answer(Request("restore", "garden", 5)) == b"3"
    assert after.answer(Request("restore", "garden", 2)) == b"2"
    assert after.answer(Request("restore", "garden", 1)) == b"0"  # two are kept


def test_only_the_sites_own_user_can_read_what_it_keeps(together: Make) -> None:
    stage = together(rounds=1)
    stage.conduct()
    kept = [path for site in stage.sites.values() for path in (site.folder, *site.folder.rglob("*"))]
    assert any(path.suffix == ".safetensors" for path in kept)
    assert {oct(path.stat().st_mode & 0o777) for path in kept if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in kept if path.is_file()} == {"0o600"}


# Epsilon


def test_an_epsilon_of_a_site_is_for_all_experiments_it_ever_answers(together: Make) -> None:
    def private(seed: int, **privacy: Any) -> Together:
        return together(seed=seed, privacy={"kind": "sgd", "steps": 3, "epsilon": 2} | privacy)

    limits = {"epsilon": 3, "min_rows": 1}
    assert Caller(together().site("garden", limits=limits)).refusal() == (
        "its limits allow an epsilon of 3, and the experiment has no `privacy`."
    )
    assert Caller(private(1, delta=0.1).site("garden", limits=limits)).refusal() == (
        "its limits allow a delta of 1e-05, not 0.1."
    )
    first, second = private(1), private(2)
    second.folder = first.folder  # the same machine
    site = first.site("garden", limits=limits)
    assert Caller(site).refusal() == ""
    answer = encode(Done(), {"round": 1})
    site.budget.send(0, "hello", Slip(0, 0, 0).stick(answer))
    assert Caller(second.site("garden", limits=limits)).refusal() == (
        "its limits allow an epsilon of 3 in all experiments: 2 of it is spent, and this one has 2."
    )
    assert Caller(first.site("garden", limits=limits)).refusal() == ""  # it goes on with its own
    site.budget.send(1, "turn", Slip(0, 0, 0).stick(answer))
    assert Caller(first.site("garden", limits=limits)).refusal() == (
        "it has forgotten the noise of its answers, and draws no other: submit another experiment."
    )
    (site.folder / PRIVATE).mkdir()
    assert Caller(first.site("garden", limits=limits)).refusal() == ""


def test_a_worker_that_died_repeats_its_noise(together: Make) -> None:
    stage = together(algorithm="LogitAvg", privacy={"kind": "sgd", "steps": 4}, rounds=2)
    made = [host(stage) for _ in range(2)]
    raw = [Slip.take_off(one.answer(Request("call", "garden", 1, turn(1))))[0] for one in made]
    said = [decode(one, {"Opinion": Opinion}).message for one in raw]
    assert said[0].logits.equal(said[1].logits)
    shutil.rmtree(made[0].folder / PRIVATE)
    other = Slip.take_off(host(stage).answer(Request("call", "garden", 1, turn(1))))[0]
    assert not decode(other, {"Opinion": Opinion}).message.logits.equal(said[0].logits)  # no seed gives it away


def test_a_site_may_keep_its_scores_to_itself(together: Make) -> None:
    stage = together()
    for scores in (True, False):
        plan = host(stage, scores=scores).plan
        client = plan.make_client("garden", lambda event: None)
        client.evaluate("trained")
        assert bool(client.metrics) is scores
