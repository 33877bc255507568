"""What several commands share: consoles, options, reading an experiment, and what an interruption says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.common.trust import trusts_all

console = Console()
errors = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables; all else goes to standard error.")]


class Stopped(Exception):
    """The user interrupted the command; the message says how to go on."""


def experiment_source(experiment: Path, overrides: list[str]) -> Any:
    """An experiment file or recipe with overrides; a table is an error."""
    from fedstill.papers.recipe import is_grid

    source = read_source(experiment)
    if is_grid(source.values):
        raise FedstillError(f"{experiment} is a table of many experiments: use `fedstill reproduce {experiment}`.")
    source.override(overrides)
    if isinstance(engine := source.values.get("engine"), str):
        from fedstill.engines.table import check_name

        try:
            check_name(engine)
        except FedstillError as error:
            raise FedstillError(f"{source.place(['engine'])}: {error}") from error
    return source


def read_source(path: Path) -> Any:
    """A file, or a recipe by its name."""
    from fedstill.common.plugins import nearest
    from fedstill.config.source import Source
    from fedstill.papers.recipe import recipe_files, recipe_path

    found = path if path.is_file() else recipe_path(path.as_posix())
    if found is None and path.suffix not in (".yaml", ".yml"):
        raise FedstillError(f"there is no file or recipe {str(path)!r}; {nearest(path.as_posix(), recipe_files())}")
    return Source.read(found or path)


def load_workers_early(path: Path, overrides: list[str]) -> None:
    """Have the processes that workers come from load while this one does, if the run is likely to have workers.

    Both load for seconds, and a run's first batch waits for both. What is wrong with the file is said later.
    """
    from fedstill.engines import processes

    if "TORCHELASTIC_RUN_ID" in os.environ or Path("/dev/nvidiactl").exists():
        return  # ranks host the clients, or one process that has a GPU
    try:
        source = read_source(path)
        source.override(overrides)
    except (FedstillError, OSError):
        return
    keys = source.values
    if keys.get("workers", "auto") != 1 and keys.get("engine", "local") == "local" and (os.cpu_count() or 1) > 1:
        processes.context(processes.WORKERS)


@contextmanager
def saying_how_to_go_on(folder: Path, again: str) -> Iterator[None]:
    """Turn an interruption, or the loss of a rank, into an error with the command that continues the run."""
    from fedstill.engines import ranks
    from fedstill.engines.stopping import stopping_on_sigterm

    if trusts_all() and "--resume" in again:
        again = f"{again} --trust-code"
    try:
        with stopping_on_sigterm(for_good=True):
            yield
    except (KeyboardInterrupt, ranks.LostRank) as stop:
        begun = (folder / "experiment.yaml").exists()
        if (lost := stop if isinstance(stop, ranks.LostRank) else ranks.loss()) is not None:
            raise FedstillError(
                f"{lost} The last checkpoint is whole; go on with: {again}" if begun else str(lost)
            ) from stop
        raise Stopped(f"Go on with: {again}" if begun else "Nothing was written yet.") from stop
