"""Finished runs side by side: one row a method, with what the differences are worth."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedstill.errors import FedstillError
from fedstill.files import file_name
from fedstill.learning.metrics import Integers
from fedstill.results.significance import FEWEST_SEEDS, RESAMPLES, Bootstrap, paired_bootstrap, paired_over_seeds

POOLED = "test"
DEEPEST = 3

Scores = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Run:
    """One finished run folder; `server` is None for a method that has no server model."""

    folder: Path
    name: str
    method: str
    algorithm: str
    role: str
    seed: int
    labels: tuple[str, ...]
    client_names: tuple[str, ...]
    server: Scores | None
    clients: Mapping[str, Scores]
    bytes_up: int
    bytes_down: int
    seconds: float
    test_fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def overall(self) -> float | None:
        """Weighted F1 on the pooled test: the server's, or the mean over clients where there is no server model."""
        return _f1(self.server, POOLED) if self.server is not None else self.clients_mean

    @property
    def clients_mean(self) -> float | None:
        """Mean over clients of their weighted F1 on the pooled test."""
        return _mean(_f1(scores, POOLED) for scores in self.clients.values())

    def domain(self, name: str) -> float | None:
        """Weighted F1 on one domain's test: the server's, or that of the domain's own client."""
        return _f1(self.server if self.server is not None else self.clients.get(name), f"{POOLED}/{name}")

    def domains(self) -> set[str]:
        """Domains that any of the run's models was tested on."""
        tested = [*([self.server] if self.server is not None else []), *self.clients.values()]
        return {split.partition("/")[2] for scores in tested for split in scores if split.startswith(f"{POOLED}/")}


class Runs(list[Run]):
    """Finished runs, and the folders that were left out because theirs is not finished."""

    def __init__(self, runs: Iterable[Run] = (), skipped: Iterable[Path] = ()) -> None:
        super().__init__(runs)
        self.skipped = tuple(skipped)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its sample standard deviation, which one seed does not have."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Difference:
    """A method minus the one it is held against, over the seeds that can be paired."""

    f1: float
    seeds: tuple[int, ...]
    p_seeds: float | None
    bootstrap: Bootstrap | None = None
    test_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """A method over its seeds; every F1 is a fraction."""

    method: str
    algorithm: str
    role: str
    seeds: tuple[int, ...]
    overall: Spread | None
    domains: Mapping[str, Spread | None]
    clients_mean: Spread | None
    bytes_up: float
    bytes_down: float
    seconds: float
    difference: Difference | None = None


@dataclass(frozen=True)
class Comparison:
    """The table's rows, the method they are held against, and what a reader must know."""

    domains: tuple[str, ...]
    rows: tuple[Row, ...]
    against: str | None
    notes: tuple[str, ...]


def load_runs(paths: Sequence[Path]) -> Runs:
    """Every finished run at or below the paths, each once; unfinished folders are listed in `.skipped`."""
    finished: dict[Path, Path] = {}
    skipped: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise FedstillError(f"{path} is not a folder: give run folders, such as runs/<name> or runs/<name>/seed-0")
        for folder in _run_folders(path) or [path]:
            kind = finished if (folder / "summary.json").is_file() else skipped
            kind.setdefault(folder.resolve(), folder)
    if not finished:
        looked = ", ".join(str(folder) for folder in skipped.values()) or "no folder"
        raise FedstillError(
            f"no finished run: looked in {looked} for summary.json, which is written when a run ends. "
            "Finish one with `fedstill run --resume DIR`, or start one with `fedstill run EXPERIMENT.yaml`."
        )
    return Runs((_load_run(folder) for folder in finished.values()), skipped.values())


