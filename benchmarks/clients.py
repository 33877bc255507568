"""Many clients: how a round's time and the memory grow with them, and what the framework itself costs.

Seconds are those of log.jsonl: a round's `total` is its `phases` (the method's work, of the server and of the busier
worker), its `state` (reading, writing and building clients) and the `rest`. Overhead: the rest in percent of the total.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedstill.algorithms.adafd import AdaFD
from fedstill.algorithms.base import Answers, Federation

Results = dict[str, dict[str, float]]

ACTIVE = (50, 50, 100, 200)
"""Clients in the rounds of `Growing`; the first round is warming up: there is nothing to digest in it yet."""
SHORT = ("train.epochs=1", "distill.epochs=1", "train.max_length=32", "client_tests=own", "name=clients")
LOOK_S = 1.0
"""Reading a process's memory costs some of the time that is measured."""
DISK_A_CLIENT = 25e6
"""Bytes of a bert-tiny with its tokenizer in the record, and of its last state."""


@dataclass(frozen=True)
class Growing(AdaFD):
    """AdaFD with more clients every round, and without the end in which everybody digests."""

    def round(self, fed: Federation, answer: Answers) -> Answers:
        return self.server(fed.server, fed.call("turn", answer, sorted(fed.clients)[: ACTIVE[fed.round - 1]]))

    def finish(self, fed: Federation, answer: Answers) -> None:
        pass


def memory_of(processes: Sequence[int]) -> int:
    """Bytes that these processes hold, shared pages counted once."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total


def family_of(process: int) -> list[int]:
    """A process and all that came of it."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [process, *(member for child in children for member in family_of(int(child)))]


def work_of(processes: Sequence[int]) -> float:
    """CPU seconds of these processes and their ended children so far: other processes of the machine do not count."""
    total = 0
    for process in processes:
        with suppress(OSError):
            total += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def run(folder: Path, clients: int, *overrides: str) -> tuple[list[dict[str, Any]], float]:
    """The lines of seconds of a federation of bert-tiny clients on tweets, and its peak memory in GiB.

    Every line gets the CPU seconds of its round besides, as seen from outside.
    """
    needed = clients * DISK_A_CLIENT
    if shutil.disk_usage(folder.parent).free < needed:
        sys.exit(f"{clients} clients need {needed / 1e9:.0f} GB in {folder.parent}: set TMPDIR to a larger disk.")
    command = [
        sys.executable, "-m", "fedstill", "run", "tweets", "clients=bert-tiny", "server=bert-tiny", "device=cpu",
        "--out", str(folder), *overrides,
    ]  # fmt: skip
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        peak, log, worked = 0, folder / "seed-0" / "log.jsonl", [0.0]
        while process.poll() is None:
            family = family_of(process.pid)
            peak = max(peak, memory_of(family))
            work = work_of(family)
            rounds = log.read_text().count('"seconds"') if log.exists() else 0
            worked += [work] * (rounds + 1 - len(worked))
            time.sleep(LOOK_S)
        if process.returncode:
            said.seek(0)
            sys.exit(said.read().decode())
    lines = [line for line in map(json.loads, log.read_text().splitlines()) if "seconds" in line]
    for line, (before, after) in zip(lines, pairwise(worked), strict=False):
        line["seconds"]["cpu"] = after - before
    return lines, peak / 2**30


def parts_of(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median of every part over those rounds, and the overhead."""
    parts = {f"{name}_s": statistics.median(line["seconds"][name] for line in lines) for name in PARTS}
    return parts | {"overhead_percent": 100 * parts["rest_s"] / parts["total_s"]}


PARTS = ("total", "phases", "state", "rest", "idle", "cpu")


def federation(clients: int, participation: float, *overrides: str) -> dict[str, float]:
    """Two rounds of AdaFD and the end, in which all clients digest; iid tweets, 1 epoch, 32 tokens, 513 public rows."""
    with tempfile.TemporaryDirectory() as scratch:
        partition = f"partition={{kind: iid, clients: {clients}, public: 0.05}}"
        share = f"participation={participation}"
        lines, peak = run(Path(scratch) / "run", clients, partition, share, "rounds=2", *SHORT, *overrides)
    hello, *rounds, end = lines
    return {
        "clients": clients, "active": rounds[0]["active"], **parts_of(rounds), "hello_s": hello["seconds"]["total"],
        "end_s": end["seconds"]["total"], "peak_gib": peak,
    }  # fmt: skip


def growth(counts: Sequence[int] = (1, 10, 100, 1000)) -> Results:
    """From one client to a thousand; a tenth of them active where there are a hundred or more."""
    return {f"{many} clients": federation(many, 0.1 if many >= 100 else 1.0) for many in counts}


def active(clients: int = 1000) -> Results:
    """Rounds of a thousand clients with more and more of them active."""
    with tempfile.TemporaryDirectory() as scratch:
        partition = f"partition={{kind: iid, clients: {clients}, public: 0.05}}"
        algorithm = f"algorithm={Path(__file__).resolve()}:Growing"
        rounds = f"rounds={len(ACTIVE)}"
        lines, peak = run(Path(scratch) / "run", max(ACTIVE), partition, algorithm, rounds, *SHORT)
    measured = zip(ACTIVE[1:], lines[2 : len(ACTIVE) + 1], strict=True)
    return {
        f"{many} of {clients} active": {"clients": clients, "active": many, **parts_of([line]), "peak_gib": peak}
        for many, line in measured
    }


def overhead(rows: int = 500) -> Results:
    """Sixteen clients that train on 500 rows each, drawn from their 580: the tweets are no more. 1 epoch, 32 tokens."""
    with tempfile.TemporaryDirectory() as scratch:
        partition = "partition={kind: iid, clients: 16, public: 0.05, validation: 0, test: 0.05}"
        lines, peak = run(Path(scratch) / "run", 16, partition, f"train.rows={rows}", "rounds=3", *SHORT)
    return {f"16 clients, {rows} rows each": {"clients": 16, "active": 16, **parts_of(lines[2:4]), "peak_gib": peak}}


def lines(results: Results) -> list[str]:
    """The results as a table."""
    return [
        "| what | active | round s | phases | state | rest | overhead % | idle | CPU s | peak GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {what} | {v['active']} | {v['total_s']:.1f} | {v['phases_s']:.1f} | {v['state_s']:.1f} "
            f"| {v['rest_s']:.2f} | {v['overhead_percent']:.1f} | {v['idle_s']:.1f} | {v['cpu_s']:.0f} "
            f"| {v['peak_gib']:.2f} |"
            for what, v in results.items()
        ),
    ]


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["overhead", "active", "growth"]
    found = {what: values for name in chosen for what, values in globals()[name]().items()}
    sys.stdout.write(json.dumps(found, indent=1) + "\n" + "\n".join(lines(found)) + "\n")
