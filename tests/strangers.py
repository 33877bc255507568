"""Files as another user of the machine finds them, also where the tests are run by root, who may read everything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def common_folder() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Inside, this process may not read the file."""
    me, mode = os.geteuid(), path.stat().st_mode
    path.chmod(0)
    os.seteuid(NOBODY if me == 0 else me)
    try:
        yield
    finally:
        os.seteuid(me)
        path.chmod(mode)
