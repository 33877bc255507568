"""The benchmarks: `make bench` writes results/*.json and the tables in README.md.

Every speed is a ratio to a plain loop in the same process, the two taking turns: these machines are noisy.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import clients
import conversation
import exchange
import growth
import int8
import noise
import page
import peers
import products
import rounds
import speed
import torch

from fedstill.papers.machine import device_name

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def memory() -> dict[str, Any]:
    """A hundred clients under two limits."""
    return {
        f"100 bert-tiny clients, host {limit}": clients.federation(100, 1.0, f"memory.host={limit}")
        for limit in ("2GiB", "256MiB")
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "speed": speed.measure,
    "techniques": speed.techniques,
    "products": products.measure,
    "rounds": rounds.measure,
    "workers": rounds.workers,
    "growth": growth.measure,
    "clients-overhead": clients.overhead,
    "clients-growth": clients.growth,
    "conversation": lambda: {"FedID, 4 bert-tiny clients": conversation.measure()},
    "noise-ratios": noise.ratios,
    "noise-growth": noise.growth,
    "memory": memory,
    "exchange": exchange.measure,
}

MORE: dict[str, Callable[[], dict[str, Any]]] = {
    "clients-active": clients.active,
    "adapters": adapters.measure,
    "int8": int8.measure,
    "peers": peers.measure,
}
"""Parts that are measured only when they are named; same_result.py and gpu.py write theirs themselves."""


def main() -> None:
    """Measure everything, or the parts that are named (`page`: nothing), and write the page from all results."""
    known = PARTS | MORE | {"page": dict}
    chosen = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in chosen if name not in known]:
        sys.exit(f"there is no part {unknown[0]}; the parts are {', '.join(known)}.")
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
    machine |= {"processor": device_name("cpu")}
    RESULTS.mkdir(exist_ok=True)
    for name in chosen:
        if name == "page":
            continue
        before, started = os.getloadavg()[0], time.perf_counter()
        values = known[name]()
        about = machine | {"load_before": round(before, 2), "seconds": round(time.perf_counter() - started)}
        (RESULTS / f"{name}.json").write_text(json.dumps({"machine": about, "values": values}, indent=1) + "\n")
        print(f"{name}: {about['seconds']} s, load before {about['load_before']}", file=sys.stderr, flush=True)
    measured = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    values_by, machines = ({name: part[key] for name, part in measured.items()} for key in ("values", "machine"))
    (HERE / "README.md").write_text(page.page(values_by, machines, machine["cores"]))
    print((HERE / "README.md").read_text())


if __name__ == "__main__":
    main()
