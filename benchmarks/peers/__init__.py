"""Other frameworks on the same work: a short script each, in processes of their own, taking turns with fedstill.

Everybody has the same rows as tokens, the same model, batches, epochs and public rows, and one torch thread for each
client that computes. A round's seconds are those between the ends of two rounds, of all processes of a peer together;
the first round is not counted. The first batch is counted from the start of the process.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plain
import torch
from clients import family_of, memory_of, work_of

from fedstill.common.events import tell_nobody
from fedstill.config.experiment import Experiment
from fedstill.data.examples import Examples
from fedstill.models import build
from fedstill.plan.prepare import prepare

HERE = Path(__file__).parent
CLIENTS, EPOCHS, RATE = 4, 1, 1e-4
CORES = os.cpu_count() or 1
LOOK_S = 0.3
LONGEST_S = 600.0


@dataclass(frozen=True)
class Work:
    """How much of it: rows of each of the five domains, rounds, and turns."""

    rows: int
    rounds: int
    turns: int


WORKS = {"bert-tiny": Work(160, 3, 2), "minilm": Work(24, 2, 1)}


@dataclass(frozen=True)
class Peer:
    """A script, the method that it does, and what pip installs for it."""

    script: str
    method: str
    at_once: str
    """How many clients compute at the same time, and where."""
    needs: tuple[str, ...] = ()


OURS = {
    f"{name}, {method}": Peer("with_fedstill.py", method, "a process a core")
    for name in ("fedstill", "fedstill, a checkpoint every round")
    for method in ("DS-FL", "FedAvg")
}
"""Nobody else writes checkpoints: ours is also measured without, except for the last round, which is not counted."""
PEERS = {
    "BlazeFL 2.0.3": Peer(
        "with_blazefl.py", "DS-FL", "a thread a core", ("blazefl==2.0.3", "--ignore-requires-python")
    ),
    "transformers.Trainer": Peer("with_trainer.py", "DS-FL", "one"),
    "the authors' shape of loop": Peer("with_authors_loop.py", "DS-FL", "one"),
    "pfl-research 0.6.0": Peer("with_pfl.py", "FedAvg", "one", ("pfl==0.6.0",)),
    "Flower 1.41.0": Peer("with_flower.py", "FedAvg", "a process a client", ("flwr==1.41.0",)),
}
NOT_HERE = {
    "Flower's simulation": "its only backend is Ray, which looks for addresses outside of the machine; the server and "
    "the clients of its gRPC interface, on loopback, stand in for it",
    "FedML 0.9.6": "it installs, but the torchvision that it brings does not load beside torch's build for CPUs, and "
    "parts of it ask time servers and its makers' services",
    "HtFLlib": "it is not on PyPI",
}
"""Why there is no script of them."""

SHARED = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "huggingface_hub")
"""What a peer must take as it is here; of everything else it may have its own version."""


@dataclass
class Seen:
    """What was seen of a process and its children: the seconds at the ends of rounds, by the clock and of the CPU."""

    first_batch_s: float | None = None
    ends: list[tuple[float, float]] = field(default_factory=list)
    peak: int = 0

    def rounds(self) -> list[tuple[float, float]]:
        """Seconds of every round but the first: clock, CPU."""
        pairs = zip(self.ends, self.ends[1:], strict=False)
        return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs]


def measure() -> dict[str, Any]:
    """All that can be installed, on all works."""
    with tempfile.TemporaryDirectory() as scratch:
        pythons, left_out = install(Path(scratch))
        found: dict[str, Any] = {"left out": left_out}
        for model, work in WORKS.items():
            folder = Path(scratch) / model
            about = write_task(folder, model, work)
            seen: dict[str, list[Seen]] = {}
            for _ in range(work.turns):
                for name, peer in (OURS | PEERS).items():
                    if name in left_out:
                        continue
                    try:
                        seen.setdefault(name, []).append(
                            watch(name, peer, pythons.get(name, sys.executable), folder, work)
                        )
                    except ChildProcessError as error:
                        left_out[name] = str(error)
                    print(f"{model}, {name}: {seen.get(name, ['left out'])[-1]}", file=sys.stderr, flush=True)
            found[model] = {"rows": about, "ways": summary(seen)}
    return found


def install(scratch: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The Python of each peer that pip can install beside what is here, and why there is none of the others."""
    pins = (HERE.parents[1] / "constraints.txt").read_text().splitlines()
    limits = scratch / "constraints.txt"
    limits.write_text("\n".join(pin for pin in pins if pin.partition("==")[0] in SHARED))
    pythons, left_out = {}, {}
    for name, peer in PEERS.items():
        if not peer.needs:
            continue
        home = scratch / f"venv-{name}"
        venv.create(home, with_pip=True)
        (inside,) = home.glob("lib/python*/site-packages")
        (inside / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
        python = str(home / "bin" / "python")
        command = [python, "-m", "pip", "install", "--quiet", "--constraint", str(limits), *peer.needs]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            left_out[name] = f"pip cannot install {peer.needs[0]} here: {(errors or ['?'])[0]}"
        else:
            pythons[name] = python
    return pythons, left_out


def write_task(folder: Path, model: str, work: Work) -> dict[str, int]:
    """What the scripts read: experiments for ours; the model, tokens and numbers for the others. How many rows."""
    folder.mkdir()
    values = {
        "corpus": "tweets",
        "partition": {
            "kind": "iid", "clients": CLIENTS, "public": 0.2, "validation": 0, "test": 0.1,
            "rows_per_domain": work.rows,
        },
        "clients": model, "server": model, "device": "cpu", "report_to": [],
        "train": {
            "epochs": EPOCHS, "batch": plain.BATCH, "max_length": plain.WIDTH, "rate": RATE, "schedule": "constant",
        },
    }  # fmt: skip
    for name, peer in OURS.items():
        own = values | {"algorithm": peer.method.replace("-", ""), "blend": "mean"}
        own |= {"rounds": work.rounds + 1, "save_every": 1 if "checkpoint" in name else work.rounds + 1}
        (folder / f"{name}.yaml").write_text(json.dumps(own))
    plan = prepare(Experiment.model_validate(values | {"algorithm": "DSFL"}), folder / "plan")[1]
    build(plan.server.model, plan.labels, plan.default_tokenizer, 0).module.save_pretrained(folder / "model")
    parties = [plan.make_client(name, tell_nobody).data for name in plan.clients]
    test, public = parties[0].evaluation, parties[0].public
    assert test is not None
    assert public is not None
    rows = {
        "clients": [(tokens(own.train), own.train.labels) for own in parties],
        "public": tokens(public),
        "test": (tokens(test.data), test.data.labels),
    }
    torch.save(rows, folder / "rows.pt")
    settings = {
        "rounds": work.rounds, "epochs": EPOCHS, "batch": plain.BATCH, "rate": RATE, "cores": CORES,
        "max_length": plain.WIDTH, "pad": public.store.pad_id, "port": free_port(),
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(settings))
    return {"private": sum(len(own.train) for own in parties), "public": len(public), "test": len(test.data)}


def tokens(data: Examples) -> list[torch.Tensor]:
    """Every text's own."""
    batch = data.batch(torch.arange(len(data)), torch.device("cpu"))
    return [row[mask.bool()].clone() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def free_port() -> int:
    """One on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def watch(name: str, peer: Peer, python: str, folder: Path, work: Work) -> Seen:
    """Run a script to its end and see how it goes."""
    calm = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    command = [python, str(HERE / peer.script), str(folder), name]
    with (folder / "errors").open("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | calm)
        seen = Seen()
        listening = threading.Thread(target=listen, args=(process, started, seen), daemon=True)
        listening.start()
        while process.poll() is None:
            seen.peak = max(seen.peak, memory_of(family_of(process.pid)))
            time.sleep(LOOK_S)
            if time.perf_counter() - started > LONGEST_S:
                for member in family_of(process.pid):
                    os.kill(member, 9)
        listening.join()
        if process.returncode or len(seen.ends) < work.rounds:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:]
            raise ChildProcessError(f"it ended with {process.returncode} after {len(seen.ends)} rounds: {last}")
    del seen.ends[work.rounds :]
    return seen


def listen(process: subprocess.Popen[str], started: float, seen: Seen) -> None:
    """Note when a script says that a batch or a round is done."""
    assert process.stdout is not None
    for line in process.stdout:
        now = time.perf_counter() - started
        if line.strip() == "batch" and seen.first_batch_s is None:
            seen.first_batch_s = now
        elif line.strip() == "round":
            seen.ends.append((now, work_of(family_of(process.pid))))


def summary(seen: Mapping[str, list[Seen]]) -> dict[str, dict[str, Any]]:
    """Medians over all turns, and how many times as fast ours is at the same method."""
    ways: dict[str, dict[str, Any]] = {}
    for name, runs in seen.items():
        rounds = [pair for run in runs for pair in run.rounds()]
        ways[name] = {
            "method": (OURS | PEERS)[name].method,
            "round_s": statistics.median(clock for clock, _ in rounds),
            "round_cpu_s": statistics.median(cpu for _, cpu in rounds),
            "first_batch_s": statistics.median(run.first_batch_s for run in runs if run.first_batch_s is not None),
            "peak_gib": max(run.peak for run in runs) / 2**30,
        }
    for own in ways.values():
        ours = ways[f"fedstill, {own['method']}"]
        own |= {
            key: own[f"round_{unit}s"] / ours[f"round_{unit}s"] for key, unit in (("ratio", ""), ("cpu_ratio", "cpu_"))
        }
    return ways


def lines(found: Mapping[str, Any]) -> list[str]:
    """The tables, and who is not in them."""
    left_out = found.get("left out", {}) | NOT_HERE
    measured = {model: found[model] for model in WORKS if model in found}
    rows = [
        f"| {model} | {own['method']} | {name.removesuffix(', ' + own['method'])} "
        f"| {own['cpu_ratio']:.1f} | {own['ratio']:.1f} | {own['round_cpu_s']:.2f} | {own['round_s']:.2f} "
        f"| {own['first_batch_s']:.1f} | {own['peak_gib']:.2f} | {(OURS | PEERS)[name].at_once} |"
        for model, part in measured.items()
        for name, own in sorted(part["ways"].items(), key=lambda item: (item[1]["method"], item[1]["cpu_ratio"]))
    ]
    return [
        "| model | method | who | times our CPU seconds | times our clock | CPU s a round | clock s a round "
        "| first batch s | peak GiB | clients at once |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        *(f"- Left out: {name}: {why}." for name, why in left_out.items()),
        "",
    ]
