"""Runs an experiment from the beginning, or continues one that was interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from fedstill.common.errors import FedstillError
from fedstill.common.events import Begun, Finished, Noted, Preparing, Tell, tell_nobody
from fedstill.common.files import write_whole
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.engines import checkpoint, ranks, torchrun
from fedstill.engines.books import Books
from fedstill.engines.checkpoint import Manifest
from fedstill.engines.conductor import Conductor
from fedstill.engines.journal import Journal, held
from fedstill.engines.ranks import Place
from fedstill.engines.table import MakeEngine, maker_of, ranks_at_work
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import changed_keys, prepare
from fedstill.results.record import Record, about, write_summary
from fedstill.results.report_to import Reporter, chosen
from fedstill.wire.messages import SERVER


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    force: bool = False,
    tell: Tell = tell_nobody,
) -> Record:
    """Run an experiment into a folder (`runs/<name>/seed-<n>` unless given) and return its record."""
    folder = Path(out) if out is not None else Path("runs") / experiment.name / f"seed-{experiment.seed}"
    make = maker_of(experiment.engine)
    chosen(experiment.report_to)  # what is not installed is known before the corpus is read
    _make_room(folder, force, experiment)
    tell(Preparing(str(folder)))
    with stopping_on_sigterm(), _explaining(folder), held(folder):
        experiment, plan, corpus = prepare(experiment, folder.resolve())
        write_whole(folder / "partition.safetensors", save(plan.partition.to_arrays()))
        write_whole(
            folder / "experiment.yaml", experiment.to_yaml().encode()
        )  # last: a folder with this file holds a run
        tell(begun(plan, None, _hosts(plan), corpus.counts))
        return conduct(plan, folder, tell, None, make)


def resume(folder: str | Path, tell: Tell = tell_nobody) -> Record:
    """Go on with an interrupted run; the results are the same as without the interruption."""
    folder = Path(folder)
    if not (folder / "experiment.yaml").exists():
        raise FedstillError(f"{folder} holds no run to go on with: there is no experiment.yaml in it.")
    if Record(folder).is_finished:
        checkpoint.clear(folder)  # a kill after the last line of a run leaves it behind
        raise FedstillError(f"{folder} is finished; look at it with: fedstill compare {folder}")
    tell(Preparing(str(folder)))
    experiment = load_experiment(folder / "experiment.yaml")
    make = maker_of(experiment.engine, folder)
    chosen(experiment.report_to)
    with stopping_on_sigterm(), _explaining(folder), held(folder):
        experiment, plan, corpus = prepare(experiment, folder.resolve())
        manifest, passed = checkpoint.latest(folder)
        for sentence in passed:
            tell(Noted(sentence))
        if manifest is not None:
            refuse_changes(folder, manifest, plan)
        tell(begun(plan, manifest, _hosts(plan), corpus.counts))
        return conduct(plan, folder, tell, manifest, make)


def begin_or_finish(experiment: Experiment, folder: Path, force: bool = False, tell: Tell = tell_nobody) -> Record:
    """Run an experiment, or go on with it if it was begun in this folder; a finished run is left as it is."""
    if force or differences(experiment, folder) != []:
        return run(experiment, folder, force, tell)
    if not Record(folder).is_finished:
        return resume(folder, tell)
    checkpoint.clear(folder)
    tell(Finished(str(folder), was_before=True))
    return Record(folder)


def differences(experiment: Experiment, folder: Path) -> list[str] | None:
    """The keys in which the experiment differs from the one that was begun in this folder; None if none was."""
    if not (folder / "experiment.yaml").exists():
        return None
    there = load_experiment(folder / "experiment.yaml").model_dump(mode="json")
    wanted = experiment.resolved().model_dump(mode="json")
    return changed_keys(_what_counts(there) | {"labels": None}, _what_counts(wanted) | {"labels": None})


def follow(place: Place) -> None:
    """What every rank except 0 does under torchrun, until rank 0 ends."""

    def plan_of(folder: Path) -> Plan:
        return prepare(load_experiment(folder / "experiment.yaml"), folder)[1]

    torchrun.follow(place, plan_of)


def conduct(plan: Plan, folder: Path, tell: Tell, after: Manifest | None, make: MakeEngine) -> Record:
    """All rounds of a plan, or those after a checkpoint, into a record."""
    journal = Journal(folder)
    reporter: Reporter | None = None
    try:
        journal.cut(after.offsets if after is not None else {})
        tell = reporter = Reporter(plan, folder, after.round if after is not None else 0, tell)
        books = Books(journal, tell)
        books.begin(about(plan), after.round if after is not None else 0)
        engine = make(plan, books)
        try:
            conductor = Conductor(plan, books, engine)
            with stopping_on_sigterm():
                conductor.conduct(after)
            journal.offsets()
            known = [caution.cause for caution in conductor.cautions]
            reporter.finish()
            write_summary(Record(folder), plan, dict(books.ledger.totals), conductor.seconds, known)
        finally:
            engine.close()
    finally:
        if reporter is not None:
            reporter.close()
        journal.close()
    checkpoint.clear(folder)
    tell(Finished(str(folder)))
    return Record(folder)


def _hosts(plan: Plan) -> str:
    """What the clients are spread over."""
    return f"{many} ranks" if (many := ranks_at_work(plan.experiment.engine)) else f"{plan.workers} workers"


def begun(plan: Plan, after: Manifest | None, hosts: str, counts: Mapping[str, int] | None = None) -> Begun:
    """The event for the start of the rounds; `hosts` says in words what the clients are spread over."""
    models = {SERVER: plan.server.model, **{name: spec.model for name, spec in plan.clients.items()}}
    return Begun(
        rounds=plan.experiment.rounds,
        metric=plan.metrics[0],
        models={name: str(model) for name, model in models.items()},
        after=after.round if after else 0,
        bytes=sum(after.bytes.values()) if after else 0,
        private=sum(map(len, plan.partition.train.values())),
        public=len(plan.partition.public),
        hosts=hosts,
        corpus=counts or {},
    )


def _what_counts(experiment: dict[str, Any]) -> dict[str, Any]:
    """The experiment without the keys on which the numbers do not depend."""
    return {key: value for key, value in experiment.items() if key not in ("engine", "report_to")}


def _make_room(folder: Path, force: bool, experiment: Experiment) -> None:
    if force and (folder / "experiment.yaml").exists():
        with held(folder):
            shutil.rmtree(folder)
    if Record(folder).is_finished:
        raise FedstillError(
            f"{folder} holds a finished run; --force runs it again, or choose another folder with --out."
        )
    if changed := differences(experiment, folder):
        raise FedstillError(
            f"{folder} holds an unfinished run of another experiment (it differs in {', '.join(changed[:3])}); start "
            "again with --force, or choose another folder with --out."
        )
    if (folder / "experiment.yaml").exists():
        raise FedstillError(
            f"{folder} holds an unfinished run; go on with `{ranks.command(f'run --resume {folder}')}`, or start "
            "again with --force."
        )
    if folder.is_dir() and any(not path.name.startswith(".writing-") for path in folder.iterdir()):
        raise FedstillError(f"{folder} is not empty and holds no run; choose another folder with --out.")


def refuse_changes(folder: Path, manifest: Manifest, plan: Plan) -> None:
    """Refuse to go on if experiment or corpus are not the checkpoint's."""
    changed = changed_keys(_what_counts(manifest.experiment), _what_counts(plan.experiment.model_dump(mode="json")))
    if changed:
        raise FedstillError(
            f"{folder}/experiment.yaml was changed since the checkpoint ({', '.join(changed)}): going on would mix two "
            "experiments. Undo the change, or start a new run."
        )
    if manifest.corpus != plan.corpus_fingerprint:
        raise FedstillError(
            f"{folder}: the corpus is not the one that the run began with. Restore it, or start a new run."
        )


