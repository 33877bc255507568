"""Runs are followed from their folders alone: before they begin, while they run, when they were killed, at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")

import fedstill
from fedstill.results.pace import Left
from fedstill.results.watch.planned import Planned
from fedstill.results.watch.state import State
from fedstill.results.watch.watch import Watch, follow
from tests.conftest import write_reviews
from tests.results.watch.conftest import after_round, interrupt, shops


def test_a_run_is_followed_from_before_it_begins_over_an_interruption_to_its_end(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.csv")
    folder = tmp_path / "runs" / "seed-0"
    watch = Watch(folder)
    seen: list[dict[str, Any]] = [watch.news()]
    pages = [watch.page()]

    def look() -> None:
        seen.append(watch.news())
        pages.append(watch.page(is_whole=False))

    def look_and_stop() -> None:
        look()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        fedstill.run(shops(tmp_path), folder, tell=after_round(1, look_and_stop))
    look()
    fedstill.resume(folder, tell=after_round(2, look))
    look()
    assert [news["words"] for news in seen] == [
        f"waiting for a run in {folder}",
        "running, round 2 of 3",
        f"stopped after round 1 of 3; resume with: fedstill run --resume {folder}",
        "running, round 3 of 3",
        "finished",
    ]
    assert [bool(news["left"]) for news in seen] == [False, True, False, True, False]
    assert len({news["stamp"] for news in seen}) == 5
    assert ["Score by round" in page for page in pages] == [False, True, True, True, True]
    assert ["Confusion matrix" in page for page in pages] == [False, False, False, False, True]
    assert all(news["stamp"] in page for news, page in zip(seen, pages, strict=True))
    assert len(pages[0]) > 1_000_000 > 10 * len(pages[1])  # what changes has no charting library with it
    assert "what each client gained" not in pages[3].lower()
    assert "what each client gained" in pages[4].lower()


def test_nothing_new_is_no_news(stopped: Path) -> None:
    watch = Watch(stopped)
    first = watch.news()
    watch.page()
    assert watch.news() | {"wait_s": 0} == first | {"wait_s": 0}


def test_lines_that_are_half_written_are_not_read(stopped: Path) -> None:
    before = Watch(stopped).page(is_whole=False).partition('id="live"')[2]
    for name in ("metrics.jsonl", "ledger.jsonl", "log.jsonl"):
        with (stopped / name).open("a") as file:
            file.write('{"round": 2, "par')
    watch = Watch(stopped)
    assert "stopped after round 1 of 3" in watch.news()["words"]
    assert watch.page(is_whole=False).count("<figure>") == before.count("<figure>") > 5
    assert "Left out" not in watch.page()


@pytest.mark.parametrize("garbage", ["", "{", '{"name": 3}'])
def test_a_summary_that_cannot_be_read_is_said_and_the_page_goes_on(stopped: Path, garbage: str) -> None:
    watch = Watch(stopped)
    assert "Left out" not in watch.page()
    (stopped / "summary.json").write_text(garbage)
    assert f"Left out: {stopped} cannot be read" in watch.page()
    (stopped / "summary.json").unlink()
    assert "Left out" not in watch.page()


def test_a_folder_that_is_removed_is_waited_for_again(stopped: Path) -> None:
    watch = Watch(stopped)
    watch.page()
    stopped.rename(stopped.with_name("elsewhere"))
    assert watch.news()["words"] == f"waiting for a run in {stopped}"
    assert "No run yet" in watch.page()


PRIVATE = ("private for training", ">training rows<", "Who holds what", "reviews.csv", "experiment, with every")


def test_the_page_of_a_run_at_a_centre_says_nothing_of_rows(stopped: Path) -> None:
    shown = Watch(stopped).page(is_whole=False)
    assert all(one in shown for one in PRIVATE)
    log = (stopped / "log.jsonl").read_text().replace('"engine": "local"', '"engine": "flare"')
    (stopped / "log.jsonl").write_text(log)
    shown = Watch(stopped).page(is_whole=False)
    assert "Score by round" in shown
    assert not [one for one in PRIVATE if one in shown]


def test_runs_that_are_planned_are_missing_until_they_begin_and_may_fail(stopped: Path) -> None:
    out = stopped.parent
    names = {"run": "shops, seed 0", "other/seed-0": "other, seed 0", "third/seed-0": "third, seed 0"}
    Planned(out, "A table", names, {"third/seed-0": "it has <no> labels"}, 60.0, 0.0).write()
    watch = Watch(out)
    news = watch.news()
    assert news["words"] == "stopped; resume with the same command: 1 stopped, 1 missing, 1 failed of 3 runs"
    assert news["left"] == ""
    assert all(one in news["panels"] for one in ("stopped after round 1 of 3", "failed: it has &lt;no&gt; labels"))
    assert all(one in watch.page() for one in ("A table", "other, seed 0"))


def test_a_plan_that_is_half_written_is_not_read(stopped: Path) -> None:
    out = stopped.parent
    for text in ("{", "[]", json.dumps({"runs": {}, "unknown": 1})):
        (out / "runs.json").write_text(text)
        assert follow(out).folders == (stopped,)


def test_a_folder_of_runs_counts_them(stopped: Path) -> None:
    (stopped.parent / "more" / "seed-3").mkdir(parents=True)
    assert Watch(stopped.parent).news()["words"] == "runs: 1 missing, 1 stopped"


def test_what_is_left_is_the_last_rounds_mean(stopped: Path) -> None:
    lines = [json.loads(line) for line in (stopped / "log.jsonl").read_text().splitlines()]
    for line in lines:
        if line["round"] == 1 and "seconds" in line:
            line["seconds"]["total"] = 100.0
    (stopped / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (stopped / "log.jsonl").open() as file:
        assert fedstill.common.locks.lock(file.fileno())
        state = State.of(stopped)
    assert (state.stand, state.round, state.rounds) == ("running", 1, 3)
    assert state.left is not None
    assert 100 <= state.left.seconds <= 200  # two rounds are left, and one has begun some time ago
    assert not state.left.is_whole  # no digest was seen yet


def test_the_last_digest_is_left_after_the_last_round(stopped: Path) -> None:
    lines = [json.loads(line) for line in (stopped / "log.jsonl").read_text().splitlines()]
    (first,) = [line for line in lines if line["round"] == 1 and "seconds" in line]
    later = {"total": 300.0, "digest": 50.0}
    lines += [first | {"round": number, "active": 1, "seconds": later, "at": 4e9} for number in (2, 3)]
    (stopped / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (stopped / "log.jsonl").open() as file:
        assert fedstill.common.locks.lock(file.fileno())
        state = State.of(stopped)
    assert (state.round, state.rounds) == (3, 3)
    assert state.left == Left(150.0)  # one of three clients was active, and all of them digest
