"""Kill small federations of six methods at random moments, resume, and compare with uninterrupted runs, byte for byte.

python scripts/kill_and_resume.py --kills 30
python scripts/kill_and_resume.py --kills 5 --methods AdaFD

Over a real federation the same is done by `pytest tests/federation/test_kills.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXPERIMENT = """
name: small
corpus: tweets
partition: {kind: domain, rows_per_domain: 60, labelled_public: 0.1}
train: {epochs: 2, max_length: 32}
workers: 2
participation: 0.6
"""
MIXED = """
clients: [bow, textcnn, bow, bigru, textcnn]
server: textcnn
memory: {host: 40MiB}
rounds: 12
"""
SMALL = """
clients: textcnn
server: textcnn
rounds: 12
"""
TINY = """
clients: bert-tiny
server: bert-tiny
rounds: 4
"""
METHODS = {
    "AdaFD": MIXED + "algorithm: AdaFD",
    "FedID": MIXED + "algorithm: {name: FedID, chunk: 2}",
    "FedSND": TINY + "algorithm: FedSND",
    "FedDRS": TINY + "algorithm: {name: FedDRS, samples: 8, length: 16, sampling_steps: 10}",
    "CFD": SMALL + "algorithm: CFD",
    "MutualKD": TINY + "algorithm: MutualKD",
}
"""Memories of every kind: of blends, conversations, noise, models of others, codes of quantisers, optimisers."""
TOO_LATE = "was finished before the kill"
COMPARED = ["partition.safetensors", "metrics.jsonl", "ledger.jsonl", "predictions/*", "models/*/model.safetensors"]


def fedstill(*words: str) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own."""
    command = [sys.executable, "-m", "fedstill", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def finish(*words: str) -> None:
    """Run the command to its end, which must be a good one."""
    process = fedstill(*words)
    output = process.communicate()[0]
    if process.returncode:
        sys.exit(f"fedstill {' '.join(words)} failed:\n{output.decode()}")


def content(run: Path) -> dict[str, bytes]:
    """What must be the same."""
    return {str(file.relative_to(run)): file.read_bytes() for pattern in COMPARED for file in sorted(run.glob(pattern))}


def killed_run(experiment: Path, run: Path, moment_s: float) -> str:
    """Start a run, kill the whole group at that moment, go on until it is finished; says how far it had come."""
    process = fedstill("run", str(experiment), "--out", str(run.parent))
    try:
        process.communicate(timeout=moment_s)
        return TOO_LATE
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if not (run / "experiment.yaml").exists():
        finish("run", str(experiment), "--out", str(run.parent))
        return "killed before it began"
    checkpoints = sorted(path.stem for path in (run / "checkpoint").glob("round-*.json"))
    if (run / "summary.json").exists():
        return TOO_LATE
    finish("run", "--resume", str(run))
    return f"killed after {checkpoints[-1] if checkpoints else 'no round'}"


def kill_method(name: str, kills: int, moments: random.Random, folder: Path) -> int:
    """How many of these kills of one method ended with the same bytes."""
    folder.mkdir()
    experiment = folder / "small.yaml"
    experiment.write_text(EXPERIMENT + METHODS[name])
    started = time.monotonic()
    finish("run", str(experiment), "--out", str(folder / "whole"))
    length_s = time.monotonic() - started
    wanted = content(folder / "whole" / "seed-0")
    same = 0
    for number in range(1, kills + 1):
        how = TOO_LATE
        while how == TOO_LATE:  # not a kill: draw another moment
            moment_s = moments.uniform(0.1, 1.0) * length_s
            run = folder / f"killed-{number}" / "seed-0"
            shutil.rmtree(run, ignore_errors=True)
            how = killed_run(experiment, run, moment_s)
        is_same = content(run) == wanted
        same += is_same
        outcome = f"identical in {len(wanted)} files" if is_same else "DIFFERENT"
        print(f"{name} {number}: at {moment_s:5.1f} s of {length_s:.1f} s, {how}: {outcome}", flush=True)
    return same


def main() -> None:
    """Do it as often as asked; the exit status says whether all ended the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="in all, dealt to the methods in turn")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments, methods = random.Random(arguments.seed), arguments.methods
    finish("fetch", "tweets", "bert-tiny")
    same = 0
    with tempfile.TemporaryDirectory() as scratch:
        for place, name in enumerate(methods):
            kills = len(range(place, arguments.kills, len(methods)))
            if kills:
                same += kill_method(name, kills, moments, Path(scratch) / name)
    print(f"{same} of {arguments.kills} ended identical")
    sys.exit(same != arguments.kills)


if __name__ == "__main__":
    main()