@contextmanager
def _explaining(folder: Path) -> Iterator[None]:
    """Turn disk errors (full, read-only) into a sentence; the last checkpoint is whole in any case."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename or folder} cannot be used ({os.strerror(error.errno)})."
        begun = (folder / "experiment.yaml").exists()
        again = ranks.command(f"run --resume {folder}")
        advice = f" Fix that, then go on with `{again}`; the last checkpoint is whole."
        raise FedstillError(where + (advice if begun else "")) from error


SIGNALS = (signal.SIGINT, signal.SIGTERM)
_heard: list[int] = []
"""The signal that is ending a run now."""


@contextmanager
def stopping_on_sigterm(for_good: bool = False) -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; ranks handle both signals themselves.

    Only the first signal counts: what ends a run must not be interrupted. `for_good`: nor what follows it.
    """
    if ranks.current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in SIGNALS}
    if before[signal.SIGINT] == signal.SIG_IGN:  # a command in the background
        del before[signal.SIGINT]
    for one in before:
        signal.signal(one, _stop)
    try:
        yield
    finally:
        is_outermost = before[signal.SIGTERM] is not _stop
        if is_outermost and not (for_good and _heard):
            _heard.clear()
            for one, handler in before.items():
                signal.signal(one, handler)


def _stop(signum: int, frame: object) -> None:
    if not _heard:
        _heard.append(signum)
        raise KeyboardInterrupt(signum)
