"""Kill a small federation at random moments, resume it, and compare the end with an uninterrupted run's, byte for byte.

python scripts/kill_and_resume.py --kills 20
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
partition: {kind: domain, rows_per_domain: 60}
clients: [bow, textcnn, bow, bigru, textcnn]
server: textcnn
algorithm: AdaFD
train: {epochs: 2, max_length: 32}
rounds: 12
workers: 2
participation: 0.6
memory: {host: 40MiB}
"""
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


def main() -> None:
    """Do it as often as asked; the exit status says whether all ended the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        experiment = folder / "small.yaml"
        experiment.write_text(EXPERIMENT)
        finish("fetch", "tweets", "bert-tiny")
        started = time.monotonic()
        finish("run", str(experiment), "--out", str(folder / "whole"))
        length_s = time.monotonic() - started
        wanted = content(folder / "whole" / "seed-0")
        same = 0
        for number in range(1, arguments.kills + 1):
            how = TOO_LATE
            while how == TOO_LATE:  # not a kill: draw another moment
                moment_s = moments.uniform(0.1, 1.0) * length_s
                run = folder / f"killed-{number}" / "seed-0"
                shutil.rmtree(run, ignore_errors=True)
                how = killed_run(experiment, run, moment_s)
            is_same = content(run) == wanted
            same += is_same
            outcome = "identical" if is_same else "DIFFERENT"
            print(f"{number:3d}: at {moment_s:5.1f} s of {length_s:.1f} s, {how}: {outcome}", flush=True)
    print(f"{same} of {arguments.kills} ended identical ({len(wanted)} files compared)")
    sys.exit(same != arguments.kills)


if __name__ == "__main__":
    main()
