"""The GPU's rows: a plain fp32 loop, transformers.Trainer and the fast path, on one card, taking turns.

    python benchmarks/gpu.py [REVIEWS.npz] [--out FILE]

Lengths and words are those of the Amazon reviews of AdaFD's benchmark (`python benchmarks/gpu.py --pack FOLDER` makes
the file from its csv files); weights are random, which does not change the time. Useful TFLOP/s: 6 x parameters that
are not embeddings x real tokens, a second.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstill.data.examples import Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings

BATCH, CLIENTS, TURNS = 32, 5, 5
MODELS = {"bert-base": (12, 768, 12), "minilm": (6, 384, 12), "bert-tiny": (2, 128, 2)}
"""Layers, width, heads."""


def pack(folder: Path, out: Path) -> None:
    """The reviews as tokens of the BERT vocabulary, cut to 128."""
    from fedstill.models.tokenizers import load_tokenizer

    rows = [
        (row["text"], int(row["label"]), domain)
        for domain, file in enumerate(sorted(folder.glob("*.csv")))
        for row in csv.DictReader(file.open(encoding="utf-8"))
    ]
    ids, offsets, _ = load_tokenizer("bert-tiny").encode([text for text, _, _ in rows], None, 128)
    labels, domains = (np.array([row[number] for row in rows]) for number in (1, 2))
    np.savez_compressed(out, ids=ids.astype(np.uint16), offsets=offsets, labels=labels, domains=domains)


def model(name: str, device: torch.device, seed: int = 0) -> nn.Module:
    """A classifier of that size with random weights."""
    from transformers import BertConfig, BertForSequenceClassification

    layers, width, heads = MODELS[name]
    torch.manual_seed(seed)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=3,
    )
    module: nn.Module = BertForSequenceClassification(config).to(device)
    accelerate(module, Fast())
    return module


def shares(file: Path, rows: int) -> list[Labelled]:
    """So many reviews for every client, each client from one domain while there are enough."""
    arrays = np.load(file)
    store = TokenStore(arrays["ids"].astype(np.int32), arrays["offsets"], None)
    random = np.random.default_rng(0)
    by_domain = [random.permutation(np.flatnonzero(arrays["domains"] == d)) for d in range(arrays["domains"].max() + 1)]
    found = []
    for client in range(CLIENTS):
        own = by_domain[client % len(by_domain)]
        part = np.sort(own[rows * (client // len(by_domain)) :][:rows])
        found.append(Labelled(store, part, torch.from_numpy(arrays["labels"][part])))
    return found


def plain(module: nn.Module, data: Labelled, steps: int, device: torch.device) -> int:
    """The papers' kind of loop: padded to 128, fp32, torch's AdamW; the tokens that it learnt from."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=2e-5)
    module.train()
    tokens = 0
    for rows in torch.split(torch.randperm(len(data)), BATCH)[:steps]:
        tokens += int(data.lengths[rows.numpy()].sum())
        batch = data.batch(rows, torch.device("cpu"))
        width = 128 - batch["input_ids"].shape[1]
        padded = {key: nn.functional.pad(value, (0, width)).to(device) for key, value in batch.items()}
        loss = module(**padded, labels=data.labels[rows].to(device)).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return tokens


def jobs(modules: list[nn.Module], data: list[Labelled], epochs: int) -> list[Any]:
    """Our phases."""
    from fedstill.learning.fast.gpu.schedule import Job

    found = []
    for module, own in zip(modules, data, strict=True):
        phase = Phase(module, own, PhaseSettings(epochs=epochs, batch=BATCH), 2e-5, 0, "bf16")
        found.append(Job(phase, own.labels, ce))
    return found


def ours(modules: list[nn.Module], data: list[Labelled], epochs: int, width: int) -> float:
    """Seconds of a phase of all clients, in stacks of so many; stacks side by side."""
    from fedstill.learning.fast.gpu import together

    return timed(lambda: together.run_all(jobs(modules, data, epochs), width))


def timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def with_trainer(module: nn.Module, data: Labelled, steps: int) -> float:
    """Seconds of transformers' Trainer, bf16, batches padded to their longest."""
    from transformers import Trainer, TrainingArguments

    rows = [
        {"input_ids": data.store.ids[a:b].tolist(), "labels": int(label)}  # type: ignore[attr-defined]
        for a, b, label in zip(
            data.store.offsets[data.rows],  # type: ignore[attr-defined]
            data.store.offsets[data.rows + 1],  # type: ignore[attr-defined]
            data.labels,
            strict=True,
        )
    ][: steps * BATCH]

    def collate(given: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in given)
        ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in given])
        mask = torch.tensor([[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in given])
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in given])}

    arguments = TrainingArguments(
        output_dir="/tmp/trainer", per_device_train_batch_size=BATCH, num_train_epochs=1, bf16=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, learning_rate=2e-5,
    )  # fmt: skip
    for _ in range(2):  # the first warms up
        trainer = Trainer(module, arguments, train_dataset=rows, data_collator=collate)  # type: ignore[arg-type]
        seconds = timed(trainer.train)
    return seconds


