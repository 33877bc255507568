"""Finished runs side by side: one row per method, with the differences between them and their significance."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.common.rows import Rows
from fedstill.common.words import counted, listed, ranged
from fedstill.learning.metrics import METRICS
from fedstill.results.lengths import unequal_lengths
from fedstill.results.notes import fallen
from fedstill.results.runs import Run, Runs, Unpaired, complete, load_runs, predictions
from fedstill.results.significance import FEWEST_SEEDS, RESAMPLES, Bootstrap, paired_bootstrap, paired_over_seeds

__all__ = [
    "Comparison",
    "Difference",
    "MethodRow",
    "Spread",
    "by_method",
    "compare",
    "difference",
    "load_runs",
    "to_dict",
]

FEW_NOTES = 3
"""So many notes of models that predict one class are shown; more become one."""


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and the sample standard deviation, which is None for one seed."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Difference:
    """A method's score minus that of the method it is compared with, over the seeds that can be paired."""

    mean: float
    seeds: tuple[int, ...]
    p_seeds: float | None
    bootstrap: Bootstrap | None = None
    test_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class MethodRow:
    """A method over its seeds; every score is a fraction."""

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
    clients_own: Spread | None = None
    """The mean over clients, each on its own test."""
    has_server: bool = True
    """Whether global and domains are about the server's model, and not about the clients'."""


