"""The page of the claims: every claim with the paper's difference, ours, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from fedstill.common.errors import FedstillError
from fedstill.papers.claims import Cell, Claim, Finding, Judged, Shelf, Verdict, judge, read_claims, recipe_of, verdict
from fedstill.papers.evidence import Evidence
from fedstill.papers.side_by_side import MISSING
from fedstill.results.significance import FEWEST_SEEDS, p_text

HEADINGS = ("claim", "where", "paper", "here", "p", "verdict")
RULE = f"""\
What AdaFD, FedID, FedDRS and FedSND claim, in our words, and whether the runs in [evidence](../evidence/README.md) bear
it out. Models and rows are those of scale `medium` ([the scales](reproduce.md#the-scales)) or of one that the claim
names, smaller than the papers': a verdict is about the claim at this size.

**The rule.** A difference is that of two cells with the same seed and the same test rows, in points unless nats are
named. *Here* has its mean over seeds, the 95% interval (Student's t) and the number of seeds; p is that of the paired
t-test ({FEWEST_SEEDS} seeds are needed for both).

- **reproduced**: the interval lies above zero, that is on the claimed side.
- **not reproduced**: it lies below zero; or zero is inside and the paper's difference lies above it.
- **undecided**: zero is inside and the paper's difference is not above, or none is printed: more seeds are needed.
- **not run yet**: there are no runs; the commands stand at the end of this page.
- **not testable here**: for the reason given.

A claim that two are as good as each other is reproduced if the whole interval is within one point on either side, not
reproduced if all of it is outside, else undecided (that one is no better: on the upper side only); the point is ours.
A claim over several is judged by the strongest of them, the one with the smallest difference, in the paper and here
each its own; the others follow in lines of their own. A line *beside it* is a control of ours, which the paper does
not have and no verdict depends on. Nothing is corrected for the number of claims: one interval in twenty misses by
chance."""


def judged_claims(folder: Path) -> list[Judged]:
    """All claims, judged by an evidence folder."""
    if not folder.is_dir():
        raise FedstillError(f"there is no folder {folder}: give the folder of the kept runs with --from DIR.")
    shelf = Shelf(folder)
    return [judge(claim, shelf) for claim in read_claims()]


def page(judged: Sequence[Judged], folder: Path) -> str:
    """The page as Markdown."""
    blocks = ["# Claims, one by one", RULE, _tally(judged)]
    for paper in dict.fromkeys(_paper(each.claim) for each in judged):
        rows = [HEADINGS, ("---",) * len(HEADINGS)]
        for each in judged:
            rows += _marked(each) if _paper(each.claim) == paper else []
        blocks += [f"## {paper}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    if commands := list(_commands(judged, folder)):
        shown = "\n".join(f"    {command}" for command in commands)
        blocks += ["## What is still to run", _HOW.format(folder=folder.name), shown]
    blocks.append(f"This page is written by `fedstill show claims --from {folder.name} --write docs/claims.md`.")
    return "\n\n".join(blocks) + "\n"


def _marked(judged: Judged) -> list[tuple[str, ...]]:
    """A claim's lines for Markdown: with an anchor, and the verdict in bold."""
    (says, *cells, state), *more = (tuple(cell.replace("|", "\\|") for cell in row) for row in lines(judged))
    state = state.replace(judged.verdict, f"**{judged.verdict}**", 1)
    return [(f'<a id="{judged.claim.id}"></a>{says}', *cells, state), *more]


_HOW = """\
On a GPU ([the scales](reproduce.md#the-scales)). `...` is the folder of the data; FedID's recipes take GLUE from the
Hub unless `corpus.path=FOLDER` is given. Finished runs are kept as lines in `{folder}`; then make this page again."""


def lines(judged: Judged) -> Iterator[tuple[str, ...]]:
    """A claim's line, then one for each of several rivals that was run and for each control."""
    claim, several = judged.claim, len(judged.findings) > 1
    says = f"{claim.says}. {claim.note}." if claim.note else claim.says
    state = judged.verdict + (f": {judged.why}" if judged.why else "")
    yield says, claim.where, _theirs(judged.paper, several), *_ours(judged.here, several), state
    for each in judged.findings if several else ():
        if each.seeds:
            word, why = verdict(each.interval, each.paper, claim.band)
            state = word + (f": {why}" if why else "")
            yield f"· against {each.against}", "", _theirs(each), *_ours(each), state
    for each in judged.beside:
        yield f"· beside it, against {each.against}", "", MISSING, *_ours(each), ""


def _paper(claim: Claim) -> str:
    return claim.where.partition(",")[0]


def _theirs(finding: Finding | None, several: bool = False) -> str:
    if finding is None or finding.paper is None:
        return MISSING
    return f"{finding.paper:+.2f}" + (f" over {finding.against}" if several else "")


def _ours(finding: Finding | None, several: bool = False) -> tuple[str, str]:
    if finding is None or not finding.seeds:
        return MISSING, MISSING
    mean = f"{finding.mean:+.2f}{finding.unit}" + (f" over {finding.against}" if several else "")
    within = " [{:+.2f}, {:+.2f}]".format(*finding.interval) if finding.interval else ""
    return f"{mean}{within} ({len(finding.seeds)})", MISSING if finding.p is None else p_text(finding.p)


def _tally(judged: Sequence[Judged]) -> str:
    many = Counter(each.verdict for each in judged)
    counted = ", ".join(f"{many[name]} {name}" for name in get_args(Verdict) if many[name])
    return f"Of {len(judged)} claims: {counted}."


def _commands(judged: Sequence[Judged], folder: Path) -> Iterator[str]:
    """For every recipe the commands that make the missing runs, as few as possible."""
    lacking: dict[tuple[str, str], dict[tuple[str, ...], None]] = {}
    for each in judged:
        if each.verdict == "not run yet":
            for cell in each.missing:
                lacking.setdefault((cell.recipe, cell.scale), {})[_left_out(cell)] = None
    for (name, scale), many in sorted(lacking.items()):
        recipe = recipe_of(name)
        if scale not in recipe.scales:
            yield f"# {name} has no scale {scale} yet"
            continue
        asks = "".join(f" {key}=..." for key in recipe.asks | recipe.scales[scale].asks)
        for words in sorted(many):
            only = "".join(f' --only "{word}"' for word in words)
            yield f"{Evidence(folder, name, scale).command}{only} --keep {folder.name}{asks}"


def _left_out(cell: Cell) -> tuple[str, ...]:
    """Names of the cell that its scale does not run by itself."""
    recipe = recipe_of(cell.recipe)
    if cell.scale not in recipe.scales:
        return ()
    sizes = recipe.scales[cell.scale]
    asked = (sizes.groups, cell.group), (sizes.columns, cell.column), (sizes.rows, cell.row)
    return tuple(name for chosen, name in asked if chosen and name not in chosen)
