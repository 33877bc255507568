"""From what a person names to the runs of a recipe: run folders, kept lines; or the recipe, if nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment, from_source
from fedstill.config.source import Source
from fedstill.papers.evidence import Evidence, kept_scales, recall
from fedstill.papers.grid import Cell, Grid, GridRun, cell_names, check_scale, plan_grid, selected
from fedstill.papers.recipe import Recipe, RecipeColumn, RecipeRow, Variation, read_recipe, recipe_path
from fedstill.papers.side_by_side import Outcomes
from fedstill.results.runs import Run, load_runs


@dataclass(frozen=True)
class Need:
    """What a figure is made from: a recipe; other runs will do if the figure means something without its rows."""

    figure: str
    recipe: str
    other_runs: bool = False

    def read(self) -> tuple[Source, Recipe]:
        """The recipe, and where it stands."""
        return _read(self.recipe)

    def command(self, scale: str = "small") -> str:
        """What makes the runs, or the figure itself where nothing is trained."""
        recipe = self.read()[1]
        asks = "".join(f" {key}=..." for key in recipe.asks | recipe.scales[scale].asks)
        at = "" if scale == "small" else f" --scale {scale}"
        return f"fedstill {f'reproduce {self.recipe}' if recipe.is_trained else f'figure {self.figure}'}{at}{asks}"

    def how(self, scale: str = "small") -> str:
        """The command, and how long it takes."""
        takes = self.read()[1].scales[scale].takes
        return f"`{self.command(scale)}`" + (f" ({takes})" if takes else "")


@cache
def _read(name: str) -> tuple[Source, Recipe]:
    path = recipe_path(name)
    assert path is not None, name
    source = Source.read(path)
    return source, read_recipe(source)


@dataclass(frozen=True)
class Given:
    """What a person gave: paths and key=value; a folder of kept lines; a scale."""

    words: Sequence[str] = ()
    kept: Path | None = None
    scale: str | None = None

    @property
    def paths(self) -> list[Path]:
        """The words that are no key=value."""
        return [Path(word) for word in self.words if "=" not in word or Path(word).exists()]

    @property
    def overrides(self) -> list[str]:
        """The words that are."""
        return [word for word in self.words if "=" in word and not Path(word).exists()]


def gather(need: Need, given: Given) -> tuple[Grid, Outcomes]:
    """The runs of a figure, as a grid with what came of them."""
    source, recipe = need.read()
    if given.scale is not None:
        check_scale(source, recipe, given.scale)
    if not recipe.is_trained and not given.paths and given.kept is None:
        return plan_grid(source, given.scale or "small", Path(), given.overrides), {}
    if given.overrides:
        raise FedstillError(
            f"{given.overrides[0]}: {need.figure} is drawn from finished runs; key=value is for "
            f"`fedstill reproduce {need.recipe}`, which makes them."
        )
    if given.kept is not None and given.paths:
        raise FedstillError("give run folders or --from FOLDER, not both.")
    if given.kept is not None:
        return _recalled(source, Evidence(given.kept, need.recipe, ""), need, given.scale)
    if len(given.paths) == 1 and (kept := _kept_file(given.paths[0], need)) is not None:
        return kept_runs(kept, need, given.scale)
    return _from_folders(need, recipe, _folders(need, given), given.scale)


def _folders(need: Need, given: Given) -> list[Path]:
    """The folders given; else where `reproduce` puts the runs."""
    if given.paths:
        return given.paths
    usual = Path("runs") / need.recipe / (given.scale or "small")
    if not usual.is_dir():
        raise FedstillError(
            f"{need.figure} is drawn from runs, and there are none in {usual}: make them with {need.how()}, or give "
            "run folders, or --from FOLDER with kept lines."
        )
    return [usual]


def _kept_file(path: Path, need: Need) -> Path | None:
    """The file of kept lines that a path means, if it means one."""
    if path.is_file():
        return path
    inside = path / f"{need.recipe}.jsonl"
    return inside if inside.is_file() else None


def kept_runs(file: Path, need: Need, scale: str | None) -> tuple[Grid, Outcomes]:
    """The runs in a file of kept lines, whose recipe its name tells."""
    for name, folder in ((f"{file.parent.name}/{file.stem}", file.parent.parent), (file.stem, file.parent)):
        if file.suffix == ".jsonl" and (path := recipe_path(name)) is not None:
            if name != need.recipe and not need.other_runs:
                raise FedstillError(f"{file} has runs of {name}, and {need.figure} needs those of {need.how()}.")
            return _recalled(Source.read(path), Evidence(folder, name, ""), need, scale)
    raise FedstillError(
        f"{file} is neither a run folder nor a file of kept lines, such as evidence/{need.recipe}.jsonl."
    )


def _recalled(source: Source, evidence: Evidence, need: Need, scale: str | None) -> tuple[Grid, Outcomes]:
    if not evidence.lines.exists():
        raise FedstillError(
            f"{evidence.lines} is not there: no run of {need.figure} is kept in {evidence.folder}. Make them with "
            f"{need.how()}, and --keep {evidence.folder} after it."
        )
    there = kept_scales(evidence)
    largest = next((name for name in read_recipe(source).scales if name in there), "small")
    return recall(source, replace(evidence, scale=scale or largest))


def _from_folders(need: Need, recipe: Recipe, folders: Sequence[Path], scale: str | None) -> tuple[Grid, Outcomes]:
    """The runs in some folders: each is a cell of the recipe by its name; or, if none is, a row of its own."""
    runs = load_runs(folders)
    _refuse_twins(runs)
    guessed = scale or _scale_of(recipe, runs)
    cells = cell_names(recipe, guessed)
    strangers = [run for run in runs if run.name not in cells]
    if strangers and (len(strangers) < len(runs) or not need.other_runs):
        raise FedstillError(
            f"{strangers[0].folder} is no run of {need.figure}: its runs are made by {need.how(guessed)}."
        )
    if strangers:
        recipe, cells = _as_rows(recipe, runs)
    experiments: dict[str, Experiment] = {}
    found = []
    for run in runs:
        if run.name not in experiments:  # seeds of a cell differ in nothing that a figure shows
            experiments[run.name] = _experiment(run.folder)
        found.append(GridRun(*cells[run.name], experiments[run.name], run.folder))
    grid = Grid(recipe, guessed, selected(recipe, guessed, found), tuple(found))
    return grid, {run.folder: run for run in runs} | dict.fromkeys(runs.skipped, "not finished")


def _experiment(folder: Path) -> Experiment:
    file = folder / "experiment.yaml"
    if not file.is_file():
        raise FedstillError(f"{file} is missing: {folder} is no whole run.")
    return from_source(Source.read(file))


def _refuse_twins(runs: Sequence[Run]) -> None:
    """Two runs of one cell and seed are of two scales or attempts, whose mean would mean nothing."""
    seen: dict[tuple[str, int], Run] = {}
    for run in runs:
        if (twin := seen.setdefault((run.name, run.seed), run)) is not run:
            raise FedstillError(
                f"{twin.folder} and {run.folder} are the same run twice: give a folder with one of them."
            )


def _scale_of(recipe: Recipe, runs: Sequence[Run]) -> str:
    """The scale that the runs' folder is named after, else the one with most of their names."""
    above = [part for run in runs[:1] for part in run.folder.resolve().parts[::-1] if part in recipe.scales]
    known = {scale: cell_names(recipe, scale) for scale in recipe.scales}
    most = max(reversed(recipe.scales), key=lambda scale: sum(run.name in known[scale] for run in runs))
    return above[0] if above else most


def _as_rows(recipe: Recipe, runs: Sequence[Run]) -> tuple[Recipe, dict[str, Cell]]:
    """A recipe with a row for each method among the runs, or for each name where names share a method."""
    names = {run.name: run for run in runs}
    methods = [run.method for run in names.values()]
    rows = {name: run.method if methods.count(run.method) == 1 else name for name, run in names.items()}
    metric = runs[0].metric
    if any(run.metric != metric for run in runs):
        raise FedstillError("these runs have different metrics, which no axis can show together.")
    changes = {
        "groups": {"": Variation()},
        "rows": {row: RecipeRow(algorithm=names[name].algorithm) for name, row in rows.items()},
        "columns": {"": RecipeColumn(shows=[("test", metric)])},
        "values": {},
    }
    own: dict[str, Cell] = {name: ("", row, ("",)) for name, row in rows.items()}
    return recipe.model_copy(update=changes), own
