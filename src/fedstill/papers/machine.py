"""What a run was made with: the code's revision and the device, beside its record."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import torch

from fedstill.common.files import write_whole
from fedstill.common.version import VERSION
from fedstill.learning.precision import choose_device, choose_precision

FILE = "made-with.json"
ANSWER_S = 10


def note_machine(folder: Path, device: str, precision: str = "auto") -> None:
    """Write down what the run in this folder was made with; the precision where it is not the device's usual one."""
    usual = ("auto", choose_precision("auto", choose_device(device)))
    made = {"commit": revision(), "device": device_name(device) + ("" if precision in usual else f", {precision}")}
    write_whole(folder / FILE, (json.dumps(made, indent=1) + "\n").encode())


def machine_of(folder: Path) -> dict[str, str]:
    """What the run in this folder was made with, as far as it was written down."""
    unknown = {"commit": "of unknown revision", "device": "an unknown machine"}
    try:
        known: dict[str, str] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        known = {}
    return unknown | known


def revision() -> str:
    """The git revision of this code, marked where files differ from it; outside of a repository the version."""
    here = Path(__file__).resolve().parent
    commit = _git(here, "rev-parse", "--short=12", "HEAD")
    # A package inside somebody else's repository is not of that repository's revision.
    if not commit or not _git(here, "ls-files", "machine.py"):
        return VERSION
    return f"{commit}, changed" if _git(here, "status", "--porcelain", "--untracked-files=no", "..") else commit


def device_name(device: str) -> str:
    """The name of the GPU, or of the processor and how many cores of it there are."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return torch.cuda.get_device_name(chosen)
    return f"{os.cpu_count()} cores of {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
