"""The commands of a federation as an operator types them, mistakes included; nothing is started here."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedstill.common.errors import FedstillError
from fedstill.common.events import Begun, Measured, Noted, SiteSaid
from fedstill.federation import joining
from fedstill.federation.daemon import Presence, answers, end_tree, is_free, left_behind
from fedstill.federation.operate import Centre
from fedstill.federation.rehearsal import free_ports
from fedstill.federation.status import Status, doing, in_a_line, late, round_line
from fedstill.federation.submission import _back, make_job, write_job
from tests.cli.test_cli import fedstill
from tests.federation.stage import three_shops, until

COMMANDS = ["init", "serve", "submit", "status", "stop", "fetch", "join", "sent", "leave", "rehearse"]
FEW = "corpus: {path: rows.jsonl}\nlimits: {min_rows: 32}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a federation of two sites, the centre's files and one site's."""
    monkeypatch.chdir(tmp_path)
    port, admin_port = free_ports(2)
    values = {"name": "shops", "host": "localhost", "port": port, "admin_port": admin_port, "sites": ["books", "toys"]}
    (tmp_path / "hospitals.yaml").write_text(json.dumps(values))
    rows = [{"text": f"{word} {number}", "label": word} for number in range(20) for word in ("good", "bad")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "server.yaml").write_text("test: {path: rows.jsonl}\npublic: {path: rows.jsonl}\n")
    (tmp_path / "site.yaml").write_text("corpus: {path: rows.jsonl}\nmodel: bow\n")
    (tmp_path / "wards.yaml").write_text("name: wards\nlabels: [bad, good]\nclients: bow\nserver: bow\nrounds: 2\n")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_the_next_step(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("federation", command, "--help") == 0
    assert "Next:" in capsys.readouterr().out


def test_before_init_every_command_of_the_centre_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["serve"], ["status", "--once"], ["stop"], ["fetch"]):
        assert fedstill("federation", *words) == 1
        assert (
            "there is no federation in federation: make one with `fedstill federation init" in capsys.readouterr().err
        )