def compare(runs: Sequence[Run], against: str | None = None, resamples: int = RESAMPLES) -> Comparison:
    """One row a method, held against the best baseline among them or the method named by `against`."""
    _check_comparable(runs)
    methods = _by_method(runs)
    domains = _domain_order(runs)
    rows = {method: _row(method, group, domains) for method, group in methods.items()}
    reference = _named(against, methods) if against is not None else _best_baseline(rows)
    notes = _notes_on_methods(methods)
    if reference is not None:
        for method, group in methods.items():
            if method != reference:
                difference, remarks = _difference(group, methods[reference], resamples)
                rows[method] = replace(rows[method], difference=difference)
                notes += [f"{method} against {reference}: {remark}" for remark in remarks]
    notes.insert(0, _note_on_tests(rows.values(), reference, against is None, resamples))
    if isinstance(runs, Runs):
        notes += [f"Left out: {folder} is not finished (no summary.json)." for folder in runs.skipped]
    ordered = sorted(rows.values(), key=lambda row: (_is_upper_bound(row), _mean_or_lowest(row)))
    return Comparison(domains, tuple(ordered), reference, tuple(notes))


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON takes it; every F1 and difference is a fraction."""
    return {
        "against": comparison.against,
        "domains": list(comparison.domains),
        "rows": [_row_to_dict(row) for row in comparison.rows],
        "notes": list(comparison.notes),
    }


def _run_folders(path: Path, depth: int = 0) -> list[Path]:
    if (path / "summary.json").is_file() or path.name.startswith("seed-"):
        return [path]
    if depth == DEEPEST:
        return []
    inside = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    return [folder for child in inside for folder in _run_folders(child, depth + 1)]


def _load_run(folder: Path) -> Run:
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        return Run(
            folder=folder,
            name=summary["name"],
            method=summary["method"],
            algorithm=summary["algorithm"],
            role=summary["role"],
            notes=tuple(summary.get("notes", ())),
            seed=int(summary["seed"]),
            labels=tuple(str(label) for label in summary["labels"]),
            client_names=tuple(summary["clients"]),
            server=summary["scores"].get("server") or None,
            clients=summary["scores"].get("clients") or {},
            bytes_up=int(summary["bytes"]["up"]),
            bytes_down=int(summary["bytes"]["down"]),
            seconds=float(summary["seconds"]),
            test_fingerprint=summary["test_fingerprint"],
        )
    except KeyError as error:
        problem = f"has no {error}"
    except (ValueError, TypeError, AttributeError) as error:
        problem = f"cannot be read ({error})"
    raise FedstillError(f"{path} {problem}: leave this folder out, or run it again with --force")


def _check_comparable(runs: Sequence[Run]) -> None:
    if not runs:
        raise FedstillError("no runs to compare: give at least one finished run folder")
    first, taken = runs[0], dict[tuple[str, str, int], Path]()
    for run in runs:
        for what, ours, theirs in (
            ("labels", run.labels, first.labels),
            ("clients", sorted(run.client_names), sorted(first.client_names)),
        ):
            if ours != theirs:
                raise FedstillError(
                    f"{run.folder} and {first.folder} have different {what} ({', '.join(ours)}; {', '.join(theirs)}): "
                    "runs on different corpora or partitions do not belong in one table; compare them apart"
                )
        twin = taken.setdefault((run.name, run.method, run.seed), run.folder)
        if twin != run.folder:
            raise FedstillError(f"{twin} and {run.folder} are the same method, name and seed: give only one of them")


def _by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    names = defaultdict[str, set[str]](set)
    for run in runs:
        names[run.method].add(run.name)
    methods = defaultdict[str, list[Run]](list)
    for run in sorted(runs, key=lambda run: run.seed):
        # Two experiments may share a method and differ in a number: they must not be averaged as seeds of one.
        methods[run.method if len(names[run.method]) == 1 else f"{run.method} ({run.name})"].append(run)
    return dict(methods)


def _domain_order(runs: Sequence[Run]) -> tuple[str, ...]:
    tested = set().union(*(run.domains() for run in runs))
    clients = [name for name in runs[0].client_names if name in tested]
    return (*clients, *sorted(tested.difference(clients)))


def _row(method: str, runs: Sequence[Run], domains: Sequence[str]) -> Row:
    return Row(
        method=method,
        algorithm=runs[0].algorithm,
        role=runs[0].role,
        seeds=tuple(run.seed for run in runs),
        overall=_spread(run.overall for run in runs),
        domains={name: _spread(run.domain(name) for run in runs) for name in domains},
        clients_mean=_spread(run.clients_mean for run in runs),
        bytes_up=fmean(run.bytes_up for run in runs),
        bytes_down=fmean(run.bytes_down for run in runs),
        seconds=fmean(run.seconds for run in runs),
    )


def _best_baseline(rows: Mapping[str, Row]) -> str | None:
    baselines = [method for method, row in rows.items() if row.role == "baseline" and row.overall is not None]
    return max(baselines, key=lambda method: _mean_or_lowest(rows[method]), default=None)


def _named(wanted: str, methods: Mapping[str, Sequence[Run]]) -> str:
    found: dict[str, list[str]] = {}
    for method, runs in methods.items():
        for name in dict.fromkeys(name.lower() for name in (method, runs[0].method, runs[0].algorithm, runs[0].name)):
            found.setdefault(name, []).append(method)
    exact = [method for method in methods if method.lower() == wanted.lower()]
    matches = exact or found.get(wanted.lower(), [])
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise FedstillError(f"{wanted!r} names several methods here: choose one of {', '.join(matches)}")
    near = get_close_matches(wanted.lower(), found, n=1, cutoff=0.0)
    raise FedstillError(
        f"no run of {wanted!r} among these; did you mean {found[near[0]][0]!r}? There are: {', '.join(methods)}"
    )


def _difference(ours: Sequence[Run], theirs: Sequence[Run], resamples: int) -> tuple[Difference | None, list[str]]:
    """The paired difference, if any seed can be paired, and remarks on what could not."""
    other = {run.seed: run for run in theirs}
    common = [(run, other[run.seed]) for run in ours if run.seed in other]
    pairs = [(run, twin) for run, twin in common if run.test_fingerprint == twin.test_fingerprint]
    remarks = []
    if unlike := [str(run.seed) for run, twin in common if run.test_fingerprint != twin.test_fingerprint]:
        remarks.append(f"the test rows differ for seed {', '.join(unlike)}, which cannot be paired.")
    if not pairs:
        remarks.append("no seed in common on the same test rows, so no difference.")
        return None, remarks
    if len(pairs) < max(len(ours), len(theirs)):
        remarks.append(f"paired on seed {', '.join(str(run.seed) for run, _ in pairs)} only.")
    first, second = [run.overall for run, _ in pairs], [twin.overall for _, twin in pairs]
    first_f1, second_f1 = [f1 for f1 in first if f1 is not None], [f1 for f1 in second if f1 is not None]
    if len(first_f1) < len(pairs) or len(second_f1) < len(pairs):
        return None, [*remarks, "a run has no score on the pooled test, so no difference."]
    difference = Difference(
        f1=fmean(first_f1) - fmean(second_f1),
        seeds=tuple(run.seed for run, _ in pairs),
        p_seeds=paired_over_seeds(first_f1, second_f1),
    )
    try:
        bootstrap, test_rows = _bootstrap(pairs, resamples)
    except _Unpaired as problem:
        return difference, [*remarks, f"no bootstrap, because {problem}."]
    return replace(difference, bootstrap=bootstrap, test_rows=test_rows), remarks


class _Unpaired(Exception):
    """Stored predictions that cannot be compared row by row, and why."""


def _bootstrap(pairs: Sequence[tuple[Run, Run]], resamples: int) -> tuple[Bootstrap, tuple[int, ...]]:
    first, second = ([_predictions(pair[side]) for pair in pairs] for side in (0, 1))
    for (run, twin), (ours, _), (theirs, _) in zip(pairs, first, second, strict=True):
        if not np.array_equal(ours, theirs):
            raise _Unpaired(f"{run.folder} and {twin.folder} hold predictions for different rows")
    tests = [truth for truth, _ in first]
    bootstrap = paired_bootstrap(
        [truth[1] for truth in tests],
        [predicted for _, predicted in first],
        [predicted for _, predicted in second],
        classes=len(pairs[0][0].labels),
        resamples=resamples,
        same_rows=all(np.array_equal(tests[0], truth) for truth in tests),
    )
    return bootstrap, tuple(truth.shape[1] for truth in tests)


def _predictions(run: Run) -> tuple[Integers, list[Integers]]:
    """Row numbers over labels, and what each model that makes up the run's global score predicted for those rows."""
    parties = ["server"] if run.server is not None else sorted(run.clients)
    truths, predicted = [], []
    for party in parties:
        path = run.folder / "predictions" / f"{file_name(party)}.safetensors"
        if not path.is_file():
            raise _Unpaired(f"{path} is missing")
        try:
            stored = load_file(path)
            rows, labels, answers = stored["rows"], stored["labels"], stored["predicted"]
        except (SafetensorError, KeyError) as error:
            raise _Unpaired(f"{path} cannot be read ({error})") from error
        order = np.argsort(rows, kind="stable")
        truths.append(np.stack([rows, labels])[:, order])
        predicted.append(answers[order])
    if not all(np.array_equal(truths[0], truth) for truth in truths):
        raise _Unpaired(f"the clients of {run.folder} predicted different rows")
    return truths[0], predicted


