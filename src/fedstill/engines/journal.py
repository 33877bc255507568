"""The journal: the record's growing files, cut back to the last checkpoint when a run is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.locks import lock

KINDS = ("metrics", "ledger", "log")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, and make it if need be; raises if another process holds it.

    A folder that is empty in the end is removed again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = os.open(folder, os.O_RDONLY) if os.name != "nt" else None  # Windows opens no folders
    try:
        if place is not None:
            _lock(place, folder)
        yield
    finally:
        if place is not None:
            os.close(place)
        with suppress(OSError):
            folder.rmdir()


def _lock(file: int, folder: Path) -> None:
    if not lock(file):
        raise FedstillError(f"{folder} is in use: another process runs in it. Wait for it, or end it.")


class Journal:
    """Appends to `metrics.jsonl` and `ledger.jsonl`, equal for equal experiments, and `log.jsonl`, which is not."""

    def __init__(self, folder: Path) -> None:
        self.files = {kind: (folder / f"{kind}.jsonl").open("a", encoding="utf-8") for kind in KINDS}
        try:
            _lock(self.files["log"].fileno(), folder)
        except FedstillError:
            self.close()
            raise

    def write(self, kind: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines of a kind."""
        for line in lines:
            self.files[kind].write(json.dumps(line) + "\n")
        self.files[kind].flush()

    def offsets(self) -> dict[str, int]:
        """The lengths of the files, after everything written is safely on disk."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        return {kind: os.fstat(file.fileno()).st_size for kind, file in self.files.items()}

    def cut(self, offsets: Mapping[str, int]) -> None:
        """Cut the files to these lengths, the log after its last whole line: the interrupted round is repeated."""
        lengths = {kind: offsets.get(kind, 0) for kind in self.files if kind != "log"}
        for kind, length in lengths.items():
            if (there := os.fstat(self.files[kind].fileno()).st_size) < length:
                raise FedstillError(
                    f"{self.files[kind].name} has {there:,} bytes, and had {length:,} at the checkpoint: its end is "
                    "lost. Restore it from a copy, or start again with --force."
                )
        lengths["log"] = Path(self.files["log"].name).read_bytes().rfind(b"\n") + 1
        for kind, length in lengths.items():
            self.files[kind].truncate(length)

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