def test_init_names_the_kits_the_date_and_the_next_step(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    printed = capsys.readouterr().out
    assert "books: federation/sites/books" in printed
    assert re.search(r"certificates are good until 20\d\d-\d\d-\d\d", printed)
    assert "fedstill federation serve --server server.yaml" in printed
    assert fedstill("federation", "submit", "wards.yaml") == 1
    assert "this federation has not been served yet" in capsys.readouterr().err
    assert fedstill("federation", "fetch") == 1
    assert "there is no job in federation: fedstill federation submit EXPERIMENT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sites": []}, "sites: "),
        ({"sites": ["a b"]}, "'a b' cannot name a site"),
        ({"sites": ["server"]}, "a site cannot be called 'server'"),
        ({"sites": ["A", "a"]}, "two sites have the same name"),
        ({"port": 8003, "admin_port": 8003}, "port and admin_port must differ"),
        ({"host": "centre.example.org"}, "bind: set the address that the centre listens on"),
        ({"bind": "everywhere"}, "bind: "),
        ({"days": 0}, "days: "),
        ({"hosts": "x"}, "unknown key 'hosts'; did you mean 'host'?"),
    ],
)
def test_a_wrong_federation_file_is_named_with_its_line(
    here: Path, change: dict[str, object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = json.loads((here / "hospitals.yaml").read_text()) | change
    (here / "hospitals.yaml").write_text(json.dumps(values))
    assert fedstill("federation", "init", "hospitals.yaml") == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert "hospitals.yaml:1" in error
    assert not (here / "federation").exists()


def test_serve_checks_files_and_ports_before_it_starts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    assert fedstill("federation", "serve", "--server", "nowhere.yaml") == 1
    assert "there is no file nowhere.yaml" in capsys.readouterr().err
    (here / "server.yaml").write_text("test: {path: rows.jsonl, label: mood}\n")
    assert fedstill("federation", "serve", "--server", "server.yaml") == 1
    assert "mood" in capsys.readouterr().err
    (here / "server.yaml").write_text("test: {path: rows.jsonl}\ndeadline: soon\n")
    assert fedstill("federation", "serve", "--server", "server.yaml") == 1
    assert "server.yaml:2: deadline: 'soon' is not a duration; write for example 90s" in capsys.readouterr().err
    (here / "server.yaml").write_text("test: {path: rows.jsonl}\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", json.loads((here / "hospitals.yaml").read_text())["port"]))
        taken.listen()
        assert fedstill("federation", "serve", "--server", "server.yaml") == 1
    assert "is in use: end the process that listens there" in capsys.readouterr().err
    assert not (here / "federation" / "centre" / "running.json").exists()


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        ("model: bow\n", "site.yaml:1: corpus: field required"),
        ("corpus: {path: gone.jsonl}\n", "gone.jsonl"),
        ("corpus: {path: rows.jsonl, label: mood}\n", "mood"),
        ("corpus: {path: rows.jsonl}\ntest: 1.5\n", "site.yaml:2: test: input should be less than 1"),
        ("corpus: {path: rows.jsonl}\nlimits: {experiments: [xyz]}\n", "limits.experiments"),
        ("corpus: {path: rows.jsonl}\n", "32 rows are left to train on, and limits.min_rows is 50"),
        (f"{FEW}model: bert-tinny\n", "bert-tinny"),
        (FEW, "the centre does not answer at localhost:"),
    ],
)
def test_join_says_what_is_wrong_before_it_takes_part(
    here: Path, site: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    (here / "site.yaml").write_text(site)
    assert fedstill("federation", "join", "federation/sites/toys", "--site", "site.yaml") == 1
    assert sentence in capsys.readouterr().err
    assert not (here / "federation" / "sites" / "toys" / "local" / "site.json").exists()


def test_join_wants_a_sites_own_kit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    assert fedstill("federation", "join", "federation/centre", "--site", "site.yaml") == 1
    assert "federation/centre is the centre's kit, not a site's" in capsys.readouterr().err
    assert fedstill("federation", "leave", "federation/sites/toys") == 0
    assert "it was not taking part" in capsys.readouterr().out


def test_leave_says_what_stays_and_forget_removes_it_but_not_the_list_of_what_left(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    kit = here / "federation" / "sites" / "toys"
    before = {path for path in kit.rglob("*") if path.is_file()}
    job = kit / "runs" / "wards-0123456789ab"
    line = {"time": "2026-01-01", "experiment": job.name, "hash": "0", "rounds": 2, "round": 1, "verb": "turn"}
    line |= {
        "message": "Opinion",
        "bytes": 1500,
        "held": {"logits": "F32 [9, 2]", "parameters/a": "F32 [2]", "parameters/b#scale": "F32 []"},
        "metrics": 1,
        "notes": 0,
        "sha256": "1",
    }
    left_there = {
        job / "tokens" / "x" / "ids.npy": "private",
        job / "checkpoint" / "round-00001.json": "{}",
        job / "public.bin": "texts",
        job / "site.log": "round 1",
        kit / "log" / "join.log": "round 1",
        kit / "log.txt": "FLARE",
        kit / "004a19c9-645d-4332-b3d3-5d0fda149b89" / "log.txt": "FLARE",
        kit / "local" / "site.json": json.dumps({"corpus": {"path": "/data"}, "limits": {"rounds": 5, "bytes": "1MB"}}),
    }
    for path, text in left_there.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    mine = kit / "site.yaml"  # whatever the operator keeps there is not ours to remove
    mine.write_text("corpus: {path: /data}\n")
    (kit / "runs" / "sent.jsonl").write_text(json.dumps(line) + "\n")
    capsys.readouterr()

    assert fedstill("federation", "sent", str(kit)) == 0
    shown = capsys.readouterr().out
    assert "logits F32 [9, 2], parameters (2 arrays), metrics: 1" in " ".join(shown.split())
    assert f"{job.name} 1 1 1.5 KB 4 rounds, 998.5 KB" in " ".join(shown.split())

    assert fedstill("federation", "sent", str(kit), "--json") == 0
    assert json.loads(capsys.readouterr().out) == [line]

    assert fedstill("federation", "leave", str(kit)) == 0
    said = capsys.readouterr().out
    assert "it was not taking part" in said
    assert f"runs/{job.name}" in said
    assert "`leave --forget` removes that" in said
    assert all(path.exists() for path in left_there)

    assert fedstill("federation", "leave", str(kit), "--forget") == 0
    assert f"runs/{job.name}" in capsys.readouterr().out
    assert {path for path in kit.rglob("*") if path.is_file()} == before | {kit / "runs" / "sent.jsonl", mine}
    assert fedstill("federation", "sent", "nowhere") == 1
    assert "there is no sent.jsonl in it" in capsys.readouterr().err


def test_status_is_json_for_scripts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    capsys.readouterr()
    assert fedstill("federation", "status", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["connected"], told["job"]) == ("shops", {"books": None, "toys": None}, None)


def test_leave_says_what_the_site_gained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    kit = here / "federation" / "sites" / "toys"
    run = kit / "runs" / "wards-0123456789ab"
    run.mkdir(parents=True)
    about = {"party": "toys", "split": "test/toys"}
    lines = [
        {"round": 1, "stage": "trained", "f1": 0.5, **about},
        {"round": 1, "stage": "distilled", "f1": 0.625, **about},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert fedstill("federation", "leave", str(kit)) == 0
    assert "wards-0123456789ab: after one round alone 50.0, now 62.5, gain +12.5" in capsys.readouterr().out


def test_a_second_join_says_that_it_takes_part_already_and_changes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    kit, first, other = here / "federation" / "sites" / "toys", here / "first.yaml", here / "other.yaml"
    first.write_text("corpus: {path: rows.csv}\n")
    other.write_text("corpus: {path: rows.csv}\nscores: false\n")
    joining.keep_file(kit, first)
    held = (kit / "local" / "site.json").read_bytes()
    with Presence(kit):
        for more in ([], ["--detach"]):
            assert fedstill("federation", "join", str(kit), "--site", str(first), *more) == 0
            assert "takes part already" in capsys.readouterr().out
        assert fedstill("federation", "join", str(kit), "--site", str(other)) == 1
        assert "says something else" in capsys.readouterr().err
    assert (kit / "local" / "site.json").read_bytes() == held


def test_a_submit_that_is_interrupted_while_it_waits_says_that_nothing_was_handed_in(here: Path) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    file = {"test": {"path": str(here / "rows.jsonl")}, "public": {"path": str(here / "rows.jsonl")}}
    (here / "federation" / "centre" / "local" / "server.json").write_text(json.dumps(file))
    command = [sys.executable, "-u", "-m", "fedstill", "federation", "submit", "wards.yaml"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as submit:
        assert submit.stdout is not None
        assert any("is `serve` running?" in line for line in iter(submit.stdout.readline, ""))  # now it waits
        submit.send_signal(signal.SIGINT)
        said, _ = submit.communicate(timeout=60)
    assert submit.returncode == 130
    assert "nothing is running: the job was not handed in" in said


def test_a_job_needs_labels_and_known_sites_and_holds_no_code(here: Path) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    centre = Centre(here / "federation")
    file = {"test": {"path": str(here / "rows.jsonl")}, "public": {"path": str(here / "rows.jsonl")}}
    (here / "federation" / "centre" / "local" / "server.json").write_text(json.dumps(file))
    experiment = three_shops(here / "rows.jsonl", clients="bow", server="bow")
    with pytest.raises(FedstillError, match="labels: a federation needs the ordered list"):
        make_job(centre, experiment)
    experiment = three_shops(here / "rows.jsonl", labels=["bad", "good"], clients={"moon": "bow"}, server="bow")
    with pytest.raises(FedstillError, match=r"clients: moon is not a site of this federation \(books, toys\)"):
        make_job(centre, experiment)
    job = make_job(centre, three_shops(here / "rows.jsonl", labels=["bad", "good"], clients="bow", server="bow"))
    folder = write_job(job, here / "job", ["books", "toys"])
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"}
    assert str(here) not in "".join((folder / name).read_text() for name in files)


def test_a_kit_is_run_once_and_its_process_can_be_ended(tmp_path: Path) -> None:
    lines = [
        "import sys",
        "from pathlib import Path",
        "from fedstill.federation.daemon import Presence",
        "with Presence(Path(sys.argv[1])): sys.stdin.read()",
    ]
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines), str(tmp_path)], stdin=subprocess.PIPE)
    presence = Presence(tmp_path)
    until(lambda: presence.pid is not None or process.poll() is not None)
    assert presence.pid == process.pid
    with pytest.raises(FedstillError, match=f"is in use already, by process {process.pid}"):
        presence.__enter__()
    assert presence.end()
    process.wait(600)
    assert presence.pid is None
    assert not presence.end()


def test_what_an_earlier_process_left_running_is_found_by_its_kit(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; sys.stdin.read()", "nvflare", "-m", str(tmp_path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert [found.pid for found in left_behind(tmp_path)] == [process.pid]
    assert left_behind(tmp_path / "other") == []
    end_tree(process.pid)
    process.wait(600)
    assert left_behind(tmp_path) == []


def test_ports_that_are_free_or_answer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert answers("127.0.0.1", port, 60.0) == os.strerror(111)
        taken.listen()
        assert not is_free("127.0.0.1", port)
        assert answers("127.0.0.1", port, 60.0) == ""
    assert is_free("127.0.0.1", port)


def test_a_status_says_who_is_late_and_how_it_ended(tmp_path: Path) -> None:
    now = time.time()
    sites = {
        "books": {"state": "answered", "took": 10.0},
        "garden": {"state": "working", "since": now - 21, "progress": {"phase": "train", "done": 3, "steps": 9}},
        "toys": {"state": "working", "since": now - 19, "progress": {}, "what": "call"},
    }
    assert late(sites, now) == ["garden"]
    seconds = r"\d+ s"  # 21 and 19, and what the test takes
    assert re.fullmatch(f"late: train 3/9, {seconds}", doing(sites["garden"], is_late=True))
    line = in_a_line({"state": "running", "round": 1, "rounds": 3, "sites": sites})
    assert re.fullmatch(f"round 2 of 3: books answered, garden train 3/9, {seconds}, toys call, {seconds}", line)


def test_the_last_word_of_a_status_is_why_the_job_ended(here: Path) -> None:
    assert fedstill("federation", "init", "hospitals.yaml") == 0
    file = {"test": {"path": str(here / "rows.jsonl")}, "public": {"path": str(here / "rows.jsonl")}}
    (here / "federation" / "centre" / "local" / "server.json").write_text(json.dumps(file))
    experiment = three_shops(here / "rows.jsonl", labels=["bad", "good"], clients="bow", server="bow")
    job = make_job(Centre(here / "federation"), experiment)
    tell = Status(here, job)
    tell(Begun(rounds=2, metric="matthews", models={}, after=1, bytes=7))
    tell(SiteSaid("toys", "asked", "call"))
    tell(Noted("toys: silent"))
    tell(SiteSaid("toys", "working", progress={"phase": "tr\x1b[2Jain", "done": 3, "steps": [9], "x": 1}))
    about = {"round": 1, "stage": "distilled", "split": "test", "f1": 0.9, "matthews": 0.4321}
    tell(Measured({"party": "server", **about}))
    tell(Measured({"party": "server", "round": 1, "observation": "beta", "values": {}}))
    with pytest.raises(FedstillError), tell:
        raise FedstillError("too few.")
    status = json.loads((here / "status.json").read_text())
    assert (status["state"], status["reason"], status["round"], status["bytes"]) == ("failed", "too few.", 1, 7)
    assert round_line(status) == "round 1/2: server Matthews 43.2, 7 B"
    assert status["notes"] == ["toys: silent"]
    assert status["sites"]["toys"]["progress"] == {"phase": "tr[2Jain", "done": 3}
    assert not [p for p in psutil.Process().children(recursive=True) if "flare" in " ".join(p.cmdline())]


def test_a_site_is_back_only_when_it_was_heard_of_after_it_was_lost() -> None:
    now = time.time()
    lost = {"state": "failed", "reason": "left out; silent for 5 s (no answer).", "lost": now - 11}
    status = {"sites": {"books": {"state": "working"}, "garden": lost, "toys": {"state": "waiting"}}}
    everybody = {"books": now, "garden": now - 15, "toys": now}
    assert _back(status, everybody, ["books", "garden", "toys"]) == []  # FLARE has not noticed yet that it is gone
    assert _back(status, everybody | {"garden": now - 1}, ["books", "garden", "toys"]) == ["garden"]
    assert _back(status, everybody, ["books", "garden"]) == ["toys"]  # it came after the job began
    assert _back(status, everybody | {"toys": now - 40}, ["books", "garden"]) == []
    lost["reason"] = "it has not accepted this experiment."
    assert _back(status, everybody | {"garden": now - 1}, ["books", "garden", "toys"]) == []