def _note_on_tests(rows: Iterable[Row], reference: str | None, is_best: bool, resamples: int) -> str:
    scores = "Weighted F1 in points after the last round, mean ± sample standard deviation over seeds"
    if reference is None:
        return f"{scores}. No baseline among these runs, so no differences."
    differences = [row.difference for row in rows if row.difference is not None]
    tests = []
    if any(difference.p_seeds is not None for difference in differences):
        seeds = (len(difference.seeds) for difference in differences if difference.p_seeds is not None)
        tests.append(f"paired t-test over {_range(seeds)} seeds")
    else:
        tests.append(f"no t-test over seeds, which needs {FEWEST_SEEDS}")
    if test_rows := [count for difference in differences for count in difference.test_rows]:
        tests.append(f"paired bootstrap over {_range(test_rows)} test rows a seed, {resamples:,} resamples")
    best = ", the best baseline here" if is_best else ""
    return f"{scores}; differences to {reference}{best}, with p: {'; '.join(tests)}."


def _notes_on_methods(methods: Mapping[str, Sequence[Run]]) -> list[str]:
    notes = []
    if any(run.clients for runs in methods.values() for run in runs):
        notes.append("Clients' mean: the clients' own models, each on the pooled test.")
    notes.append("Bytes are whole messages as they crossed, greetings, headers and measurements included.")
    for method, runs in methods.items():
        if runs[0].server is None:
            notes.append(
                f"{method} has no server model: global is the mean over its clients on the pooled test, "
                "a domain is its own client's model on that domain's test."
            )
        if _is_upper_bound(runs[0]):
            notes.append(f"{method} is an upper bound: it sees all private data.")
        notes += [f"{method}, seed {run.seed}: {note}" for run in runs for note in run.notes]
    return notes


