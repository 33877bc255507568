"""Many runs on one GPU: how many at once, and NVIDIA's multi-process service for as long as they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedstill.common.units import bytes_of
from fedstill.config.experiment import Experiment
from fedstill.engines.processes import context
from fedstill.learning.precision import choose_device
from fedstill.papers.grid import GridRun
from fedstill.papers.work import models_of, size_of
from fedstill.plan.plan import default_workers

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL_PIPES = "/tmp/nvidia-mps"  # where the service looks if nobody says otherwise
ANSWER_S = 30

RUN_BYTES = 4 * 2**30
"""A process's context, captured graphs and activations; its models come on top."""
MODEL_BYTES = 32
"""Per multiplication per token: weights, gradients and two moments in fp32, and as many embeddings again."""


def on_card(runs: Sequence[GridRun]) -> bool:
    """Whether all these runs compute on a GPU."""
    return bool(runs) and all(choose_device(run.experiment.device).type == "cuda" for run in runs)


def fitting(runs: Sequence[GridRun]) -> int:
    """How many of these runs go side by side on the card of this machine."""
    workers = max(1 if run.experiment.workers == "auto" else run.experiment.workers for run in runs)
    size = max(bytes_of_run(run.experiment) for run in runs)
    return at_once(len(runs), default_workers() // workers, free_bytes(runs[0].experiment.device), size)


def at_once(runs: int, cores: int, free: int, each: int) -> int:
    """One per core, which keeps the card busy, as far as the card's free memory holds them; at least one."""
    return max(1, min(runs, cores, free // each))


def bytes_of_run(experiment: Experiment) -> int:
    """The card's memory that a run may need: the models that it keeps there, and everything else of a process."""
    models = MODEL_BYTES * sum(map(size_of, [*models_of(experiment), experiment.server]))
    return RUN_BYTES + int(min(models, bytes_of(experiment.memory.device) or models))


def free_bytes(device: str) -> int:
    """The free memory of a card, asked by a process of its own: whoever asks keeps some of it until it ends."""
    with context(["fedstill.papers.parallel"]).Pool(1) as pool:
        return int(pool.apply(_free, (device,)))


def _free(device: str) -> int:
    return torch.cuda.mem_get_info(choose_device(device))[0]


@contextmanager
def shared(say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """The variables by which runs find the multi-process service, which is started here and stopped at the end.

    Empty where the service is not installed, does not start, or runs already, when everybody finds it anyway.
    """
    if shutil.which(CONTROL) is None or _runs_already():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="fedstill-mps-", ignore_cleanup_errors=True) as folder:
        where = {PIPES: f"{folder}/pipes", LOGS: f"{folder}/logs"}
        for path in where.values():
            Path(path).mkdir()
        if (problem := _control(["-d"], where)) is not None:
            say(f"The runs share the card without NVIDIA's multi-process service, which did not start ({problem}).")
            yield {}
            return
        say("The runs share the card by NVIDIA's multi-process service (MPS), until they end.")
        try:
            yield where
        finally:
            _control([], where, "quit\n")


def _runs_already() -> bool:
    pid = Path(os.environ.get(PIPES, USUAL_PIPES)) / f"{CONTROL}.pid"
    try:
        os.kill(int(pid.read_text()), 0)
    except PermissionError:  # it is somebody else's, and alive
        return True
    except (OSError, ValueError):
        return False
    return True


def _control(words: Sequence[str], where: Mapping[str, str], typed: str = "") -> str | None:
    """Why the service's control did not do this, or None. In a session of its own: Ctrl-C is not for the service."""
    try:
        done = subprocess.run(
            [CONTROL, *words],
            env={**os.environ, **where},
            input=typed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=ANSWER_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return f"exit code {done.returncode}" if done.returncode else None
