"""What each member of a federation had alone, what it has after it, and why it hurts where it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedstill.common.words import listed
from fedstill.parties.party import ONE_CLASS, ONE_CLASS_BLEND
from fedstill.plan.caution import Caution
from fedstill.wire.messages import SERVER, STAGES

Measurement = Mapping[str, Any]

ALONE = "alone"
"""The folder of a run with the run in which everybody works alone for as many rounds."""
POINT = 0.01
"""A member that lost more than this is called worse off."""
SURE = 0.05
"""A loss is more than chance if its p is below this."""
NOTICEABLE = 2.0
"""Models of a kind have a noticeable share of the weight if it is so many times their share of the clients."""


@dataclass(frozen=True)
class Score:
    """A member's score on some test rows, alone and after the last round."""

    alone: float
    after: float

    @property
    def gain(self) -> float:
        """Negative where the federation did harm."""
        return self.after - self.alone

    @property
    def is_loss(self) -> bool:
        """Whether more than a point was lost, as it is shown: -1.0 is not more than one."""
        return round(self.gain, 3) < -POINT


@dataclass(frozen=True)
class Member:
    """A client's scores on its own test rows and on those of all clients, as far as they were measured."""

    name: str
    model: str
    own: Score | None
    every: Score | None
    giver: str = ""
    """Whose model it has at the end: its own, or the server's."""
    p: float | None = None
    """Of a loss: how likely one of this size is by the chance of its test rows, as far as that is known."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Member:
        """The member that a summary holds."""
        own, every = (None if (score := values[what]) is None else Score(**score) for what in ("own", "every"))
        return cls(values["name"], values["model"], own, every, values.get("giver", ""), values.get("p"))

    @property
    def score(self) -> Score | None:
        """The one that counts for the client: on its own rows, if it has any."""
        return self.own or self.every

    @property
    def is_worse_off(self) -> bool:
        """Whether it lost more than a point where it counts."""
        return self.score is not None and self.score.is_loss

    @property
    def lost_elsewhere(self) -> bool:
        """Whether it is as good as before on its own rows, or better, and lost more than a point on everybody's."""
        return not self.is_worse_off and self.every is not None and self.every.is_loss


def members(
    measured: Sequence[Measurement], models: Mapping[str, str], metric: str, alone: Sequence[Measurement] | None = None
) -> list[Member]:
    """Every client's scores; empty for methods in which nobody learns from anybody.

    Alone is what a client scores at the end of the run in which everybody works `alone`; without one, after its first
    training, before it has heard anything. If clients receive nothing during a run, what they get from it is the
    server's model.
    """
    clients = [name for name in models if name != SERVER]
    lines = [line for line in measured if "split" in line and metric in line]
    heard = {line["party"] for line in lines if line["stage"] != "trained"}
    if not heard:
        return []
    found = []
    for name in clients:
        giver = name if heard & set(clients) else SERVER
        own, every = (_score(lines, name, giver, split, metric, alone) for split in (f"test/{name}", "test"))
        found.append(Member(name, models[name], own, every, giver))
    return found if any(member.score for member in found) else []


def _score(
    lines: Sequence[Measurement],
    name: str,
    giver: str,
    split: str,
    metric: str,
    alone: Sequence[Measurement] | None,
) -> Score | None:
    own, given = _in_order(lines, name, split), _in_order(lines, giver, split)
    before = own[:1] if alone is None else _in_order(alone, name, split)[-1:]
    # Without a run alone, a client may have heard an answer before it was first measured.
    if not before or not given or before[0]["stage"] != "trained":
        return None
    return Score(float(before[0][metric]), float(given[-1][metric]))


def _in_order(lines: Sequence[Measurement], party: str, split: str) -> list[Measurement]:
    own = (line for line in lines if line["party"] == party and line["split"] == split)
    return sorted(own, key=lambda line: (line["round"], STAGES.index(line["stage"])))


def verdict(found: Sequence[Member], causes: Sequence[str], than: str = "alone", faults: Sequence[str] = ()) -> str:
    """Whether the members are better off than alone, and if not, who is not and why; and what failed in any case."""
    scored = [(member, member.score) for member in found if member.score is not None]
    worse = _named([(member.name, score.gain) for member, score in scored if member.is_worse_off])
    elsewhere = _named([(member.name, member.every.gain) for member in found if member.every and member.lost_elsewhere])
    if worse:
        many = sum(member.is_worse_off for member in found)
        said = f"{many} of {len(scored)} clients are worse off than {than} by more than a point ({worse}){_sure(found)}"
    else:
        said = f"No client is worse off than {than} by more than a point"
    said += f"; {_means(found)}."
    if elsewhere:
        many = sum(member.lost_elsewhere for member in found)
        said += f" On everybody's rows {many}{' more' if worse else ''} lost more than a point ({elsewhere})."
    if (worse or elsewhere) and causes:
        said += f" Why: {'; '.join(causes)}."
    elif (worse or elsewhere) and not faults:
        said += " Why: no cause was found; `fedstill show algorithms --advise` says which other methods to try."
    if unknown := [member.name for member in found if member.score is None]:
        said += f" Not measured, and not counted here: {listed(unknown)}."
    return " ".join([said, *faults])


def _named(losses: Sequence[tuple[str, float]]) -> str:
    """Who lost how much, the largest loss first."""
    return listed([f"{name} {100 * gain:+.1f}" for name, gain in sorted(losses, key=lambda item: item[1])], most=4)


