"""Every command of the guide is one of the real command line, and the cheap ones run and print what pages show."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import fedstill
from fedstill.algorithms import known
from fedstill.algorithms.base import Algorithm
from fedstill.cli.main import app, main
from fedstill.cli.show import KINDS
from fedstill.common.events import Event, RoundDone
from fedstill.common.plugins import is_own
from fedstill.papers.figures.table import FIGURES
from fedstill.papers.recipe import recipe_path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
SMALL = ("clients=bow", "server=bow", "workers=1", "rounds=1", "train.epochs=1")
"""What makes a run of the examples take a second."""
RUN = {
    "own_data": ("workers=1",),
    "quickstart": SMALL,
    "commands": SMALL,
    "report": SMALL,
    "choosing": (),
    "audit": SMALL,
}
"""Pages whose commands are run, with what is added to their runs."""
ENDS_AT_ONCE = ("--help", "--version", "--install-completion", "--show-completion")


class Command(NamedTuple):
    """A command of a page, and what the page shows of its output."""

    page: str
    text: str
    shown: str = ""

    @property
    def words(self) -> list[str]:
        """What stands behind `fedstill`, without `--trust-code`, which may stand anywhere."""
        program, *words = shlex.split(self.text, comments=True)
        assert program == "fedstill"
        return [word for word in words if word not in ("--trust-code", "...")]


def in_blocks(page: str) -> list[Command]:
    """The commands on lines of their own, each with the fence that follows it."""
    found = re.finditer(r"^(?: {4})?(?:torchrun .* -m )?(fedstill .+)\n(?:\n```\n((?:.*\n)+?)```$)?", PAGES[page], re.M)
    return [Command(page, each[1], each[2] or "") for each in found]


def in_sentences(page: str) -> list[Command]:
    """The commands in the middle of a text."""
    text = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return [Command(page, " ".join(span.split())) for span in re.findall(r"`(fedstill [^`]+)`", text)]


BLOCKS = [command for page in PAGES for command in in_blocks(page)]
SENTENCES = [command for page in PAGES for command in in_sentences(page)]


@cache
def command_line() -> Any:
    """The real one, as click sees it."""
    return typer.main.get_command(app)


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command that the real command line finds in these words, and its parameters; nothing is run."""
    command = command_line()
    context = command.make_context("fedstill", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return context.command_path.removeprefix("fedstill "), context.params


def fault(command: Command, may_lack: bool) -> str | None:
    """What is wrong with a command, or None; a sentence may name a command without its arguments."""
    options = {name for each in command_line().params for name in each.opts} | {"--help"}
    if command.words[-1] in ENDS_AT_ONCE:
        return None if command.words[-1] in options else "there is no such option"
    try:
        name, given = parsed(command.words)
    except Exception as error:  # click's own, which typer hides
        is_lack = type(error).__name__ == "MissingParameter" or "requires an argument" in str(error)
        return None if may_lack and is_lack else f"{type(error).__name__}: {error}"
    keys = [word.partition("=")[0] for word in given.get("overrides") or ()]
    keys += [word.partition("=")[0] for word in map(str, (given.get("resume"),)) if "=" in word]
    if unknown := {key.partition(".")[0] for key in keys} - set(fedstill.Experiment.model_fields) - {"key"}:
        return f"no key of an experiment: {unknown}"
    wrong = {
        "reproduce": lambda: any(
            recipe_path(word) is None and not word.endswith(".yaml") for word in given["words"] if "=" not in word
        ),
        "figure": lambda: given["name"] is not None and given["name"] not in FIGURES,
        "show": lambda: not is_own(given["what"]) and given["what"] not in {*KINDS, *known(Algorithm)},
    }
    for argument in given.values():
        if isinstance(argument, str) and argument.isupper():  # FILE, RUN, NAME
            return None
    return "names nothing that there is" if wrong.get(name, lambda: False)() else None


def test_commands_are_found() -> None:
    assert len(BLOCKS) > 80
    assert len(SENTENCES) > 40
    assert {command.page for command in BLOCKS} >= {*RUN, "federation", "reproduce", "engines"}
    assert [command.shown.partition(":")[0] for command in in_blocks("own_data") if command.shown] == [
        "error",
        "orders",
        "orders",
    ]


def test_every_command_is_one_of_the_command_line() -> None:
    said = [(command, fault(command, may_lack=False)) for command in BLOCKS]
    said += [(command, fault(command, may_lack=True)) for command in SENTENCES]
    assert not [f"docs/{command.page}.md: {command.text}: {why}" for command, why in said if why is not None]


@pytest.mark.parametrize(
    "text",
    [
        "fedstill runn shops.yaml",
        "fedstill run shops.yaml --sedes 3",
        "fedstill federation jion kits/north",
        "fedstill run shops.yaml round=3",
        "fedstill reproduce adafd/table9",
        "fedstill show AdaFT",
        "fedstill figure adafd/fig99",
        "fedstill check",
    ],
)
def test_a_wrong_command_is_found_out(text: str) -> None:
    assert fault(Command("page", text), may_lack=False)


def typed(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Type a command; how it ended, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["fedstill", *words])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    return int(end.value.code or 0), f"{printed.out}\n{printed.err}"


def runs(folder: Path, rounds: int, interrupted: bool) -> None:
    """A run of the example, finished or not."""

    def tell(event: Event) -> None:
        if interrupted and isinstance(event, RoundDone):
            raise KeyboardInterrupt

    shutil.rmtree(folder, ignore_errors=True)
    experiment = fedstill.load_experiment("shops.yaml", [*SMALL, f"rounds={rounds}"])
    try:
        fedstill.run(experiment, folder, tell=tell)
    except KeyboardInterrupt:
        assert interrupted


def stand_in(folder: Path, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples, their reviews, a finished run of them, one alone, and the files that a page shows."""
    for path in [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.yaml")]:
        shutil.copy(path, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["make_reviews.py"])
    exec(compile(Path("make_reviews.py").read_text(), "make_reviews.py", "exec"), {"__name__": "__main__"})
    Path("x.yaml").write_text(Path("shops.yaml").read_text().replace("name: shops", "name: x"))
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE):
        Path(name).write_text(text)
    if page in ("commands", "report"):
        runs(Path("runs/shops/seed-0"), 1, interrupted=False)
        alone = fedstill.load_experiment("shops.yaml", [*SMALL, "algorithm=Local", "name=alone"])
        fedstill.run(alone, "runs/alone/seed-0", progress=False)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page == "own_data" else pytest.mark.slow) for page in RUN]
)
def test_the_commands_of_a_page_do_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(tmp_path, page, monkeypatch)
    for command in in_blocks(page):
        words = command.words
        if words[-1] in ENDS_AT_ONCE or (words[0] == "push" and not {"--dry-run", "--out"} & set(words)):
            continue  # nothing that a test does may leave this machine
        if "--resume" in words:
            more = any(word.startswith("rounds=") for word in words)
            runs(Path("runs/shops/seed-0"), 1 if more else 2, interrupted=not more)
        elif words[0] == "run":
            words += [*RUN[page], "--force"] if RUN[page] else []
        ended, printed = typed(words, monkeypatch, capsys)
        assert ended == int(command.shown.startswith("error:")), printed
        assert " ".join(command.shown.split()) in " ".join(printed.split())
    made = {
        "quickstart": ["shops.html", "labelled.csv", "by_books.csv", "runs/dsfl/seed-0/summary.json"],
        "own_data": ["labelled.csv", "orders-partition.png"],
        "commands": ["labelled.csv"],
        "audit": ["runs/x/seed-0/audit.json"],
        "report": ["runs/shops/seed-0/report.html", "report.html", "shops.html"],
    }
    assert all(Path(name).exists() for name in made.get(page, []))


def test_the_quick_start_shows_the_example() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", PAGES["quickstart"], re.DOTALL | re.MULTILINE)
    assert shown == (ROOT / "examples" / "shops.yaml").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name_once() -> None:
    assert sorted(re.findall(r"^::: fedstill\.(\w+)$", PAGES["reference"], re.MULTILINE)) == sorted(fedstill.__all__)
