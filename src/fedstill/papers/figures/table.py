"""The table of all figures by name: what each shows, the recipe of its runs, and the function that draws it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.papers.figures import charts, trust
from fedstill.papers.figures.cells import Panels
from fedstill.papers.figures.material import Given, Need, gather
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import Outcomes
from fedstill.results.drawing.draw import check_format, save
from fedstill.results.drawing.panels import Heat, Sheet
from fedstill.results.runs import Run


@dataclass(frozen=True)
class Figure:
    """A figure: the recipe of its runs, what it shows, and how."""

    recipe: str
    shows: str
    draw: Callable[[Grid, Outcomes], Panels]
    abreast: int = 2
    """The most panels side by side."""
    other_runs: bool = False
    """Whether it can show runs that are not its recipe's, each method as a row."""


FIGURES = {
    "adafd/fig1": Figure(
        "adafd/figure1", "texts of the clients on two principal components of TF-IDF", charts.languages, other_runs=True
    ),
    "adafd/fig3": Figure(
        "adafd/figure3",
        "losses and weights of the clients, all rows and fewer",
        charts.losses_and_weights,
        other_runs=True,
    ),
    "adafd/fig4": Figure(
        "adafd/figure4", "weights of the clients by round and beta", charts.weights, 5, other_runs=True
    ),
    "adafd/fig5": Figure("adafd/figure5", "F1 by round", charts.first_by_round, other_runs=True),
    "adafd/fig6": Figure(
        "adafd/figure6", "loss and F1 of the clients by epoch, alone and with AdaFD", charts.epochs, other_runs=True
    ),
    "fedid/fig2": Figure("fedid/figure2", "accuracy by size of the public set", charts.sweep("public rows")),
    "fedid/fig3": Figure("fedid/figure3", "accuracy by size of the labelled set", charts.sweep("labelled rows")),
    "fedid/fig4": Figure("fedid/figure4", "accuracy by number of clients", charts.sweep("clients")),
    "fedsnd/fig6": Figure(
        "fedsnd/figure6", "rows of each label by client, for four alphas", charts.holdings, 2, other_runs=True
    ),
    "fedsnd/fig7": Figure("fedsnd/figure7", "accuracy on images by round", charts.by_round, 4, other_runs=True),
    "fedsnd/fig8": Figure("fedsnd/figure8", "accuracy on texts by round", charts.by_round, 4, other_runs=True),
    "fedsnd/fig9": Figure("fedsnd/figure9", "ablation by round", charts.by_round, 4),
    "fedsnd/fig10": Figure("fedsnd/figure10", "noise threshold and local epochs by round", charts.hyperparameters, 4),
    "feddrs/fig3": Figure(
        "feddrs/figure3", "rows of each task by client, for three alphas", charts.holdings, 1, other_runs=True
    ),
    "feddrs/fig4": Figure(
        "feddrs/figure4", "quality of samples by step, and the balance trick by round", charts.samples_and_balance, 3
    ),
    "trust/attacks": Figure("trust/attacks", "F1 of methods and blends under every attack", trust.attacks),
    "trust/bytes": Figure("trust/bytes", "F1 against bytes, by codec", trust.score_and_bytes),
    "trust/privacy": Figure("trust/privacy", "F1 against epsilon, by mechanism", trust.score_and_epsilon),
}


NOTHING = "Nothing is trained for this."


def find(name: str) -> str:
    """A figure's name as the table has it; `figure4` is `fig4`."""
    known = name.lower().removesuffix(".yaml").replace("/figure", "/fig")
    if known not in FIGURES:
        raise FedstillError(f"there is no figure {name!r}; {nearest(known, FIGURES)} `fedstill figure` lists them.")
    return known


def of_recipe(recipe: str) -> str | None:
    """The name of the figure that is made from a recipe."""
    return next((name for name, figure in FIGURES.items() if figure.recipe == recipe), None)


def draw(name: str, given: Given, out: Path) -> Sheet:
    """Draw a figure into a file."""
    check_format(out)
    drawn = sheet(name, given)
    save(drawn, out)
    return drawn


def sheet(name: str, given: Given) -> Sheet:
    """A figure as data."""
    figure = FIGURES[name]
    need = Need(name, figure.recipe, figure.other_runs)
    grid, outcomes = gather(need, given)
    panels = figure.draw(grid, outcomes)
    if not panels:
        raise FedstillError(f"nothing in these runs can be shown as {name}; its runs are made by {need.how()}.")
    recipe = need.read()[1]
    title = recipe.title if recipe.paper == "no paper" else f"{recipe.paper}: {recipe.title}"
    if grid.recipe != recipe:
        title = f"As {recipe.paper}, from other runs"
    return Sheet(title, tuple(panels), figure.abreast, _note(outcomes, panels) if recipe.is_trained else NOTHING)


def _note(outcomes: Outcomes, panels: Panels) -> str:
    """How many runs it is made from, and what a band is."""
    runs = [run for run in outcomes.values() if isinstance(run, Run)]
    seeds = Counter((name, method) for name, method, _ in {(run.name, run.method, run.seed) for run in runs}).values()
    most = max(seeds, default=0)
    is_spread = most > 1 and not any(isinstance(panel, Heat) for panel in panels)
    band = "; band or whisker: their standard deviation" if is_spread else ""
    left_out = f", {len(outcomes) - len(runs)} unfinished left out" if len(outcomes) > len(runs) else ""
    fewest = f"{min(seeds)} to " if min(seeds, default=0) < most else ""
    means = f"means over {fewest}{most} seeds" if most > 1 else "one seed"
    return f"Drawn by fedstill from {len(runs)} runs{left_out}; {means}{band}."


def lines() -> list[tuple[str, str, str, str]]:
    """Every figure: its name, what it shows, and at scale small what makes its runs and how long that takes."""
    needs = {name: Need(name, figure.recipe) for name, figure in FIGURES.items()}
    return [
        (name, FIGURES[name].shows, need.command(), need.read()[1].scales["small"].takes)
        for name, need in needs.items()
    ]
