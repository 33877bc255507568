"""Adapters beside the whole model: FedAvg of five minilm clients on tweets; score, bytes, memory and seconds.

Every way is a command of its own, in one process with one thread: its peak resident memory and its CPU seconds are
what the system says of it when it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedstill import Record

Results = dict[str, dict[str, float]]

COMMON = (
    "name=adapters", "algorithm=FedAvg", "partition.rows_per_domain=200", "rounds=3", "train.epochs=1", "train.batch=8",
    "train.max_length=32", "workers=1", "device=cpu",
)  # fmt: skip
SEED = 0
WAYS: dict[str, tuple[str, ...]] = {
    "the whole model": ("minilm", "train.rate=4e-4"),
    "the whole model, `fast: false`": ("minilm", "train.rate=4e-4", "fast=false"),
    "adapters, rank 8": ("{name: minilm, lora: {rank: 8}}", "train.rate=3e-3"),
    "adapters, rank 8, of `query` and `value`": (
        "{name: minilm, lora: {rank: 8, targets: [query, value]}}",
        "train.rate=3e-3",
    ),
}


def federation(model: str, *more: str) -> dict[str, float]:
    """One run."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as said:
        command = [
            sys.executable, "-m", "fedstill", "run", "tweets", f"clients={model}", f"server={model}", f"seed={SEED}",
            "--out", scratch, *COMMON, *more,
        ]  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        clock = time.perf_counter() - started
        if status:
            said.seek(0)
            sys.exit(said.read().decode())
        folder = Path(scratch) / f"seed-{SEED}"
        record = Record(folder)
        server = record.model("server")
        saved = sum(file.stat().st_size for file in (folder / "models" / "server").glob("*.safetensors"))
        return {
            "f1": record.f1(),
            "clients": len(list((folder / "models").iterdir())) - 1,
            "learn": server.learnt,
            "parameters": server.parameters,
            "message_bytes": server.bytes,
            "bytes": sum(record.summary["bytes"].values()),
            "saved_bytes": saved,
            "peak_mib": used.ru_maxrss / 1024,
            "cpu_s": used.ru_utime + used.ru_stime,
            "clock_s": clock,
        }


def measure() -> dict[str, Any]:
    """All ways, one after the other."""
    return {way: federation(*how) for way, how in WAYS.items()}