def profile(modules: list[nn.Module], data: list[Labelled]) -> dict[str, float]:
    """Milliseconds of a stacked step by kind of work; gaps are what is left of the step's wall time."""
    from fedstill.learning.fast.gpu import together

    run = together.make_run(jobs(modules, data, 1))
    steps = range(4, min(run.steps - 1, 24))
    with torch.no_grad():
        run.begin()
        for step in range(4):
            run.take(step)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for step in steps:
            run.take(step)
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
        run.ints.clear()  # the same steps once more
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for step in steps:
                run.take(step)
            torch.cuda.synchronize()
        run.end()
    found = dict.fromkeys(("products", "attention", "optimiser", "pointwise", "embedding"), 0.0)
    slowest: dict[str, float] = {}
    for event in seen.key_averages():
        micro = event.self_device_time_total
        slowest[event.key] = micro / 1e3 / len(steps)
        found[kind_of(event.key)] += micro / 1e3 / len(steps)
    print("   ", {name[:60]: round(ms, 3) for name, ms in sorted(slowest.items(), key=lambda x: -x[1])[:22]})
    step_ms = 1e3 * wall / len(steps)
    return found | {"gaps": step_ms - sum(found.values()), "step": step_ms}


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    if any(word in name for word in ("gemm", "nvjet", "cutlass", "xmma", "splitk", "cublas")):
        return "products"
    if name.startswith(("_forward", "_backward")):
        return "attention"
    if "adamw" in name:
        return "optimiser"
    if any(word in name for word in ("embedding", "sort", "segment", "index")):
        return "embedding"
    return "pointwise"


def measure(name: str, data: list[Labelled], device: torch.device) -> dict[str, Any]:
    """Everything about one model."""
    from fedstill.learning.fast.gpu import stack as gpu

    modules = [model(name, device, seed) for seed in range(CLIENTS)]
    alone = model(name, device)
    useful = 6 * sum(p.numel() for n, p in alone.named_parameters() if "embeddings" not in n)
    steps = 20 if name == "bert-base" else 40
    epochs = 2
    tokens = [epochs * int(own.lengths.sum()) for own in data]
    before = gpu.COSTS.graphs, gpu.COSTS.seconds
    works = {
        "one": lambda: tokens[0] / ours(modules[:1], data[:1], epochs, 1),
        "five, stacked": lambda: sum(tokens) / ours(modules, data, epochs, CLIENTS),
        "five, streams": lambda: sum(tokens) / ours(modules, data, epochs, 1),
    }
    for kind, work in works.items():
        print(f"    {name}, {kind}, first time: {work():.0f}, {gpu.COSTS}", flush=True)
    costs = {"graphs": gpu.COSTS.graphs - before[0], "seconds": gpu.COSTS.seconds - before[1]}
    speeds: dict[str, list[float]] = {kind: [] for kind in ("plain", *works)}
    for turn in range(TURNS + 1):
        started = time.perf_counter()
        learnt = plain(alone, data[0], steps, device)
        torch.cuda.synchronize()
        found = {"plain": learnt / (time.perf_counter() - started)} | {kind: work() for kind, work in works.items()}
        print("   ", {kind: round(speed) for kind, speed in found.items()}, flush=True)
        if turn:  # the first warms up
            for kind, speed in found.items():
                speeds[kind].append(speed)
    result: dict[str, Any] = {"capture": costs}
    for kind, values in speeds.items():
        ratios = [own / other for own, other in zip(values, speeds["plain"], strict=True)]
        result[kind] = {
            "tokens_per_s": statistics.median(values), "tflops": statistics.median(values) * useful / 1e12,
            "ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios),
        }  # fmt: skip
    result["profile, five"] = profile(modules, data)
    result["profile, one"] = profile(modules[:1], data[:1])
    try:
        seconds = with_trainer(alone, data[0], steps)
        result["trainer"] = {"tokens_per_s": int(data[0].lengths[: steps * BATCH].sum()) / seconds}
    except ImportError as error:
        print("    no Trainer here:", error)
    result["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reviews", type=Path, nargs="?", default=Path("reviews.npz"))
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.pack, arguments.reviews)
        return
    device = torch.device("cuda")
    data = shares(arguments.reviews, 1600)
    values: dict[str, Any] = {}
    for name in arguments.models.split(","):
        values[name] = measure(name, data, device)
        print(name, json.dumps(values[name], indent=1), flush=True)
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        arguments.out.write_text(json.dumps({"machine": machine, "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
