"""The journal: the record's growing files, cut back to the last checkpoint when a run is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

KINDS = ("metrics", "ledger", "log")


class Journal:
    """Appends to `metrics.jsonl` and `ledger.jsonl`, equal for equal experiments, and `log.jsonl`, which is not."""

    def __init__(self, folder: Path) -> None:
        self.files = {kind: (folder / f"{kind}.jsonl").open("a", encoding="utf-8") for kind in KINDS}
        if fcntl is not None:
            try:
                fcntl.flock(self.files["log"], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                raise FedstillError(
                    f"{folder} is in use: another process runs in it. Wait for it, or end it."
                ) from error

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
        """Cut the files, except the log, to these lengths: the interrupted round is repeated."""
        for kind, file in self.files.items():
            if kind != "log":
                file.truncate(offsets.get(kind, 0))

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
