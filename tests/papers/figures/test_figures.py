"""Every figure by name from kept lines or run folders: its series and labels, the same bytes each time, and errors."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from fedstill.common.errors import FedstillError
from fedstill.config.source import Source
from fedstill.papers.figures.material import Given
from fedstill.papers.figures.table import FIGURES, draw, find, lines, of_recipe, sheet
from fedstill.papers.grid import plan_grid
from fedstill.papers.recipe import recipe_files, recipe_path
from fedstill.results.drawing.panels import Bars, Clouds, Heat, Lines
from tests.cli.test_cli import fedstill
from tests.papers.figures.made_up import CLIENTS, score_of, write_lines
from tests.results.conftest import write_run

pytest.importorskip("matplotlib")

EXPECTED = {
    # name -> how many panels, and how many of which series: lines (0), levels, heat maps, bars of all series
    "adafd/fig3": (
        4,
        {"bar": 4 * 2 * len(CLIENTS)},
        ("homogeneous, training loss", "heterogeneous, weight", "all rows"),
    ),
    "adafd/fig4": (5, {"heat": 5}, ("beta=1", "beta=20", "automotive", "weight", "round")),
    "adafd/fig5": (1, {"line": 6}, ("FedAvg", "AdaFD w/ ENWC", "F1 (points)")),
    "adafd/fig6": (2, {"line": 4}, ("training loss", "clients' F1", "Local", "epochs of training", "12")),
    "fedid/fig2": (1, {"line": 5}, ("10%", "100%", "FedID w/ rehearsal", "public rows")),
    "fedid/fig3": (1, {"line": 5}, ("10%", "labelled rows")),
    "fedid/fig4": (1, {"line": 5}, ("5", "10", "clients")),
    "fedsnd/fig7": (2, {"line": 12}, ("digits, alpha=200", "digits, alpha=0.5", "FedSND")),
    "fedsnd/fig8": (2, {"line": 12}, ("AgNews, alpha=200", "FedHe")),
    "fedsnd/fig9": (2, {"line": 10}, ("exp4 (both)", "accuracy (points)")),
    "fedsnd/fig10": (4, {"line": 12}, ("xi=0.1", "epochs=5", "epochs=10", "epochs=20")),
    "feddrs/fig4": (3, {"line": 10}, ("(a) the teacher on the samples", "CE, lambda=0.1, without balance", "step")),
    "trust/attacks": (1, {"heat": 1}, ("AdaFD, mean", "flip, 20%", "attack, share of liars")),
    "trust/bytes": (1, {"line": 9}, ("fp32", "cached, 4 bits", "10.0 KB")),
    "trust/privacy": (1, {"line": 2, "level": 2}, ("head", "votes", "no privacy", "3")),
}
FEW_ATTACKS = ("nobody lies", "flip, 20%", "AdaFD, mean", "AdaFD, median", "LogitAvg, mean")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of all recipes that are trained."""
    folder = tmp_path_factory.mktemp("kept")
    for name in EXPECTED:
        write_lines(folder, FIGURES[name].recipe, only=FEW_ATTACKS if name == "trust/attacks" else ())
    return folder


def texts(svg: Path) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.parse(svg).iter() if node.tag.endswith("}text")]


def series(svg: Path) -> dict[str, int]:
    """How many of which series a picture has."""
    ids = [node.get("id", "") for node in ElementTree.parse(svg).iter()]
    kinds = [match[1] for each in ids if (match := re.fullmatch(r"(line|level|heat|bar|cloud)-[\d-]+", each))]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_figure_has_its_panels_series_and_labels(name: str, kept: Path, tmp_path: Path) -> None:
    panels, wanted, labels = EXPECTED[name]
    path = tmp_path / "figure.svg"
    drawn = draw(name, Given(kept=kept), path)
    assert len(drawn.panels) == panels
    assert series(path) == wanted
    assert not set(labels) - set(texts(path))
    assert any(text.endswith((".", "deviation.")) and " runs; means over 2 seeds" in text for text in texts(path))


def test_the_note_says_where_some_means_are_over_fewer_seeds(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "kept")
    path = tmp_path / "kept" / "adafd" / "figure5.jsonl"
    *most, last = path.read_text().splitlines()
    assert json.loads(last)["seed"] == 1
    path.write_text("\n".join(most) + "\n")
    drawn = sheet("adafd/fig5", Given(kept=tmp_path / "kept"))
    assert f"from {len(most)} runs; means over 1 to 2 seeds; " in drawn.note


def test_all_figures_of_the_papers_are_there_and_their_recipes_say_how_long_they_take() -> None:
    papers = [f"adafd/fig{n}" for n in (1, 3, 4, 5, 6)] + [f"fedid/fig{n}" for n in (2, 3, 4)]
    papers += [f"fedsnd/fig{n}" for n in range(6, 11)] + ["feddrs/fig3", "feddrs/fig4"]
    assert list(FIGURES) == [*papers, "trust/attacks", "trust/bytes", "trust/privacy"]
    assert {figure.recipe for figure in FIGURES.values()} <= recipe_files().keys()
    assert all(takes for _, _, _, takes in lines())
    assert (of_recipe("adafd/figure4"), of_recipe("adafd/table1")) == ("adafd/fig4", None)


