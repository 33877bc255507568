"""`fedstill watch` as a user types it: it outlives a run that is killed, and runs do not mind that it is."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fedstill.cli.main import main
from tests.results.watch.conftest import shops

pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")
PATIENCE_S = 120


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedstill", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait(port: int, is_it: Callable[[str], bool]) -> str:
    """The words of the page, as soon as they are as wanted."""
    until, words = time.monotonic() + PATIENCE_S, ""
    while not is_it(words):
        assert time.monotonic() < until, words
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/news", timeout=PATIENCE_S) as answer:
                words = json.load(answer)["words"]
        except OSError:
            words = ""
        time.sleep(0.05)
    return words


@pytest.mark.slow
def test_a_run_is_killed_and_goes_on_and_so_does_watch(tmp_path: Path, reviews: Path) -> None:
    values = shops(tmp_path).model_dump(mode="json") | {"rounds": 6}
    values["train"]["epochs"] = 10
    (tmp_path / "shops.yaml").write_text(yaml.safe_dump(values))
    folder = tmp_path / "runs" / "seed-0"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    watch_words = ("watch", str(folder), "--port", str(port))
    watch = start(*watch_words)
    running = [watch]
    try:
        wait(port, lambda words: words == f"waiting for a run in {folder}")
        running.append(run := start("run", str(tmp_path / "shops.yaml"), "--out", str(folder.parent)))
        wait(port, lambda words: words.startswith("running, round 2"))
        run.kill()
        run.wait()
        assert "resume with: fedstill run --resume" in wait(port, lambda words: words.startswith("stopped"))
        running.append(again := start("run", "--resume", str(folder)))
        wait(port, lambda words: words.startswith("running"))
        watch.kill()
        watch.wait()
        running.append(watch := start(*watch_words))
        wait(port, lambda words: words == "finished")
        assert again.wait(PATIENCE_S) == 0
        watch.send_signal(signal.SIGTERM)
        said = watch.communicate(timeout=PATIENCE_S)[0]
        assert watch.returncode == 0
        assert said == f"Following {folder}: http://127.0.0.1:{port}/ (Ctrl-C ends this, not the runs)\n"
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_a_port_in_use_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["fedstill", "watch", str(tmp_path), "--port", str(port)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 1
    assert f"port {port} is in use: choose another one with --port" in capsys.readouterr().err
