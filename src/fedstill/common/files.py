"""Files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

LONGEST_NAME = 120
MODELS = "models"
"""The folder of a run that holds the parties' models."""


@dataclass(frozen=True)
class FileReference:
    """A file that must not have changed since it was written."""

    file: str
    sha256: str

    @classmethod
    def write(cls, folder: Path, file: str, data: bytes) -> FileReference:
        """Write the file below the folder; a reference to it."""
        write_whole(folder / file, data)
        return cls(file, hashlib.sha256(data).hexdigest())

    def read(self, folder: Path) -> bytes | None:
        """Its content, or None when it is missing or has changed."""
        try:
            data = (folder / self.file).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == self.sha256 else None


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file in one step; on any failure the old file stays and no temporary file is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as scratch, scratch.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of another one at the end, unless anything fails."""
    scratch = path.with_name(f".writing-{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        yield scratch
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def file_name(name: str) -> str:
    """A party's name as a file name: readable, never a path, and different for different names."""
    quoted = quote(name, safe=" &()+,;=@")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > LONGEST_NAME:
        quoted = f"{quoted[: LONGEST_NAME - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return quoted or "%"