def test_numbers_are_means_over_seeds(kept: Path) -> None:
    (shown,) = sheet("adafd/fig5", Given(kept=kept)).panels
    assert isinstance(shown, Lines)
    by_name = {line.name: line for line in shown.lines}
    means = [100 * (score_of(1, 0, number) + score_of(1, 1, number)) / 2 for number in (1, 2, 3, 4)]
    assert by_name["DS-FL"].up == pytest.approx(means)
    assert by_name["DS-FL"].spread == pytest.approx([2 / 2**0.5] * 4)
    heat = sheet("adafd/fig4", Given(kept=kept)).panels[1]
    assert isinstance(heat, Heat)
    assert heat.values[2] == pytest.approx([2 / 5] * 4)  # health counts double in the second row
    assert heat.title == f"beta=5\nF1 {100 * (score_of(1, 0, 4) + 0.01):.1f}"


def test_losses_and_weights_are_means_over_rounds_by_client(kept: Path) -> None:
    losses, weights, *_ = sheet("adafd/fig3", Given(kept=kept)).panels
    assert isinstance(losses, Bars)
    assert isinstance(weights, Bars)
    mean = (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    assert losses.bars[0].heights == pytest.approx([mean + 0.1 * len(name) for name in losses.places])
    assert [bar.name for bar in weights.bars] == ["all rows", "downsampled"]
    assert sum(weights.bars[1].heights) == pytest.approx(1)


def test_clients_losses_and_scores_are_by_epoch_of_training(kept: Path) -> None:
    loss, score = sheet("adafd/fig6", Given(kept=kept)).panels
    assert isinstance(loss, Lines)
    assert isinstance(score, Lines)
    assert list(loss.lines[0].across) == [3, 6, 9, 12]  # three epochs a round
    lengths = sum(map(len, CLIENTS)) / len(CLIENTS)
    assert loss.lines[0].up == pytest.approx([1 / number + 0.1 * lengths for number in (1, 2, 3, 4)])
    assert score.lines[0].up[0] == pytest.approx(100 * (score_of(0, 0, 1) + 0.01))


def test_an_attack_is_a_column_a_method_and_blend_a_row_and_a_cell_without_runs_is_empty(kept: Path) -> None:
    (heat,) = sheet("trust/attacks", Given(kept=kept)).panels
    assert isinstance(heat, Heat)
    assert heat.columns == ("nobody lies", "flip, 20%")
    assert heat.rows == ("AdaFD, mean", "AdaFD, median", "LogitAvg, mean")
    assert heat.rules == (2,)
    assert heat.values[0][0] == pytest.approx(100 * (score_of(0, 0, 4) + 0.01))


def test_epsilon_is_what_the_experiment_promises(kept: Path) -> None:
    (shown,) = sheet("trust/privacy", Given(kept=kept)).panels
    assert isinstance(shown, Lines)
    assert {line.name: list(line.across) for line in shown.lines} == {"head": [1, 3, 8], "votes": [8]}
    assert set(shown.levels or ()) == {"no privacy", "head, without noise"}


def test_the_same_runs_make_the_same_bytes(kept: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        draw("trust/privacy", Given(kept=kept), path)
    assert first.read_bytes() == second.read_bytes()


# Run folders


def run_folders(folder: Path, recipe: str, *only: str) -> Path:
    """Finished runs of a recipe at scale small, as `reproduce` leaves them."""
    path = recipe_path(recipe)
    assert path is not None
    for run in plan_grid(Source.read(path), "small", folder, seeds=1, only=only).runs:
        written = write_run(folder, run.row, name=run.experiment.name)
        (written / "experiment.yaml").write_text(yaml.safe_dump(run.experiment.model_dump(mode="json")))
    return folder


def test_run_folders_are_known_by_their_names(tmp_path: Path) -> None:
    runs = run_folders(tmp_path / "small", "trust/privacy")
    (runs / "votes-epsilon-8" / "seed-1").mkdir()
    drawn = sheet("trust/privacy", Given([str(runs)]))
    assert drawn.note == "Drawn by fedstill from 6 runs, 1 unfinished left out; one seed."
    (shown,) = drawn.panels
    assert isinstance(shown, Lines)
    assert {line.name: list(line.across) for line in shown.lines} == {"head": [1, 3, 8], "votes": [8]}


def test_without_folders_the_runs_are_where_reproduce_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FedstillError, match=r"there are none in runs/trust/bytes/small: make them with `fedstill repro"
    ):
        sheet("trust/bytes", Given())
    run_folders(tmp_path / "runs/trust/bytes/small", "trust/bytes", "fp32", "int8")
    (shown,) = sheet("trust/bytes", Given()).panels
    assert isinstance(shown, Lines)
    assert [line.name for line in shown.lines] == ["fp32", "int8"]
    assert list(shown.lines[0].across) == [2_000_000]


def test_other_runs_are_rows_by_their_methods_where_the_figure_can_show_them(tmp_path: Path, reviews: Path) -> None:
    corpus = {"path": str(reviews), "text": ["title", "body"], "label": "stars", "domain": "shop"}
    for method in ("AdaFD", "LogitAvg"):
        folder = write_run(tmp_path / "mine", method)
        (folder / "experiment.yaml").write_text(yaml.safe_dump({"corpus": corpus, "partition": {"public": 0.1}}))
        line = '{"round": 1, "party": "server", "stage": "distilled", "split": "test", "f1": 0.5}\n'
        (folder / "metrics.jsonl").write_text(line)
    words = [str(tmp_path / "mine")]
    drawn = sheet("adafd/fig5", Given(words))
    assert drawn.title == "As AdaFD, Figure 5, from other runs"
    (shown,) = drawn.panels
    assert isinstance(shown, Lines)
    assert [(line.name, list(line.up)) for line in shown.lines] == [("AdaFD", [50.0]), ("LogitAvg", [50.0])]
    with pytest.raises(FedstillError, match=r"nothing in these runs can be shown as adafd/fig4"):
        sheet("adafd/fig4", Given(words))
    with pytest.raises(FedstillError, match=r"is no run of fedid/fig2: its runs are made by `fedstill reproduce fedid"):
        sheet("fedid/fig2", Given(words))
    (clouds,) = sheet("adafd/fig1", Given(words)).panels
    assert isinstance(clouds, Clouds)
    assert {name: len(points) for name, points in clouds.clouds.items()} == dict.fromkeys(
        ("books", "garden", "toys"), 174 // 3
    )
    draw("adafd/fig1", Given(words), tmp_path / "clouds.svg")
    assert series(tmp_path / "clouds.svg") == {"cloud": 3}


def test_where_nothing_is_trained_the_recipe_is_enough() -> None:
    drawn = sheet("fedsnd/fig6", Given())
    assert [panel.title for panel in drawn.panels] == [f"digits, alpha={alpha}" for alpha in (200, 5, 1, 0.5)]
    assert all(isinstance(panel, Heat) and len(panel.rows) == len(panel.columns) == 10 for panel in drawn.panels)
    assert drawn.note == "Nothing is trained for this."
    with pytest.raises(FedstillError, match=r"AdaFD, Figure 1 needs the folder .*: give it as corpus.path="):
        sheet("adafd/fig1", Given())


# Mistakes


def test_a_kept_file_of_another_recipe_is_shown_only_where_that_means_something(kept: Path) -> None:
    with pytest.raises(FedstillError, match=r"figure5.jsonl has runs of adafd/figure5, and fedid/fig2 needs those of"):
        sheet("fedid/fig2", Given([str(kept / "adafd/figure5.jsonl")]))
    assert len(sheet("adafd/fig4", Given([str(kept / "adafd/figure5.jsonl")])).panels) == 6
    assert len(sheet("adafd/fig4", Given([str(kept)])).panels) == 5


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    runs = run_folders(tmp_path / "a", "trust/bytes", "fp32")
    shutil.copytree(runs, tmp_path / "b")
    with pytest.raises(FedstillError, match=r"a/fp32/seed-0 and .*b/fp32/seed-0 are the same run twice"):
        sheet("trust/bytes", Given([str(tmp_path / "a"), str(tmp_path / "b")]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["adafd/fig9"], "there is no figure 'adafd/fig9'"),
        (["adafd/fig4", "--from", "nowhere"], "no run of adafd/fig4 is kept in nowhere"),
        (["adafd/fig4", "--from", "nowhere", "runs"], "not both"),
        (["adafd/fig4", "rounds=3"], "rounds=3: adafd/fig4 is drawn from finished runs"),
        (["adafd/fig4", "--out", "figure.jpg"], "pictures are PNG, SVG or PDF"),
        (["adafd/fig4", "missing"], "missing is not a folder"),
        (["adafd/fig4", "--scale", "tiny"], "figure4.yaml has no such scale; known: medium, paper, small."),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedstill("figure", *words) == 1
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FedstillError, match=r'run `pip install "fedstill\[figures\]"`'):
        draw("adafd/fig5", Given(kept=kept), tmp_path / "never.png")
    assert not (tmp_path / "never.png").exists()


def test_the_command_lists_all_figures_and_says_where_it_has_drawn_one(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedstill("figure") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in FIGURES)
    assert fedstill("figure", "trust/bytes", "--from", str(kept)) == 0
    assert "Drawn: trust-bytes.png" in capsys.readouterr().out
    assert (tmp_path / "trust-bytes.png").read_bytes().startswith(b"\x89PNG")
    assert find("AdaFD/Figure4") == "adafd/fig4"
