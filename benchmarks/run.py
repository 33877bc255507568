"""The benchmarks: `make bench` writes results/*.json and the table in README.md.

Every speed is a ratio to a plain loop in the same process, the two taking turns: these machines are noisy.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import conversation
import noise
import numpy as np
import torch

from fedstill.data import corpora
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore, store_tokens
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.predict import predict
from fedstill.models import Model, ModelSpec, build
from fedstill.models.build import party_tokenizer

HERE = Path(__file__).parent
BATCH, REPEATS = 32, 5


def interleaved(rows: int, plain: Callable[[], object], ours: Callable[[], object]) -> dict[str, float]:
    """How much faster ours is: the median of ratios of neighbours in time, with the smallest and the largest."""
    ratios, seconds = [], []
    for turn in range(REPEATS + 1):
        times = []
        for work in (plain, ours):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        if turn:  # the first warms up
            ratios.append(times[0] / times[1])
            seconds.append(times[1])
    return {
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "rows": rows,
        "rows_per_s": rows / statistics.median(seconds),
    }


def steps(name: str, rows: int) -> dict[str, dict[str, float]]:
    """Training and predicting tweets: our phase against the papers' kind of loop (padded to 128, torch's AdamW)."""
    corpus = corpora.load(corpora.CorpusSpec(name="tweets"))
    spec = ModelSpec(name=name)
    tokenizer = party_tokenizer(spec, name)
    store = TokenStore.read(store_tokens(tokenizer, corpus.texts, None, 128, corpus.fingerprint()))
    labels = torch.from_numpy(corpus.labels[:rows])
    data = Examples(store, np.arange(rows), labels)

    def fresh() -> Model:
        return build(spec, corpus.label_names, name, 0)

    def padded(picked: torch.Tensor) -> dict[str, torch.Tensor]:
        batch = data.batch(picked, torch.device("cpu"))
        width = 128 - batch["input_ids"].shape[1]
        return {key: torch.nn.functional.pad(value, (0, width)) for key, value in batch.items()}

    def plain_training() -> None:
        module = fresh().module
        optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4)
        for picked in torch.split(torch.randperm(rows), BATCH):
            loss = module(**padded(picked), labels=labels[picked]).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()

    def our_training() -> None:
        Phase(fresh().module, data, PhaseSettings(epochs=1, batch=BATCH), 1e-4, seed=0).run(labels, ce)

    module = fresh().module

    def plain_prediction() -> None:
        module.eval()
        with torch.no_grad():
            for picked in torch.split(torch.arange(rows), BATCH):
                module(**padded(picked))

    return {
        f"train {name}": interleaved(rows, plain_training, our_training),
        f"predict {name}": interleaved(rows, plain_prediction, lambda: predict(module, data)),
    }


def memory_of(processes: list[int]) -> int:
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
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True
    ).stdout.split()
    return [process, *(member for child in children for member in family_of(int(child)))]


def hundred_clients(model: str, limit: str) -> dict[str, float]:
    """A federation of a hundred clients, two rounds: peak memory of all its processes."""
    with tempfile.TemporaryDirectory() as scratch:
        overrides = [
            "partition={kind: iid, clients: 100, public: 0.05}", f"clients={model}", "server=bert-tiny",
            "train.epochs=1", "distill.epochs=1", "train.max_length=32", "rounds=2", "name=hundred", "client_tests=own",
            f"memory.host={limit}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "fedstill", "run", "tweets", *overrides, "--out", scratch]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory_of(family_of(process.pid)))
            time.sleep(0.5)
        if process.returncode:
            sys.exit(process.stdout.read().decode() if process.stdout else "failed")
        return {"peak_gib": peak / 2**30}


def speed() -> Results:
    """Training and predicting against the plain loop."""
    torch.set_num_threads(1)
    return steps("bert-tiny", 320) | steps("minilm", 64)


def memory() -> Results:
    """A hundred clients under two limits."""
    return {f"100 bert-tiny clients, host {limit}": hundred_clients("bert-tiny", limit) for limit in ("2GiB", "256MiB")}


Results = dict[str, dict[str, float]]

PARTS: dict[str, Callable[[], Results]] = {
    "speed": speed,
    "conversation": lambda: {"FedID, 4 bert-tiny clients": conversation.measure()},
    "noise-ratios": noise.ratios,
    "noise-growth": noise.growth,
    "memory": memory,
}


def main() -> None:
    """Measure everything, or the parts that are named, and write the page from all results there are."""
    chosen = sys.argv[1:] or list(PARTS)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    for name in chosen:
        found = {"machine": machine, "values": PARTS[name]()}
        (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    measured = {file.stem: json.loads(file.read_text()) for file in sorted(results.glob("*.json"))}
    (HERE / "README.md").write_text(page({name: part["values"] for name, part in measured.items()}, machine))
    print((HERE / "README.md").read_text())


def page(found: dict[str, Results], machine: dict[str, object]) -> str:
    """The results as a page."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` (`python benchmarks/run.py noise-growth` for a part) on {machine['cores']} cores "
        f"({machine['machine']}, torch {machine['torch']}), one thread a party.",
        "",
        f"## Speed: tweets, batch {BATCH}, against a plain loop padded to 128 with torch's AdamW",
        "",
        "| what | times faster | lowest and highest of " + str(REPEATS) + " | rows a second | rows |",
        "|---|---|---|---|---|",
        *(
            f"| {what} | {v['ratio']:.2f} | {v['low']:.2f} - {v['high']:.2f} | {v['rows_per_s']:.0f} | {v['rows']} |"
            for what, v in found["speed"].items()
        ),
        "",
        "## Conversation: CPU time of a round in the local engine over that of plain method calls, in percent",
        "",
        "| what | percent more | lowest and highest of 5 | exchanges | CPU s a round |",
        "|---|---|---|---|---|",
        *(
            f"| {what} | {v['percent']:.1f} | {v['low']:.1f} to {v['high']:.1f} | {v['exchanges']} "
            f"| {v['round_s']:.1f} |"
            for what, v in found["conversation"].items()
        ),
        "",
        *noise.lines(found),
        "## Memory: a federation of 100 clients on tweets, two rounds, all processes together",
        "",
        "| what | peak GiB |",
        "|---|---|",
        *(f"| {what} | {v['peak_gib']:.2f} |" for what, v in found["memory"].items()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
