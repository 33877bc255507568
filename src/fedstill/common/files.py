"""Files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError

from fedstill.common.errors import FedstillError

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
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(scratch)):
            error.filename = str(path)  # nobody knows the other name
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def follow_umask(files: Iterable[Path]) -> None:
    """Give files the mode of any new file beside them: safetensors 0.8 lets only the owner read its files."""
    for path in files:
        probe = path.with_name(f".mode-{os.getpid()}-{threading.get_ident()}")
        try:
            probe.touch()  # the umask itself can be read only by changing it, for all threads
            mode = stat.S_IMODE(probe.stat().st_mode)
        finally:
            probe.unlink(missing_ok=True)
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)


def refuse_unreadable(files: Iterable[Path]) -> None:
    """Raise an error for a file that is there and cannot be opened: safetensors says that there is none."""
    for path in files:
        try:
            path.open("rb").close()
        except OSError as error:
            allow = f"; its owner can let others read it: chmod a+r {shlex.quote(str(path))}"
            hint = allow if isinstance(error, PermissionError) else ""
            raise FedstillError(f"{path} cannot be read ({error.strerror}){hint}.") from error


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Say in a sentence that the file of arrays, or one in the folder, was cut short or changed."""
    try:
        yield
    except SafetensorError as error:
        raise FedstillError(
            f"{path} is damaged ({error}): restore it from a copy, or run again with --force."
        ) from error


def unusable(error: OSError, place: str | Path = "a file") -> str:
    """A sentence: which file cannot be used, and why."""
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    return f"{error.filename or place} cannot be used ({reason})."


def file_name(name: str) -> str:
    """A party's name as a file name: readable, never a path, and different for different names."""
    quoted = quote(name, safe=" &()+,;=@")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > LONGEST_NAME:
        quoted = f"{quoted[: LONGEST_NAME - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return quoted or "%"
