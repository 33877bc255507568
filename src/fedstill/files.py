"""Writing so that a file is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True)
class FileReference:
    """A file that must not have changed since it was written."""

    file: str
    sha256: str

    @classmethod
    def write(cls, folder: Path, file: str, data: bytes) -> FileReference:
        """Write the file below the folder and refer to it."""
        write_whole(folder / file, data)
        return cls(file, hashlib.sha256(data).hexdigest())

    def read(self, folder: Path) -> bytes | None:
        """Its content, or None when it is gone or not what was written."""
        try:
            data = (folder / self.file).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == self.sha256 else None


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file in one step; on any failure the old one stays and nothing is left over."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def file_name(name: str) -> str:
    """A party's name as a file name: readable where it can be, never a path."""
    return quote(name, safe=" &()+,;=@").replace(" ", "_").lstrip(".") or "_"
