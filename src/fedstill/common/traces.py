"""Errors in code of the user's own: the lines of it that led to them, and the file where a run keeps everything."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from fedstill.common.errors import FedstillError

ERRORS = "errors.log"
"""The file of a run that has the whole tracebacks."""

_NOT_OWN = tuple(
    str(Path(folder).resolve())
    for folder in {
        *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    }
)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames that are neither fedstill's nor a library's."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not str(Path(frame.filename).resolve()).startswith(_NOT_OWN)
    ]


def in_words(error: BaseException) -> str:
    """An unexpected exception in words, with the line of the user's own code that led to it, or else the last one."""
    frames = own_frames(error) or list(traceback.extract_tb(error.__traceback__))
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}{where}: {error}{notes}"


def keep_trace(error: BaseException, run: Path, where: str) -> None:
    """Append the whole traceback of an unexpected error to the run's file, and say so in a note on the error."""
    if isinstance(error, FedstillError | OSError) or not isinstance(error, Exception):
        return
    lines = traceback.format_exception(error)
    with (run / ERRORS).open("a", encoding="utf-8") as file:
        file.write(f"{where}:\n{''.join(lines)}\n")
    error.add_note(f"the whole traceback is in {run / ERRORS}")
