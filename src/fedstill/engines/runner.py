"""Runs an experiment from the beginning, or continues one that was interrupted."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from fedstill.common.errors import FedstillError, Unsaved
from fedstill.common.events import Begun, Finished, Noted, Preparing, Tell, tell_nobody
from fedstill.common.files import MODELS, unusable, write_whole
from fedstill.common.plugins import own_files
from fedstill.common.traces import keep_trace
from fedstill.common.words import counted
from fedstill.config.experiment import Experiment, load_begun
from fedstill.data.corpora.memory import kept_name
from fedstill.data.corpus import Corpus
from fedstill.data.partition import PARTITION
from fedstill.engines import checkpoint, processes, ranks, torchrun
from fedstill.engines.alone import Aside, experiment_alone
from fedstill.engines.books import Books
from fedstill.engines.checkpoint import Manifest
from fedstill.engines.conductor import Conductor
from fedstill.engines.journal import Journal, held
from fedstill.engines.ranks import Place
from fedstill.engines.stopping import stopping_on_sigterm
from fedstill.engines.table import MakeEngine, maker_of, ranks_at_work
from fedstill.plan.needs import check_models
from fedstill.plan.plan import Plan, default_workers
from fedstill.plan.prepare import changed_keys, prepare
from fedstill.results.members import ALONE
from fedstill.results.record import Record, about, write_summary
from fedstill.results.report_to import Reporter, chosen
from fedstill.wire.messages import SERVER

CODE = "code.json"
"""The file of a run with the hashes of the own code that it began with."""


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
        _load_early(experiment)
        experiment, plan, corpus = prepare(experiment.kept_in(folder.resolve()), folder.resolve())
        write_whole(folder / PARTITION, save(plan.partition.to_arrays()))
        for name, rows in experiment.held_files().items():
            write_whole(folder / name, rows)
        if code := code_of(experiment):
            write_whole(folder / CODE, (json.dumps(code, indent=1) + "\n").encode())
        write_whole(
            folder / "experiment.yaml", experiment.to_yaml().encode()
        )  # last: a folder with this file holds a run
        _work_alone(experiment, plan, folder, tell)
        tell(begun(plan, None, _hosts(plan), corpus.counts))
        return conduct(plan, folder, tell, None, make, known_before(experiment, plan, corpus), corpus.counts)


def resume(folder: str | Path, tell: Tell = tell_nobody, rounds: int | None = None) -> Record:
    """Go on with an interrupted run; the results are the same as without the interruption.

    `rounds`, if given, is how many there are to be in all: more than the run had, which may be finished.
    """
    folder = Path(folder)
    if not (folder / "experiment.yaml").exists():
        raise FedstillError(f"{folder} holds no run to go on with: there is no experiment.yaml in it.")
    experiment = load_begun(folder)
    if Record(folder).is_finished and rounds is None:
        checkpoint.settle(folder)  # a kill after the last line of a run leaves more behind
        more = f"fedstill run --resume {folder} rounds={experiment.rounds + 1}"
        raise FedstillError(
            f"{folder} is finished; look at it with: fedstill compare {folder} (or let it go on with: {more})"
        )
    tell(Preparing(str(folder)))
    make = maker_of(experiment.engine, folder)
    chosen(experiment.report_to)
    with stopping_on_sigterm(), _explaining(folder), held(folder):
        if rounds is not None:
            experiment = _prolong(folder, experiment, rounds, tell)
        _load_early(experiment)
        experiment, plan, corpus = prepare(experiment, folder.resolve())
        manifest, passed = checkpoint.latest(folder)
        for sentence in passed:
            tell(Noted(sentence))
        if manifest is not None:
            refuse_changes(folder, manifest, plan)
        _work_alone(experiment, plan, folder, tell)
        tell(begun(plan, manifest, _hosts(plan), corpus.counts))
        before = [] if manifest is not None else known_before(experiment, plan, corpus)
        remarks = [*before, *((SERVER, remark) for remark in changed_code(folder, experiment))]
        return conduct(plan, folder, tell, manifest, make, remarks, corpus.counts)


def known_before(experiment: Experiment, plan: Plan, corpus: Corpus) -> list[tuple[str, str]]:
    """What is to be noted of the rows and the models before the first round, and what it is about."""
    turns = experiment.turns(list(plan.clients))
    return [*(("corpus", notice) for notice in corpus.notices), *(("clients", turn) for turn in turns)]


def begin_or_finish(experiment: Experiment, folder: Path, force: bool = False, tell: Tell = tell_nobody) -> Record:
    """Run an experiment, or go on with it if it was begun in this folder; a finished run is left as it is."""
    if force or differences(experiment, folder) != []:
        return run(experiment, folder, force, tell)
    if not Record(folder).is_finished:
        return resume(folder, tell)
    checkpoint.settle(folder)
    tell(Finished(str(folder), was_before=True))
    return Record(folder)


def _work_alone(experiment: Experiment, plan: Plan, folder: Path, tell: Tell) -> None:
    """Have everybody work alone first, or on from where that was interrupted, if the run is to be compared with it."""
    if (alone := experiment_alone(experiment)) is None:
        return
    place, aside = folder / ALONE, Aside(tell)
    changed = differences(alone, place)
    if changed is None:
        check_models(experiment.method, plan)  # nobody shall work alone for hours, and the federation then be refused
    if changed == ["rounds"]:
        resume(place, aside, alone.rounds)
    else:
        begin_or_finish(alone, place, force=bool(changed), tell=aside)
    shutil.rmtree(place / MODELS, ignore_errors=True)  # its scores and predictions are what is looked at


def differences(experiment: Experiment, folder: Path) -> list[str] | None:
    """The keys in which the experiment differs from the one that was begun in this folder; None if none was."""
    if not (folder / "experiment.yaml").exists():
        return None
    there = load_begun(folder).model_dump(mode="json")
    wanted = experiment.kept_in(folder.resolve()).resolved().model_dump(mode="json")
    return changed_keys(_what_counts(there) | {"labels": None}, _what_counts(wanted) | {"labels": None})


def follow(place: Place) -> None:
    """What every rank except 0 does under torchrun, until rank 0 ends."""

    def plan_of(folder: Path) -> Plan:
        return prepare(load_begun(folder), folder)[1]

    torchrun.follow(place, plan_of)


def conduct(
    plan: Plan,
    folder: Path,
    tell: Tell,
    after: Manifest | None,
    make: MakeEngine,
    remarks: Sequence[tuple[str, str]] = (),
    counts: Mapping[str, int] | None = None,
) -> Record:
    """All rounds of a plan, or those after a checkpoint, into a record.

    It begins with `counts` of rows that were read and left out, and with `remarks`: whom or what each is about, and it.
    """
    journal = Journal(folder)
    reporter: Reporter | None = None
    try:
        journal.cut(after.offsets if after is not None else {})
        tell = reporter = Reporter(plan, folder, after.round if after is not None else 0, tell)
        books = Books(journal, tell)
        books.enter(after.round if after is not None else 0)
        rows = {"corpus": dict(counts)} if counts else {}
        books.begin(about(plan) | rows, after.round if after is not None else 0)
        for who, remark in remarks:
            books.note(who, remark)
        engine = make(plan, books)
        try:
            conductor = Conductor(plan, books, engine)
            try:
                with stopping_on_sigterm():
                    conductor.conduct(after)
            except Exception as error:
                keep_trace(error, folder, f"{SERVER}, round {conductor.round}")
                raise
            journal.offsets()
            reporter.finish()
            write_summary(
                Record(folder),
                plan,
                dict(books.ledger.totals),
                conductor.seconds,
                conductor.cautions,
                engine.own_models,
            )
        finally:
            engine.close()
    finally:
        if reporter is not None:
            reporter.close()
        journal.close()
    checkpoint.clear(folder) if plan.experiment.engine == "flare" else checkpoint.settle(folder)
    tell(Finished(str(folder)))
    return Record(folder)


def _load_early(experiment: Experiment) -> None:
    """Have the processes that workers come from load what they need while this one reads the corpus."""
    many = default_workers(experiment.device) if experiment.workers == "auto" else experiment.workers
    if experiment.engine == "local" and not ranks_at_work("local") and many > 1:
        processes.context(processes.WORKERS)


def _hosts(plan: Plan) -> str:
    """What the clients are spread over."""
    many = ranks_at_work(plan.experiment.engine)
    return counted(many, "rank") if many else counted(plan.workers, "worker")


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
    """The experiment without the keys and the folder on which the numbers do not depend."""
    return {key: _anywhere(value) for key, value in experiment.items() if key not in ("engine", "report_to", "alone")}


def _anywhere(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _anywhere(part) for key, part in value.items()}
    return kept_name(value) if isinstance(value, str) else value


def _make_room(folder: Path, force: bool, experiment: Experiment) -> None:
    if force and (folder / "experiment.yaml").exists():
        with held(folder):
            shutil.rmtree(folder)
    changed = differences(experiment, folder)
    if Record(folder).is_finished:
        more = changed == ["rounds"] and experiment.rounds > load_begun(folder).rounds
        again = ranks.command(f"run --resume {folder} rounds={experiment.rounds}")
        goes_on = f"it goes on with `{again}`, " if more else ""
        raise FedstillError(
            f"{folder} holds a finished run; {goes_on}--force runs it again, or choose another folder with --out."
        )
    if changed:
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


def _prolong(folder: Path, experiment: Experiment, rounds: int, tell: Tell) -> Experiment:
    """The experiment of a run with more rounds, which is then unfinished."""
    if experiment.engine == "flare":
        raise FedstillError(f"{folder} is of a federation, whose sites agreed to its rounds; submit a new experiment.")
    if experiment.privacy is not None:
        raise FedstillError(
            f"{folder} promises an epsilon over {counted(experiment.rounds, 'round')}, which more would break; "
            "start a new run."
        )
    if rounds < experiment.rounds or (rounds == experiment.rounds and Record(folder).is_finished):
        raise FedstillError(f"{folder} has {counted(experiment.rounds, 'round')}; rounds={rounds} would not be more.")
    if Record(folder).is_finished and checkpoint.latest(folder)[0] is None:
        tell(Noted(f"{folder} kept no checkpoint of its last round: all rounds are computed again."))
    # In this order a kill leaves an unfinished run with the old rounds or with the new ones.
    for stale in ("summary.json", "report.html", "audit.json"):
        (folder / stale).unlink(missing_ok=True)
    experiment = experiment.model_copy(update={"rounds": rounds})
    write_whole(folder / "experiment.yaml", experiment.to_yaml().encode())
    return experiment


def code_of(experiment: Experiment) -> dict[str, str]:
    """The sha256 of every file whose classes the experiment names."""
    files = own_files(experiment.model_dump(mode="json"))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def changed_code(folder: Path, experiment: Experiment) -> list[str]:
    """A sentence for every file of own code that is not what it was when the run began."""
    path = folder / CODE
    before = json.loads(path.read_text()) if path.is_file() else {}
    return [
        f"{file} was changed since the run began: from here on the new code computes, so the run is of two methods."
        for file, digest in code_of(experiment).items()
        if before.get(file, digest) != digest
    ]


def refuse_changes(folder: Path, manifest: Manifest, plan: Plan) -> None:
    """Refuse to go on if experiment or corpus are not the checkpoint's; more rounds are allowed without an epsilon."""
    before, now = _what_counts(manifest.experiment), _what_counts(plan.experiment.model_dump(mode="json"))
    if plan.experiment.privacy is None and before["rounds"] < now["rounds"]:
        before = {**before, "rounds": now["rounds"]}
    changed = changed_keys(before, now)
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
    """Turn disk errors (full, read-only) into a sentence with what to do; what was written before is whole."""
    try:
        yield
    except (OSError, Unsaved) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise
        where = unusable(error, folder) if isinstance(error, OSError) else str(error)
        is_alone = folder.name == ALONE and (folder.parent / "experiment.yaml").exists()
        run = folder.parent if is_alone else folder
        again = ranks.command(f"run --resume {run}")
        advice = f" Fix that, then go on with `{again}`; what was written before is whole."
        raise FedstillError(where + (advice if (run / "experiment.yaml").exists() else "")) from error
