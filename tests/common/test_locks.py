from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from fedstill.common.locks import at_work_in, is_locked, lock


def test_a_lock_is_seen_and_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    assert is_locked(tmp_path)
    process.kill()
    process.communicate()
    assert not is_locked(tmp_path)


def test_asking_keeps_nobody_out(tmp_path: Path) -> None:
    is_over = threading.Event()

    def ask_all_the_time() -> None:
        while not is_over.is_set():
            is_locked(tmp_path)

    asking = threading.Thread(target=ask_all_the_time)
    asking.start()
    try:
        for _ in range(20):
            file = os.open(tmp_path, os.O_RDONLY)
            assert lock(file)
            os.close(file)
    finally:
        is_over.set()
        asking.join()


def test_what_is_not_there_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "nowhere")


def test_two_may_be_at_work_in_a_folder(tmp_path: Path) -> None:
    with at_work_in(tmp_path / "out"):
        assert is_locked(tmp_path / "out")
        with at_work_in(tmp_path / "out"):
            assert is_locked(tmp_path / "out")
    assert not is_locked(tmp_path / "out")
