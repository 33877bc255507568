"""Checkpoints: at the end of a round, a manifest with checksums of files that never change; the last two are kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedstill.common.files import FileReference, write_whole

KEPT = 2
MOST_BYTES = 1 << 30
"""The largest checkpoint that a finished run keeps, for more rounds."""


@dataclass(frozen=True)
class Manifest:
    """What a run needs to go on after a round."""

    round: int
    parties: dict[str, FileReference]
    answer: dict[str, FileReference]
    """The last answer: under "" when it was one for all, else by client."""
    offsets: dict[str, int]
    bytes: dict[str, int]
    """Sent so far, up and down."""
    seconds: float
    experiment: dict[str, Any]
    corpus: str
    sizes: dict[str, int] = field(default_factory=dict)
    """n_k of every client, as it first gave it."""


def folder_of(run: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run / "checkpoint"


def write(run: Path, manifest: Manifest) -> None:
    """Write the manifest; then delete all but the last two, and every file that neither of these names."""
    body = asdict(manifest)
    text = json.dumps({"manifest": body, "sha256": _digest(body)}, indent=1)
    write_whole(folder_of(run) / f"round-{manifest.round:05d}.json", text.encode())
    _prune(run)


def latest(run: Path) -> tuple[Manifest | None, list[str]]:
    """The newest whole checkpoint, and a sentence for every newer one that was broken, which is deleted."""
    passed: list[str] = []
    for path in sorted(folder_of(run).glob("round-*.json"), reverse=True):
        manifest = _read(path)
        broken = ["its manifest"] if manifest is None else _broken_files(run, manifest)
        if manifest is not None and not broken:
            return manifest, passed
        passed.append(f"{path.name} is broken ({', '.join(broken)}): going back further.")
        path.unlink()
    return None, passed


def _broken_files(run: Path, manifest: Manifest) -> list[str]:
    references = {**manifest.parties, **manifest.answer}
    return [ref.file for ref in references.values() if ref.read(folder_of(run)) is None]


def _read(path: Path) -> Manifest | None:
    try:
        whole = json.loads(path.read_text())
        body = whole["manifest"]
        if whole["sha256"] != _digest(body):
            return None
        for name in ("parties", "answer"):
            body[name] = {key: FileReference(**value) for key, value in body[name].items()}
        return Manifest(**body)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _prune(run: Path, most: int = KEPT, spare_newer: bool = True) -> None:
    """Delete what no kept manifest names; newer files are of clients that have begun the next round already."""
    folder = folder_of(run)
    manifests = sorted(folder.glob("round-*.json"), reverse=True)
    for path in manifests[most:]:
        path.unlink()
    kept = [manifest for path in manifests[:most] if (manifest := _read(path)) is not None]
    wanted = {reference.file for m in kept for reference in (*m.parties.values(), *m.answer.values())}
    for path in (folder / "state").glob("*"):
        is_spared = spare_newer and bool(kept) and _round_of(path) > kept[0].round
        if str(path.relative_to(folder)) not in wanted and not is_spared:
            path.unlink(missing_ok=True)


def _round_of(path: Path) -> int:
    """The round in a file's name: `client.3.safetensors`, `answer-client.3`."""
    number = path.name.removesuffix(".safetensors").rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def settle(run: Path) -> None:
    """The run is finished: keep the last checkpoint, from which it can go on for more rounds, unless it is large."""
    _prune(run, most=1, spare_newer=False)
    for half_written in folder_of(run).glob(".writing-*"):
        half_written.unlink()
    if sum(path.stat().st_size for path in folder_of(run).rglob("*") if path.is_file()) > MOST_BYTES:
        clear(run)


def clear(run: Path) -> None:
    """Delete all checkpoints."""
    shutil.rmtree(folder_of(run), ignore_errors=True)
