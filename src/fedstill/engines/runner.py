"""Running an experiment from beginning to end, or on from where it stopped."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.engines import checkpoint, ranks, torchrun
from fedstill.engines.checkpoint import Manifest
from fedstill.engines.engine import Engine, Tell
from fedstill.engines.journal import Journal
from fedstill.engines.local import LocalEngine
from fedstill.engines.ranks import Place
from fedstill.engines.torchrun import TorchrunEngine
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import changed_keys, prepare
from fedstill.results.record import Record, write_summary

MakeEngine = Callable[[Plan, Journal, Tell], Engine]


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    force: bool = False,
    tell: Tell = lambda event: None,
) -> Record:
    """Run an experiment into a folder (`runs/<name>/seed-<n>` unless given) and return its record."""
    folder = Path(out) if out is not None else Path("runs") / experiment.name / f"seed-{experiment.seed}"
    if experiment.engine == "flare":
        raise FedstillError(
            "engine: flare is a federation of organisations: `fedstill federation submit` runs it, and `fedstill "
            "federation rehearse` tries it on one machine. With engine=local it is simulated; the numbers are the same."
        )
    if experiment.engine == "torchrun" and ranks.current is None:
        raise FedstillError(
            "engine: torchrun needs ranks: start it as `torchrun --nproc-per-node 2 -m fedstill run ...`. With "
            "engine=local it runs in processes of this machine; the numbers are the same."
        )
    _make_room(folder, force, experiment)
    tell({"preparing": str(folder)})
    with stopping_on_sigterm(), _explaining(folder):
        experiment, plan, corpus = prepare(experiment, folder.resolve())
        write_whole(folder / "partition.safetensors", save(plan.partition.to_arrays()))
        write_whole(folder / "experiment.yaml", experiment.to_yaml().encode())  # last: from here on there is a run
        tell({"plan": plan, "corpus": corpus, **_ranks(plan)})
        return conduct(plan, folder, tell, after=None)


def resume(folder: str | Path, tell: Tell = lambda event: None) -> Record:
    """Go on with an interrupted run; its end is the one it would have had."""
    folder = Path(folder)
    if not (folder / "experiment.yaml").exists():
        raise FedstillError(f"{folder} holds no run to go on with: there is no experiment.yaml in it.")
    if Record(folder).is_finished:
        raise FedstillError(f"{folder} is finished; look at it with: fedstill compare {folder}")
    tell({"preparing": str(folder)})
    experiment = load_experiment(folder / "experiment.yaml")
    if experiment.engine == "flare":
        raise FedstillError(f"{folder} is a federation's: `fedstill federation submit` goes on with it at the centre.")
    if experiment.engine == "torchrun" and ranks.current is None:
        raise FedstillError(
            f"{folder} was begun with `engine: torchrun`: go on with `torchrun --nproc-per-node 2 -m fedstill run "
            f"--resume {folder}`. With `engine: local` in its experiment.yaml it goes on in processes of this machine; "
            "the numbers are the same."
        )
    with stopping_on_sigterm(), _explaining(folder):
        experiment, plan, corpus = prepare(experiment, folder.resolve())
    manifest, passed = checkpoint.latest(folder)
    for sentence in passed:
        tell({"note": sentence})
    if manifest is not None:
        refuse_changes(folder, manifest, plan)
    with stopping_on_sigterm(), _explaining(folder):
        tell({"plan": plan, "corpus": corpus, "after": manifest.round if manifest else 0, **_ranks(plan)})
        return conduct(plan, folder, tell, after=manifest)


def begin_or_finish(
    experiment: Experiment, folder: Path, force: bool = False, tell: Tell = lambda event: None
) -> Record:
    """Run an experiment, or go on with it where it was begun in that folder; what is finished stays as it is."""
    if force or differences(experiment, folder) != []:
        return run(experiment, folder, force, tell)
    if not Record(folder).is_finished:
        return resume(folder, tell)
    tell({"already": str(folder)})
    return Record(folder)


def differences(experiment: Experiment, folder: Path) -> list[str] | None:
    """Keys in which the experiment that was begun in that folder is another one; None where none was."""
    if not (folder / "experiment.yaml").exists():
        return None
    there = load_experiment(folder / "experiment.yaml").model_dump(mode="json")
    wanted = experiment.resolved().model_dump(mode="json")
    return changed_keys(_what_counts(there) | {"labels": None}, _what_counts(wanted) | {"labels": None})


def follow(place: Place) -> None:
    """What every rank but 0 does under torchrun, until rank 0 ends."""

    def plan_of(folder: Path) -> Plan:
        return prepare(load_experiment(folder / "experiment.yaml"), folder)[1]

    torchrun.follow(place, plan_of)


def conduct(plan: Plan, folder: Path, tell: Tell, after: Manifest | None, make: MakeEngine | None = None) -> Record:
    """All rounds of a plan, or those after a checkpoint, into a record."""
    journal = Journal(folder)
    try:
        journal.cut(after.offsets if after is not None else {})
        engine, stopping = (
            (make or _engine)(plan, journal, tell),
            nullcontext() if ranks.current else stopping_on_sigterm(),
        )
        try:
            with stopping:
                engine.conduct(after)
            journal.offsets()
            record = Record(folder)
            write_summary(record, plan, engine.algorithm, dict(engine.ledger.totals), engine.seconds)
        finally:
            engine.close()
    finally:
        journal.close()
    checkpoint.clear(folder)
    tell({"finished": str(folder)})
    return Record(folder)


def _engine(plan: Plan, journal: Journal, tell: Tell) -> Engine:
    if ranks.current is not None and _ranks(plan):
        return TorchrunEngine(plan, journal, tell, ranks.current)
    return LocalEngine(plan, journal, tell)


def _ranks(plan: Plan) -> dict[str, int]:
    """How many there are, where they do the work: a single one leaves it to workers unless told otherwise."""
    if ranks.current is None or (ranks.current.place.ranks == 1 and plan.experiment["engine"] == "local"):
        return {}
    return {"ranks": ranks.current.place.ranks}


def _what_counts(experiment: dict[str, Any]) -> dict[str, Any]:
    """Without the engine, which the numbers do not depend on."""
    return {key: value for key, value in experiment.items() if key != "engine"}


def _make_room(folder: Path, force: bool, experiment: Experiment) -> None:
    if force and (folder / "experiment.yaml").exists():
        shutil.rmtree(folder)
    if Record(folder).is_finished:
        raise FedstillError(
            f"{folder} holds a finished run; --force runs it again, or choose another folder with --out."
        )
    if changed := differences(experiment, folder):
        raise FedstillError(
            f"{folder} holds an unfinished run of another experiment (it differs in {', '.join(changed[:3])}); over "
            "with --force, or choose another folder with --out."
        )
    if (folder / "experiment.yaml").exists():
        raise FedstillError(
            f"{folder} holds an unfinished run; go on with `{ranks.command(f'run --resume {folder}')}`, or over with "
            "--force."
        )
    if folder.is_dir() and any(not path.name.startswith(".writing-") for path in folder.iterdir()):
        raise FedstillError(f"{folder} is not empty and holds no run; choose another folder with --out.")


def refuse_changes(folder: Path, manifest: Manifest, plan: Plan) -> None:
    """Refuse to go on with another experiment or corpus than the checkpoint's."""
    changed = changed_keys(_what_counts(manifest.experiment), _what_counts(dict(plan.experiment)))
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
    """A full disk or a read-only folder as a sentence; the last checkpoint is whole in any case."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename or folder} cannot be used ({os.strerror(error.errno)})."
        begun = (folder / "experiment.yaml").exists()
        again = ranks.command(f"run --resume {folder}")
        advice = f" Mend that, then go on with `{again}`; the last checkpoint is whole."
        raise FedstillError(where + (advice if begun else "")) from error


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; among ranks it does anyway."""
    if ranks.current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt(signum)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