def _row_to_dict(row: Row) -> dict[str, Any]:
    entry = asdict(row)
    entry["global"] = entry.pop("overall")
    entry["bytes"] = {"up": entry.pop("bytes_up"), "down": entry.pop("bytes_down")}
    if row.difference is not None and row.difference.bootstrap is not None:
        entry["difference"]["bootstrap"] = row.difference.bootstrap._asdict()
    return entry


def _f1(scores: Scores | None, split: str) -> float | None:
    return scores[split]["f1"] if scores is not None and split in scores else None


def _mean(values: Iterable[float | None]) -> float | None:
    spread = _spread(values)
    return None if spread is None else spread.mean


def _spread(values: Iterable[float | None]) -> Spread | None:
    """None unless every value is there: a mean over some of the seeds would pass for one over all."""
    every = list(values)
    known = [value for value in every if value is not None]
    if not known or len(known) < len(every):
        return None
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None)


def _mean_or_lowest(row: Row) -> float:
    return -1.0 if row.overall is None else row.overall.mean


def _is_upper_bound(entry: Row | Run) -> bool:
    return entry.role == "upper bound"


def _range(numbers: Iterable[int]) -> str:
    every = sorted(set(numbers))
    return str(every[0]) if len(every) == 1 else f"{every[0]} to {every[-1]}"
