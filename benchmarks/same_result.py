"""The same result: AdaFD with the fast path against without it, five paired seeds, tweets and Amazon.

    python benchmarks/same_result.py [--jobs N] [--out FILE] [--only tweets] [--amazon FOLDER] [OVERRIDE ...]

Prints the server's weighted F1 on the test rows after the last round, and the 95% interval (Student's t) of the mean
difference. Both runs of a pair have the same rows, first models and orders; dropout masks differ. Overrides are those
of `fedstill run`, for both corpora.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

import fedstill
from fedstill.config.experiment import load_experiment

HERE = Path(__file__).parent
RECIPES = Path(fedstill.__file__).parent / "recipes"
AMAZON = HERE.parent.parent / "shared" / "data" / "amazon"

COMMON = (
    "workers=1", "threads=1", "device=cpu", "rounds=3", "client_tests=own", "train.max_length=32",
    "partition.validation=0", "partition.public=0.04", "partition.test=0.8",
)  # fmt: skip
SIZES = {
    "tweets": ("clients=bert-tiny",),
    "amazon": ("partition.rows_per_domain=4000", "partition.public=0.05", "partition.test=0.3", "rounds=2"),
}
"""Many test rows, so that chance moves F1 by less than a point, and few tokens, so that a run takes minutes.

Amazon's training rows are many, too: with a fifth of them its F1 was below 50, and the two runs of a seed differed by
up to 2.6 points (fast less plain: +2.6, -0.5, +1.7, +1.0).
"""


class Job(NamedTuple):
    """One run."""

    corpus: str
    is_fast: bool
    seed: int
    overrides: tuple[str, ...]


class Outcome(NamedTuple):
    """What came of it."""

    f1: float
    seconds: float
    test_rows: int


def run(job: Job) -> Outcome:
    """Run it."""
    overrides = [*COMMON, *SIZES[job.corpus], *job.overrides, f"seed={job.seed}", f"fast={str(job.is_fast).lower()}"]
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        record = fedstill.run(load_experiment(RECIPES / f"{job.corpus}.yaml", overrides), Path(scratch) / "run")
        seconds = time.perf_counter() - started
        rows = next(m["rows"] for m in record.metrics if m["party"] == "server" and m.get("split") == "test")
        outcome = Outcome(100 * record.f1(), seconds, rows)
    print(f"{job.corpus} seed {job.seed} {'fast' if job.is_fast else 'plain'}: {outcome}", file=sys.stderr, flush=True)
    return outcome


def compare(fast: Sequence[Outcome], plain: Sequence[Outcome]) -> dict[str, Any]:
    """The paired differences and what they say."""
    differences = [a.f1 - b.f1 for a, b in zip(fast, plain, strict=True)]
    mean, many = statistics.mean(differences), len(differences)
    half = float(stats.t.ppf(0.975, many - 1)) * statistics.stdev(differences) / math.sqrt(many)
    return {
        "fast": [each.f1 for each in fast],
        "plain": [each.f1 for each in plain],
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "is_within_one_point": max(abs(mean - half), abs(mean + half)) <= 1,
        "test_rows": fast[0].test_rows,
        "fast_s": statistics.median(each.seconds for each in fast),
        "plain_s": statistics.median(each.seconds for each in plain),
    }


def measure(corpora: Sequence[str], seeds: int, jobs: int, overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Everything, so many runs at a time."""
    work = [
        Job(corpus, is_fast, seed, tuple(overrides))
        for corpus in corpora
        for seed in range(seeds)
        for is_fast in (True, False)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        outcomes = dict(zip(work, pool.map(run, work), strict=True))
    return {
        corpus: compare(
            *(
                [own for job, own in outcomes.items() if job.corpus == corpus and job.is_fast == way]
                for way in (True, False)
            )
        )
        for corpus in corpora
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The results as tables."""
    return [
        "| corpus | fast by seed | plain by seed | fast less plain: mean, 95% interval | within a point | test rows |",
        "|---|---|---|---|---|---|",
        *(
            f"| {corpus} | {' '.join(f'{f1:.1f}' for f1 in v['fast'])} | {' '.join(f'{f1:.1f}' for f1 in v['plain'])} "
            f"| {v['mean']:+.2f} ({v['low']:+.2f} to {v['high']:+.2f}) | {'yes' if v['is_within_one_point'] else 'no'} "
            f"| {v['test_rows']} |"
            for corpus, v in found.items()
        ),
        "",
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=list(SIZES))
    parser.add_argument("--amazon", type=Path, default=AMAZON)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "same-result.json")
    given = parser.parse_args()
    corpora = [given.only] if given.only else list(SIZES)
    if "amazon" in corpora:
        if given.amazon.is_dir():
            SIZES["amazon"] = (*SIZES["amazon"], f"corpus.path={given.amazon.resolve()}")
        else:
            print(f"{given.amazon} is not there: amazon is left out; give its csv files with --amazon FOLDER.")
            corpora.remove("amazon")
    values = measure(corpora, given.seeds, given.jobs, given.overrides)
    about = {"cores": os.cpu_count(), "jobs": given.jobs, "overrides": [*COMMON, *given.overrides], "sizes": SIZES}
    given.out.write_text(json.dumps({"machine": about, "values": values}, indent=1) + "\n")
    print("\n".join(lines(values)))


if __name__ == "__main__":
    main()
