"""Verdicts on the papers' claims: the rule on numbers by hand, the names in the file, and the page in docs/."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedstill.common.errors import FedstillError
from fedstill.config.source import Source
from fedstill.papers.claims import (
    Cell,
    Claim,
    Judged,
    Rivals,
    Shelf,
    comparisons,
    judge,
    read_claims,
    recipe_of,
    verdict,
)
from fedstill.papers.claims_page import judged_claims, lines, page
from fedstill.papers.evidence import fingerprint
from fedstill.papers.grid import GridRun, plan_grid
from fedstill.papers.recipe import recipe_path
from tests.cli.test_cli import fedstill

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claim in read_claims()}
HOMOGENEOUS = "homogeneous, downsampled"
Score = Callable[[GridRun], float | None]


def write_lines(folder: Path, recipe: str, score: Score, seeds: int = 5, scale: str = "medium", **more: object) -> None:
    """Lines of a recipe at a scale, by a score for each run; None leaves a run out."""
    path = recipe_path(recipe)
    assert path is not None
    grid = plan_grid(Source.read(path), scale, folder, ["corpus.path=nowhere"], seeds)
    every = []
    for run in grid.runs:
        if (value := score(run)) is None:
            continue
        splits = {split for name in run.columns for split, _ in grid.recipe.columns[name].shows}
        measured = {split: {"f1": value, "accuracy": value} for split in splits}
        known = dict.fromkeys(("method", "algorithm", "role", "origin", "setting", "commit", "device"), "")
        empty: dict[str, object] = {
            "by_round": {},
            "weights": {},
            "sampling": {},
            "sent": {},
            "clients": {},
            "notes": [],
        }
        line = known | empty | {
            "scale": scale, "group": run.group, "row": run.row, "columns": list(run.columns),
            "name": run.experiment.name, "seed": run.experiment.seed, "experiment": fingerprint(run.experiment),
            "labels": ["a", "b"], "metrics": ["f1"], "server": measured, "bytes": {"up": 0, "down": 0}, "seconds": 1.0,
            "test": f"rows of {run.experiment.seed}",
        }  # fmt: skip
        every.append(json.dumps(line | {key: make(run) if callable(make) else make for key, make in more.items()}))
    (folder / f"{recipe}.jsonl").parent.mkdir(parents=True, exist_ok=True)
    (folder / f"{recipe}.jsonl").write_text("\n".join(every) + "\n")


def judged(folder: Path, name: str) -> Judged:
    return judge(CLAIMS[name], Shelf(folder))


def table1(values: Mapping[str, list[float]]) -> Score:
    """Scores in points by row and seed, of equal models only."""

    def score(run: GridRun) -> float | None:
        if run.group != HOMOGENEOUS or run.row not in values:
            return None
        return values[run.row][run.experiment.seed] / 100

    return score


@pytest.mark.parametrize(
    ("interval", "paper", "expected"),
    [
        ((0.1, 2.0), 1.6, "reproduced"),
        ((0.1, 0.4), 1.6, "reproduced"),  # smaller than the paper's, but on the claimed side
        ((-2.0, -0.1), 1.6, "not reproduced"),
        ((-0.5, 1.0), 1.6, "not reproduced"),  # the paper's difference is outside
        ((-0.5, 2.0), 1.6, "undecided"),
        ((-0.5, 1.6), 1.6, "undecided"),
        ((-0.5, 2.0), None, "undecided"),
        ((-0.5, 2.0), -1.2, "undecided"),  # the text claims what the table contradicts
        ((0.0, 0.0), 1.6, "not reproduced"),
        (None, 1.6, "undecided"),
    ],
)
def test_the_rule_for_one_that_is_better(
    interval: tuple[float, float] | None, paper: float | None, expected: str
) -> None:
    assert verdict(interval, paper)[0] == expected


@pytest.mark.parametrize(
    ("interval", "band", "expected"),
    [
        ((-0.9, 0.9), (-1, 1), "reproduced"),
        ((0.1, 0.9), (-1, 1), "reproduced"),
        ((0.5, 1.5), (-1, 1), "undecided"),
        ((-3.0, 3.0), (-1, 1), "undecided"),
        ((1.1, 3.0), (-1, 1), "not reproduced"),
        ((-3.0, -1.1), (-1, 1), "not reproduced"),
        ((-3.0, -1.1), (-math.inf, 1), "reproduced"),  # no better
        ((1.1, 3.0), (-math.inf, 1), "not reproduced"),
    ],
)
def test_the_rule_for_two_that_are_as_good(
    interval: tuple[float, float], band: tuple[float, float], expected: str
) -> None:
    assert verdict(interval, 0.0, band)[0] == expected


def cells(claim: Claim) -> list[Cell]:
    every = [*comparisons(claim), *(comparisons(claim, claim.beside) if claim.beside else [])]
    return [cell for _, terms in every for _, *both in terms for cell in both]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_names_cells_that_exist(claim: Claim) -> None:
    assert claim.where.partition(",")[0] in ("AdaFD", "FedID", "FedDRS", "FedSND")
    assert not claim.says.endswith(".")
    assert not claim.note or not claim.note.endswith(".")
    assert claim.untestable or cells(claim)
    for cell in cells(claim):
        recipe = recipe_of(cell.recipe)
        assert cell.group in recipe.groups
        assert cell.row in recipe.rows_of(cell.group)
        assert cell.column in recipe.columns
        assert recipe.columns[cell.column].against is None
    assert claim.untestable or all(
        term.cell.scale in recipe_of(term.cell.recipe).scales for _, terms in comparisons(claim) for term in terms
    )


def test_every_paper_table_and_figure_with_a_comparison_has_claims() -> None:
    places = {claim.where for claim in CLAIMS.values()}
    assert {f"AdaFD, Table {number}" for number in ("I", "II")} <= places
    assert {f"FedID, Table {number}" for number in range(1, 5)} <= places
    assert {f"FedDRS, Table {number}" for number in range(1, 4)} <= places
    assert {f"FedSND, Figure {number}" for number in range(7, 11)} <= places


def test_the_papers_differences_are_those_of_the_recipes(tmp_path: Path) -> None:
    def paper(name: str) -> tuple[str, float | None]:
        found = judged(tmp_path, name).paper
        return (found.against, found.paper) if found else ("", None)

    assert paper("adafd-first-homogeneous") == ("FedKD", pytest.approx(78.0 - 76.4))
    assert paper("adafd-more-rows-homogeneous") == ("downsampled", pytest.approx(82.0 - 78.0))
    assert paper("fedid-cross-domain-gap") == ("MHAT", pytest.approx((86.4 - 83.9) - (91.8 - 91.2)))
    assert paper("feddrs-gain-unevenness") == ("FedAvg", pytest.approx((69.06 - 64.24) - (70.37 - 69.65)))
    assert paper("feddrs-adversary-only") == ("FedAvg", pytest.approx(72.95 - 70.17))
    assert paper("feddrs-pixels-random") == ("FedAvg", pytest.approx(0.07))
    assert paper("fedsnd-images-uneven") == ("FedKD", pytest.approx(91.52 - 89.62))
    assert paper("adafd-beta") == ("", None)
    assert paper("fedsnd-rounds-text") == ("", None)


def test_a_claim_over_several_is_judged_against_the_strongest_here(tmp_path: Path) -> None:
    ours = [70.0, 71.0, 72.0, 73.0, 74.0]
    theirs = {"FedAvg": [69.0, 69.5, 71.0, 71.2, 73.5], "DS-FL": [60.0] * 5, "MHAT": [61.0] * 5, "FedKD": [62.0] * 5}
    write_lines(tmp_path, "adafd/table1", table1({"AdaFD w/ ENWC": ours, **theirs}))
    found = judged(tmp_path, "adafd-first-homogeneous")
    assert found.here is not None
    apart = np.subtract(ours, theirs["FedAvg"])
    assert found.here.against == "FedAvg"
    assert found.here.mean == pytest.approx(apart.mean())
    assert found.here.interval == pytest.approx(stats.t.interval(0.95, 4, loc=apart.mean(), scale=stats.sem(apart)))
    assert found.here.p == pytest.approx(stats.ttest_rel(ours, theirs["FedAvg"]).pvalue)
    assert found.verdict == "reproduced"
    told = list(lines(found))
    assert told[0][2:] == ("+1.60 over FedKD", "+1.16 over FedAvg [+0.54, +1.78] (5)", "0.007", "reproduced")
    assert [row[0] for row in told[1:]] == [f"· against {name}" for name in theirs]
    assert judged(tmp_path, "adafd-first-heterogeneous").verdict == "not run yet"
    assert judged(tmp_path, "adafd-llmwc").verdict == "not testable here"


def test_what_cannot_be_tested_is_judged_once_it_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    write_lines(tmp_path, "adafd/table1", table1({"AdaFD w/ ENWC": [70.0] * 5, "AdaFD w/ LLMWC": [70.5] * 5}))
    assert judged(tmp_path, "adafd-llmwc").verdict == "not reproduced"


def test_without_one_of_several_a_claim_is_not_judged(tmp_path: Path) -> None:
    write_lines(tmp_path, "adafd/table1", table1({"AdaFD w/ ENWC": [70.0] * 5, "FedAvg": [69.0] * 5}))
    found = judged(tmp_path, "adafd-first-homogeneous")
    assert (found.verdict, found.here) == ("not run yet", None)
    assert {cell.row for cell in found.missing} == {"DS-FL", "MHAT", "FedKD"}
    assert [row[0] for row in lines(found)][1:] == ["· against FedAvg"]


def test_runs_are_paired_by_seed_and_by_their_test_rows(tmp_path: Path) -> None:
    values = {"AdaFD w/ ENWC": [70.0, 71.0, 72.0, 73.0, 90.0], "AdaFD w/ RNWC": [70.2, 71.1, 71.9, 73.0, 10.0]}

    def test_rows(run: GridRun) -> str:
        return run.row if run.experiment.seed == 4 else f"rows of {run.experiment.seed}"

    write_lines(tmp_path, "adafd/table1", table1(values), test=test_rows)
    found = judged(tmp_path, "adafd-enwc-rnwc")
    assert found.here is not None
    assert found.here.seeds == (0, 1, 2, 3)
    assert found.here.mean == pytest.approx(-0.05)
    assert found.verdict == "reproduced"


def test_two_seeds_decide_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path, "adafd/table1", table1({"AdaFD w/ ENWC": [70.0] * 2, "AdaFD w/ RNWC": [70.0] * 2}), seeds=2)
    found = judged(tmp_path, "adafd-enwc-rnwc")
    assert (found.verdict, found.why) == ("undecided", "fewer than three seeds")
    assert next(iter(lines(found)))[3:5] == ("+0.00 (2)", "–")


def test_a_difference_of_differences_joins_two_recipes(tmp_path: Path) -> None:
    abroad = {"FedID": [0.86, 0.87, 0.85], "MHAT": [0.83, 0.85, 0.81]}
    at_home = {"FedID": [0.91, 0.92, 0.90], "MHAT": [0.90, 0.92, 0.88]}
    for recipe, values in (("fedid/table3", abroad), ("fedid/table2", at_home)):
        write_lines(tmp_path, recipe, lambda run, v=values: v.get(run.row, [None] * 3)[run.experiment.seed], seeds=3)  # type: ignore[misc]
    found = judged(tmp_path, "fedid-cross-domain-gap").here
    assert found is not None
    assert found.mean == pytest.approx(np.mean([3 - 1, 2 - 0, 4 - 2]))
    assert found.interval == pytest.approx((2, 2))


def test_rounds_weights_and_samples_are_read_as_kept(tmp_path: Path) -> None:
    by_weight = {"beta=1": 0.3, "beta=5": 0.5, "beta=20": 0.9}
    write_lines(
        tmp_path, "adafd/figure4", lambda run: 0.7 if run.row in by_weight else None, seeds=3,
        weights=lambda run: {"1": {"a": by_weight[run.row], "b": 0.1}, "3": {"a": 0.25, "b": by_weight[run.row] - 0.1}},
    )  # fmt: skip
    sharper, equal = judged(tmp_path, "adafd-beta-weights").here, judged(tmp_path, "adafd-weights-converge").here
    assert sharper is not None
    assert equal is not None
    assert sharper.mean == pytest.approx(80 - 25)
    assert equal.mean == pytest.approx(50 - 40)
    curve = {"test": {"f1": {str(number): 0.5 + 0.01 * number for number in range(1, 8)}}}
    write_lines(tmp_path, "adafd/figure5", lambda run: 0.57, seeds=3, by_round=curve)
    down = judged(tmp_path, "adafd-rounds-down").here
    assert down is not None
    assert down.mean == pytest.approx(-2)
    late = {"test": {"accuracy": {"1": 0.2, "2": 0.8}}}
    early = {"test": {"accuracy": {"1": 0.6, "2": 0.8}}}
    for scale in ("medium", "small"):
        assert judged(tmp_path, "fedsnd-rounds-text").verdict == "not run yet"  # it is about scale small
        write_lines(
            tmp_path, "fedsnd/figure8", lambda run: 0.8, seeds=3, scale=scale,
            by_round=lambda run: early if "SND" in run.row else late,
        )  # fmt: skip
    area = judged(tmp_path, "fedsnd-rounds-text")
    assert area.here is not None
    assert area.here.mean == pytest.approx(20)
    assert [finding.against for finding in area.beside] == ["FedAvg, twice the rate"]
    write_lines(
        tmp_path, "feddrs/figure4", lambda run: 0.8, seeds=3,
        sampling=lambda run: {"teacher": {"1": 3.0, "100": 1.5 if "KLD" in run.row else 0.5}},
    )  # fmt: skip
    assert next(iter(lines(judged(tmp_path, "feddrs-kld"))))[3] == "+1.00 nats [+1.00, +1.00] (3)"


def test_the_page_says_what_to_run(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    text = page(judged_claims(folder), folder)
    assert f"Of {len(CLAIMS)} claims: " in text
    assert "    fedstill reproduce adafd/table1 --scale medium --keep evidence corpus.path=...\n" in text
    assert "    fedstill reproduce fedsnd/digits --scale medium --keep evidence\n" in text
    assert all(f'<a id="{name}"></a>' in text for name in CLAIMS)
    with pytest.raises(FedstillError, match="no folder"):
        judged_claims(tmp_path / "nowhere")


def test_what_the_scale_does_not_run_by_itself_is_named(tmp_path: Path) -> None:
    there = Cell(recipe="feddrs/table1", group="eight tasks", row="FedDRS(mixed)", column="alpha=0.05")
    claim = Claim(id="one", says="It is first", cell=there, against=Rivals(row="FedAvg"))
    text = page([judge(claim, Shelf(tmp_path))], tmp_path)
    command = "fedstill reproduce feddrs/table1 --scale medium"
    assert f'    {command} --only "alpha=0.05" --keep {tmp_path.name} corpus.path=...\n' in text


def test_the_page_in_docs_is_what_the_evidence_makes(tmp_path: Path) -> None:
    written = tmp_path / "claims.md"
    assert fedstill("show", "claims", "--from", str(ROOT / "evidence"), "--write", str(written)) == 0
    assert written.read_bytes() == (ROOT / "docs" / "claims.md").read_bytes(), "make docs/claims.md again"


def test_claims_are_shown_and_other_lists_take_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("show", "claims", "--from", str(ROOT / "evidence")) == 0
    assert "verdict" in capsys.readouterr().out
    assert fedstill("show", "models", "--from", "evidence") == 1
    assert "are for the claims" in " ".join(capsys.readouterr().err.split())