@dataclass(frozen=True)
class Comparison:
    """The table's rows, their metric, the method they are compared with, and notes for the reader."""

    metric: str
    domains: tuple[str, ...]
    rows: tuple[MethodRow, ...]
    against: str | None
    notes: tuple[str, ...]

    def to_rows(self) -> Rows:
        """A row a method: its means over seeds, as fractions."""
        return Rows(
            {"method": row.method, "seeds": len(row.seeds), "global": _mean_of(row.overall)}
            | {name: _mean_of(spread) for name, spread in row.domains.items()}
            | {
                "clients": _mean_of(row.clients_mean),
                "difference": row.difference and row.difference.mean,
                "bytes": row.bytes_up + row.bytes_down,
                "seconds": row.seconds,
            }
            for row in self.rows
        )

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`."""
        return self.to_rows().to_pandas()

    def __str__(self) -> str:
        from fedstill.results.table import text

        return text(self)


def compare(runs: Sequence[Run], against: str | None = None, resamples: int = RESAMPLES) -> Comparison:
    """One row per method, compared with the best baseline among them or with the method named by `against`."""
    _check_comparable(runs)
    methods = by_method(runs)
    domains = _domain_order(runs)
    rows = {method: _row(method, group, domains) for method, group in methods.items()}
    reference = _named(against, methods) if against is not None else _best_baseline(rows)
    if len(methods) == 1:
        reference = None  # nothing differs from it
    notes = [*unequal_lengths(methods), *_notes_on_methods(methods)]
    if reference is not None:
        for method, group in methods.items():
            if method != reference:
                found, remarks = difference(group, methods[reference], resamples)
                rows[method] = replace(rows[method], difference=found)
                notes += [f"{method} against {reference}: {remark}" for remark in remarks]
    notes.insert(
        0, _note_on_tests(METRICS[runs[0].metric].caption, list(rows.values()), reference, against is None, resamples)
    )
    if isinstance(runs, Runs):
        notes += [f"Left out: {folder} is not finished (no summary.json)." for folder in runs.skipped]
    ordered = sorted(rows.values(), key=lambda row: (_is_upper_bound(row), _mean_or_lowest(row)))
    return Comparison(runs[0].metric, domains, tuple(ordered), reference, tuple(notes))


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values for JSON; every score and difference is a fraction."""
    return {
        "metric": comparison.metric,
        "against": comparison.against,
        "domains": list(comparison.domains),
        "rows": [_row_to_dict(row) for row in comparison.rows],
        "notes": list(comparison.notes),
    }


def _check_comparable(runs: Sequence[Run]) -> None:
    if not runs:
        raise FedstillError("no runs to compare: give at least one finished run folder")
    first, taken = runs[0], dict[tuple[str, str, int], Path]()
    for run in runs:
        for what, ours, theirs in (
            ("labels", run.labels, first.labels),
            ("clients", sorted(run.client_names), sorted(first.client_names)),
            ("headline metrics", [run.metric], [first.metric]),
        ):
            if ours != theirs:
                raise FedstillError(
                    f"{run.folder} and {first.folder} have different {what} ({', '.join(ours)}; {', '.join(theirs)}): "
                    "runs on different corpora or partitions do not belong in one table; compare them separately"
                )
        twin = taken.setdefault((run.name, run.method, run.seed), run.folder)
        if twin != run.folder:
            raise FedstillError(f"{twin} and {run.folder} are the same method, name and seed: give only one of them")


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by the name of their table row, sorted by seed."""
    names = defaultdict[str, set[str]](set)
    for run in runs:
        names[run.method].add(run.name)
    methods = defaultdict[str, list[Run]](list)
    for run in sorted(runs, key=lambda run: run.seed):
        # Two experiments may have one method with different settings: they must not be averaged as if they were seeds.
        methods[run.method if len(names[run.method]) == 1 else f"{run.method} ({run.name})"].append(run)
    return dict(methods)


def _domain_order(runs: Sequence[Run]) -> tuple[str, ...]:
    tested = set().union(*(run.domains() for run in runs))
    clients = [name for name in runs[0].client_names if name in tested]
    return (*clients, *sorted(tested.difference(clients)))


def _row(method: str, runs: Sequence[Run], domains: Sequence[str]) -> MethodRow:
    return MethodRow(
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
        clients_own=_spread(run.own_mean for run in runs),
        has_server=runs[0].server is not None,
    )


def _best_baseline(rows: Mapping[str, MethodRow]) -> str | None:
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


def difference(ours: Sequence[Run], theirs: Sequence[Run], resamples: int) -> tuple[Difference | None, list[str]]:
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
    first, second = complete(run.overall for run, _ in pairs), complete(twin.overall for _, twin in pairs)
    if not first or not second:
        return None, [*remarks, "a run has no score on the pooled test, so no difference."]
    found = Difference(
        mean=fmean(first) - fmean(second),
        seeds=tuple(run.seed for run, _ in pairs),
        p_seeds=paired_over_seeds(first, second),
    )
    try:
        bootstrap, test_rows = _bootstrap(pairs, resamples)
    except Unpaired as problem:
        return found, [*remarks, f"no bootstrap, because {problem}."]
    return replace(found, bootstrap=bootstrap, test_rows=test_rows), remarks


def _bootstrap(pairs: Sequence[tuple[Run, Run]], resamples: int) -> tuple[Bootstrap, tuple[int, ...]]:
    first, second = ([predictions(pair[side]) for pair in pairs] for side in (0, 1))
    for (run, twin), (ours, _), (theirs, _) in zip(pairs, first, second, strict=True):
        if not np.array_equal(ours, theirs):
            raise Unpaired(f"{run.folder} and {twin.folder} hold predictions for different rows")
    tests = [truth for truth, _ in first]
    bootstrap = paired_bootstrap(
        [truth[1] for truth in tests],
        [predicted for _, predicted in first],
        [predicted for _, predicted in second],
        classes=len(pairs[0][0].labels),
        resamples=resamples,
        measure=METRICS[pairs[0][0].metric].measure,
        same_rows=all(np.array_equal(tests[0], truth) for truth in tests),
    )
    return bootstrap, tuple(truth.shape[1] for truth in tests)


def _note_on_tests(
    caption: str, rows: Sequence[MethodRow], reference: str | None, is_best: bool, resamples: int
) -> str:
    scores = f"{caption} after the last round, mean ± sample standard deviation over seeds"
    if reference is None:
        return f"{scores}. No {'other method' if len(rows) == 1 else 'baseline'} among these runs, so no differences."
    differences = [row.difference for row in rows if row.difference is not None]
    if not differences:
        return f"{scores}. No differences to {reference}, as told below."
    tests = []
    if any(difference.p_seeds is not None for difference in differences):
        seeds = (len(difference.seeds) for difference in differences if difference.p_seeds is not None)
        tests.append(f"paired t-test over {ranged(seeds)} seeds")
    else:
        tests.append(f"no t-test over seeds, which needs {FEWEST_SEEDS}")
    if test_rows := [count for difference in differences for count in difference.test_rows]:
        tests.append(f"paired bootstrap over {ranged(test_rows)} test rows per seed, {resamples:,} resamples")
    best = ", the best baseline here" if is_best else ""
    return f"{scores}; differences to {reference}{best}, with p: {'; '.join(tests)}."


def _notes_on_methods(methods: Mapping[str, Sequence[Run]]) -> list[str]:
    notes = []
    every = [run for runs in methods.values() for run in runs]
    if any(run.clients_mean is not None for run in every):
        notes.append("Clients' mean: the clients' own models, each on the pooled test.")
    if any(run.clients_mean is None and run.own_mean is not None for run in every):
        notes.append("Own test: the mean of the clients' own models, each on its own test rows (`client_tests: own`).")
    notes.append("Bytes are those of whole messages, including greetings, headers and measurements.")
    for method, runs in methods.items():
        if runs[0].server is None:
            notes.append(
                f"* {method} has no server model: global is the mean over its clients on the pooled test, "
                "a domain is its own client's model on that domain's test. Without a star it is the server's model."
            )
        if _is_upper_bound(runs[0]):
            notes.append(f"{method} is an upper bound: it sees all private data.")
        notes += [f"{method}, seed {run.seed}: {note}" for run in runs for note in _gathered(run.notes)]
    return notes


def _gathered(notes: Sequence[str]) -> list[str]:
    """A run's notes; many parties that predict one class are one note, which says after which rounds they did."""
    found = [each for note in notes if (each := fallen(note)) is not None]
    if len(found) <= FEW_NOTES:
        return list(notes)
    by_round: dict[int, list[str]] = {}
    for name, round in sorted(found, key=lambda each: each[1]):
        by_round.setdefault(round, []).append(name)
    told = [
        f"{counted(len(each), 'model')}{f' after round {round}' if round else ''} ({listed(each)})"
        for round, each in by_round.items()
    ]
    others = [note for note in notes if fallen(note) is None]
    return [*others, f"one class was predicted for nearly all test rows: by {', '.join(told)}."]


def _row_to_dict(row: MethodRow) -> dict[str, Any]:
    entry = asdict(row)
    entry["global"] = entry.pop("overall")
    entry["bytes"] = {"up": entry.pop("bytes_up"), "down": entry.pop("bytes_down")}
    if row.difference is not None and row.difference.bootstrap is not None:
        entry["difference"]["bootstrap"] = row.difference.bootstrap._asdict()
    return entry


def _mean_of(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = complete(values)
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None) if known else None


def _mean_or_lowest(row: MethodRow) -> float:
    return -inf if row.overall is None else row.overall.mean


def _is_upper_bound(entry: MethodRow | Run) -> bool:
    return entry.role == "upper bound"