def _means(found: Sequence[Member]) -> str:
    """The mean gain; where both were measured, on own rows and on everybody's."""
    own = [member.own.gain for member in found if member.own]
    every = [member.every.gain for member in found if member.every]
    if own and every:
        return f"on average {100 * fmean(own):+.1f} points on own rows, {100 * fmean(every):+.1f} on everybody's"
    return f"{100 * fmean(own or every):+.1f} points on average"


def _sure(found: Sequence[Member]) -> str:
    """A clause: how many of those worse off are so by more than chance, if that is known of all of them."""
    chances = [member.p for member in found if member.is_worse_off]
    known = [p for p in chances if p is not None]
    if len(known) < len(chances):
        return ""
    surely = sum(p < SURE for p in known)
    if len(known) == 1:
        return f", which {'is more than' if surely else 'may be'} chance"
    return f", {surely or 'none'} of them by more than chance"


def causes(
    metrics: Sequence[Measurement],
    log: Sequence[Measurement],
    models: Mapping[str, str],
    standing: Sequence[Caution],
    found: Sequence[Member],
) -> list[str]:
    """What may have done harm, as clauses: seen in the record, and `standing`: known before the run.

    What is about single clients counts only where they are among those who lost.
    """
    lost = [member.name for member in found if member.is_worse_off or member.lost_elsewhere]
    fallen = [name for name in _fallen(metrics, log) if name in lost]
    verb = "names" if len(fallen) == 1 else "name"
    clauses = [f"{listed(fallen)} {verb} one class for nearly all rows"] if fallen else []
    if shares := [line["values"] for line in metrics if line.get("observation") == "weights"]:
        clauses += _weighty({name: fmean(each.get(name, 0.0) for each in shares) for name in models}, models)
    return [*clauses, *(clause for caution in standing if (clause := caution.cause_for(lost)))]


def faults(metrics: Sequence[Measurement], log: Sequence[Measurement], rounds: int) -> list[str]:
    """What makes a federation useless, whoever lost or did not, as sentences."""
    sentences = []
    if useless := {line["round"] for line in log if line.get("note", "").startswith(ONE_CLASS_BLEND)}:
        when = "every round" if len(useless) == rounds else f"{len(useless)} of {rounds} rounds"
        nobody = "the blend named one class for nearly all public rows, and nobody learnt from the others"
        instead = ": what clients gained, more training on their own rows gave them" if len(useless) == rounds else ""
        sentences.append(f"In {when} {nobody}{instead}.")
    if SERVER in _fallen(metrics, log):
        sentences.append("The server's model names one class for nearly all test rows.")
    return sentences


def _fallen(metrics: Sequence[Measurement], log: Sequence[Measurement]) -> list[str]:
    """Who predicts one class at the end; not who did in an earlier round, and has learnt more since."""
    learnt = [line for line in metrics if line.get("stage", "trained") != "trained"]
    last = {
        party: max(line["round"] for line in learnt if line["party"] == party)
        for party in {line["party"] for line in learnt}
    }
    end = max(last.values(), default=0)
    digests_at_the_end = any(line.get("seconds", {}).get("digest") and line["round"] > end for line in log)
    noted = {line["party"]: line.get("round", 0) for line in log if ONE_CLASS in line.get("note", "")}
    return sorted(
        party
        for party, round in noted.items()  # a client tells a round later what it made of an answer
        if round >= last.get(party, 0) + (digests_at_the_end and party != SERVER)
    )


def _weighty(shares: Mapping[str, float], models: Mapping[str, str]) -> list[str]:
    """Who has far more of the weight than there are of them: one client, or the clients with one kind of model."""
    clients = {name: model for name, model in models.items() if name != SERVER}
    groups = {f"{name} ({model})": [name] for name, model in clients.items()}
    for model in dict.fromkeys(clients.values()):
        groups.setdefault(f"the clients with {model}", [name for name, own in clients.items() if own == model])
    for group, names in groups.items():
        share, fair = sum(shares[name] for name in names), len(names) / len(clients)
        if share > 0.5 and share > NOTICEABLE * fair:
            return [f"{group} had {100 * share:.0f}% of the weight"]
    return []


def table(seeds: Sequence[Sequence[Member]], title: str) -> Table:
    """Alone, after and gain of every client, in points, as means over seeds; the mean over clients last."""
    shown = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", show_edge=False, pad_edge=False)
    names = dict.fromkeys(member.name for seed in seeds for member in seed)
    by_name = {name: [member for seed in seeds for member in seed if member.name == name] for name in names}
    rows = {
        name: [*_cells(one.own for one in each), *_cells(one.every for one in each)] for name, each in by_name.items()
    }
    means = [_mean(column) for column in zip(*rows.values(), strict=True)]
    headings = ("own: alone", "after", "gain", "all: alone", "after", "gain")
    known = [place for place, mean in enumerate(means) if mean is not None]  # a federation's sites see no others' rows
    for column in ("client", "model", *(headings[place] for place in known)):
        shown.add_column(column, justify="left" if column in ("client", "model") else "right")
    for name, cells in rows.items():
        shown.add_row(Text(name), Text(by_name[name][0].model), *(_points(cells[place]) for place in known))
    shown.add_section()
    shown.add_row("mean", "", *(_points(means[place]) for place in known))
    return shown


def _cells(scores: Any) -> list[float | None]:
    known = [score for score in scores if score is not None]
    return [_mean([getattr(score, what) for score in known]) for what in ("alone", "after", "gain")]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _points(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
