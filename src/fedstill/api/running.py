"""Running an experiment from a program: as the command line does it, with the same lines about its progress."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console

from fedstill.common.events import Tell, tell_nobody
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.engines import runner
from fedstill.engines.processes import leave_if_unguarded
from fedstill.results.progress import Progress
from fedstill.results.record import Record

Folder = str | os.PathLike[str]


def run(
    experiment: Experiment | Folder,
    out: Folder | None = None,
    force: bool = False,
    tell: Tell | None = None,
    *,
    progress: bool = True,
) -> Record:
    """Run an experiment, or the file of one, into a folder (default: `runs/<name>/seed-<n>`); returns its record.

    Progress goes to standard error, as lines or on a terminal as a live table; `progress=False`: none. A `tell` of your
    own receives the events instead. `force` replaces a run that is there already.

    >>> record = fedstill.run(fedstill.Experiment(corpus=frame, clients="bow", rounds=2))
    >>> record.f1("server")
    0.81
    """
    chosen = experiment if isinstance(experiment, Experiment) else load_experiment(os.fspath(experiment))
    where = None if out is None else os.fspath(out)
    return _shown(lambda heard: runner.run(chosen, where, force, heard), tell, progress)


def resume(folder: Folder, tell: Tell | None = None, rounds: int | None = None, *, progress: bool = True) -> Record:
    """Go on with an interrupted run; the results are the same as without the interruption.

    `rounds` is how many there are to be in all, if that is more than before; the run may then be finished.

    >>> fedstill.resume("runs/shops/seed-0").is_finished
    True
    """
    return _shown(lambda heard: runner.resume(os.fspath(folder), heard, rounds), tell, progress)


def _shown(work: Callable[[Tell], Record], tell: Tell | None, progress: bool) -> Record:
    leave_if_unguarded()
    if tell is not None or not progress:
        return work(tell or tell_nobody)
    with Progress(Console(stderr=True)) as shown:
        return work(shown)
