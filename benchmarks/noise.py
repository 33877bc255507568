"""FedSND's round by part and number of clients, and what taking models together or channels last are worth."""

from __future__ import annotations

import json
import statistics
import struct
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedstill
from fedstill.config.experiment import Experiment
from fedstill.data.corpora import images
from fedstill.learning.noise import Batch, Descent, make_sure
from fedstill.models.images import LeNet, SmallCNN
from fedstill.models.small import TextCNN

ROWS, REPEATS, MODELS, STEPS = 100, 5, 20, 5

MACHINES = {"CPU": "", "H200": "-h200"}
"""Where results come from, and how their files end."""


def write_images(folder: Path, many: int) -> None:
    """Shifted copies of scikit-learn's digits in FashionMNIST's format, as many as a hundred clients need."""
    digits = images.load("digits", None, 28)
    assert digits.images is not None
    random = np.random.default_rng(0)
    for name, count in (("train", many), ("t10k", 500)):
        chosen = random.integers(len(digits), size=count)
        shifts = random.integers(-2, 3, size=(count, 2))
        pixels = np.stack(
            [
                np.roll(digits.images.pixels[row, 0], tuple(shift), (0, 1))
                for row, shift in zip(chosen, shifts, strict=True)
            ]
        )
        labels = digits.labels[chosen].astype(np.uint8)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())


def rounds_of(clients: int, folder: Path, device: str) -> dict[str, float]:
    """Median seconds of a round by part: a fifth of the clients active, LeNet, 100 rows a client, ten epochs."""
    experiment = Experiment.model_validate(
        {
            "name": f"noise-{clients}",
            "corpus": {"name": "fashion-mnist", "path": str(folder)},
            "partition": {
                "kind": "iid", "clients": clients, "public": 0, "validation": 0, "rows_per_domain": ROWS * clients,
            },
            "clients": "lenet",
            "server": "lenet",
            "algorithm": "FedSND",
            "train": {
                "epochs": 10, "batch": 64, "rate": 0.01, "optimiser": "sgd", "momentum": 0.9, "schedule": "constant",
            },
            "participation": 0.2,
            "rounds": 3,
            "client_tests": "own",
            "device": device,
            "workers": 1 if device == "cuda" else "auto",
        }
    )  # fmt: skip
    record = fedstill.run(experiment, folder / f"run-{clients}")
    lines = [json.loads(line) for line in (record.folder / "log.jsonl").read_text().splitlines()]
    parts = [line["seconds"] for line in lines if "noise" in line.get("seconds", ())]  # the end has no noise
    return {part: statistics.median(each[part] for each in parts) for part in parts[0]}


def growth(device: str = "cpu") -> dict[str, dict[str, float]]:
    """Seconds of a round by part, from 10 to 100 clients."""
    with tempfile.TemporaryDirectory() as scratch:
        write_images(Path(scratch), 100 * ROWS)
        return {f"{clients} clients": rounds_of(clients, Path(scratch), device) for clients in (10, 20, 50, 100)}


def ratios(device: str = "cpu") -> dict[str, dict[str, float]]:
    """How many times as fast noise is made with twenty models together, and with channels last, taking turns."""
    cases: dict[str, tuple[nn.Module, str, tuple[int, ...]]] = {
        "lenet": (LeNet(1, 28, 10), "pixels", (1, 28, 28)),
        "cnn": (SmallCNN(1, 28, 10), "pixels", (1, 28, 28)),
        "textcnn": (TextCNN(1000, 4, 0), "inputs_embeds", (64, 128)),
    }
    torch.set_num_threads(1)
    found = {}
    for name, (module, argument, shape) in cases.items():
        plain = module.eval().requires_grad_(False).to(device)
        last = deepcopy(plain)
        if argument == "pixels":
            last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        batches = [Batch(plain.state_dict(), torch.randn(64, *shape, device=device)) for _ in range(MODELS)]
        how = Descent(target=1e-9, steps=STEPS, together=MODELS)
        ways = {"one by one": (last, False), "together": (plain, True)}
        if argument == "pixels":
            ways["contiguous"] = (plain, False)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(REPEATS + 1):
            for way, (model, stacked) in ways.items():
                seconds[way].append(_seconds(model, argument, batches, how, stacked, device))
        for way in ways:
            if way != "one by one":
                each = [base / other for base, other in zip(seconds["one by one"], seconds[way], strict=True)][1:]
                found[f"{name}, {way}"] = {
                    "times": statistics.median(each),
                    "low": min(each),
                    "high": max(each),
                }
    return found


def _seconds(module: nn.Module, name: str, batches: list[Batch], how: Descent, stacked: bool, device: str) -> float:
    """CPU seconds on a CPU, where other processes do not count; wall seconds on a GPU."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    started = clock()
    make_sure(module, name, batches, how, stacked)
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - started


def lines(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """FedSND's part of the page: what was measured here, and beside it on a GPU (`python benchmarks/noise.py cuda`)."""
    ratios_by = {where: found.get(f"noise-ratios{end}", {}) for where, end in MACHINES.items()}
    growth_by = {where: found.get(f"noise-growth{end}", {}) for where, end in MACHINES.items()}
    parts = ("clients", "noise", "distillation", "averaging", "measuring")
    return [
        "## Noise for 20 models: times as fast as one model after the other, channels last",
        "",
        f"| what | {' | '.join(f'{where} (lowest and highest of {REPEATS})' for where in MACHINES)} |",
        "|---|---|---|",
        *(
            f"| {what} | {' | '.join(_ratio(ratios_by[where].get(what)) for where in MACHINES)} |"
            for what in ratios_by["CPU"]
        ),
        "",
        "Together is used on a GPU only. Channels last is used everywhere.",
        "",
        f"## FedSND: seconds of a round, LeNet, {ROWS} images a client, 10 epochs, a fifth of the clients active",
        "",
        f"| machine | clients | {' | '.join(parts).replace('clients', 'waiting for clients')} |",
        "|---|---|" + "---|" * len(parts),
        *(
            f"| {where} | {clients.removesuffix(' clients')} | {' | '.join(f'{v[part]:.2f}' for part in parts)} |"
            for where in MACHINES
            for clients, v in growth_by[where].items()
        ),
        "",
        "Clients train in two workers on the CPU and one process on the GPU. Every run's `log.jsonl` has these.",
        "",
    ]


def _ratio(values: dict[str, float] | None) -> str:
    return "" if values is None else f"{values['times']:.2f} ({values['low']:.2f} - {values['high']:.2f})"


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    sys.stdout.write(json.dumps({"ratios": ratios(chosen), "growth": growth(chosen)}, indent=1) + "\n")
