"""What `status` and `sent` show: sites, the job, who is late; what left a site, and what may still leave."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedstill.common.errors import FedstillError
from fedstill.common.units import size_text
from fedstill.federation.budget import Spent, left, read_sent, sent_by
from fedstill.federation.files import SiteFile
from fedstill.federation.operate import AdminLine, Centre, newest
from fedstill.federation.status import doing, last_notes, late, metric_title, points, read_status, round_line
from fedstill.federation.submission import is_heard
from fedstill.results.record import Record
from fedstill.wire.encoding import MARK

WORRY_DAYS = 30


def picture(line: AdminLine, name: str | None) -> Group:
    """The federation, its sites, and the newest job or the one called `name`."""
    centre = line.centre
    lines = [_head(centre)]
    try:
        connected: dict[str, float] | None = line.ask(lambda admin: admin.connected())
    except FedstillError as error:
        connected = None
        lines.append(Text(str(error), style="yellow"))
    status: dict[str, Any] = {}
    try:
        folder = newest(centre, name)
        status = read_status(folder)
        lines.append(Text(_job(folder.name, status, Record(folder).is_finished, connected is not None)))
    except FedstillError as error:
        lines.append(Text(str(error), style="dim"))
    notes = [Text(f"note: {note}", style="yellow") for note in last_notes(status)]
    return Group(*lines, _sites(centre, connected, status), *notes)


def facts(line: AdminLine, name: str | None) -> dict[str, Any]:
    """The same for JSON: who is connected (null: nobody knows) and the job's status as the centre writes it."""
    centre = line.centre
    try:
        connected: dict[str, float] | None = line.ask(lambda admin: admin.connected())
    except FedstillError:
        connected = None
    sites = {site: None if connected is None else site in connected for site in centre.file.sites}
    about = {"name": centre.file.name, "certificates_until": f"{centre.kits.good_until:%Y-%m-%d}", "connected": sites}
    try:
        folder = newest(centre, name)
    except FedstillError:
        return {**about, "job": None}
    job = {"id": folder.name, "is_finished": Record(folder).is_finished, "status": read_status(folder)}
    return {**about, "job": job}


def _head(centre: Centre) -> Text:
    file, until = centre.file, centre.kits.good_until
    left = (until - datetime.now(UTC)).days
    renew = f"; {left} days left: fedstill federation init FILE --renew" if left < WORRY_DAYS else ""
    return Text(f"{file.name} at {file.host}:{file.port}, certificates good until {until:%Y-%m-%d}{renew}")


def _job(name: str, status: dict[str, Any], is_finished: bool, is_served: bool) -> str:
    if is_finished:
        return f"{name}: finished, {round_line(status)}; next: fedstill federation fetch {name}"
    if not status:
        return f"{name}: submitted, not started yet"
    state = status["state"]
    if state in ("running", "preparing") and not is_served:
        state = "interrupted: the server is away; `submit` continues it after the last finished round"
    reason = f" ({status['reason']})" if status.get("reason") else ""
    return f"{name}: {state}{reason}, {round_line(status)}"


def _sites(centre: Centre, connected: dict[str, float] | None, status: dict[str, Any]) -> Table:
    places = status.get("sites", {})
    is_running = status.get("state") == "running"
    slow = late(places, time.time()) if is_running else []
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("site", "connection", "doing"):
        table.add_column(column)
    table.add_column(metric_title(status), justify="right")
    for name in centre.file.sites:
        place = places.get(name, {})
        does = doing(place, name in slow) if is_running else ""
        style = "red" if place.get("state") == "failed" or (connected is not None and name not in connected) else None
        table.add_row(name, connection(name, connected), does, points(status, place), style=style)
    return table


def connection(name: str, connected: dict[str, float] | None) -> str:
    """Whether a site is there; None: the server does not answer."""
    if connected is None:
        return "unknown"
    if name not in connected:
        return "away"
    heard = connected[name]
    return "connected" if is_heard(heard) else f"silent for {time.time() - heard:.0f} s"


def what_left(place: Path, last: int) -> Group:
    """The last answers of a site (0: all), and what it spent and has left of its budgets in each experiment."""
    folder = sent_by(place)
    lines = list(read_sent(folder))
    shown = lines[-last:] if last else lines
    tables: list[Text | Table] = []
    for experiment, answers in groupby(shown, key=itemgetter("experiment")):
        table = _columns("time", "round", "answer to", "message", "size", "held")
        table.columns[0].no_wrap = True
        for line in answers:
            when = line["time"][:19].replace("T", " ")
            about = (when, str(line["round"]), line["verb"], str(line["message"]))
            table.add_row(*about, size_text(line["bytes"]), _held(line))
        tables += [Text(experiment, style="bold"), table]
    earlier = [Text(f"{len(lines) - len(shown)} earlier answers: --last 0", style="dim")] * (len(lines) > len(shown))
    return Group(*tables, *earlier, Text(""), _totals(lines, folder.parent / "local" / "site.json"))


def _totals(lines: list[dict[str, Any]], site: Path) -> Table:
    spent: dict[str, Spent] = {}
    for line in lines:
        spent.setdefault(line["experiment"], Spent()).add(line)
    limits = SiteFile.model_validate_json(site.read_text()).limits if site.exists() else None
    table = _columns("experiment", "rounds", "calls", "size", "left")
    for name, own in spent.items():
        rest = "unknown" if limits is None else left(own, limits) or "no limit"
        table.add_row(name, str(own.rounds), str(own.calls), size_text(own.bytes), rest)
    return table


def _held(line: Mapping[str, Any]) -> str:
    """The fields of an answer; arrays of one mapping, or of one field's codec, are counted together."""
    held: Mapping[str, str] = line["held"]
    fields_of = {name: re.split(f"[/{MARK}]", name)[0] for name in held}
    many = Counter(fields_of.values())
    fields = [f"{name} {kind}" for name, kind in held.items() if many[fields_of[name]] == 1]
    fields += [f"{name} ({count} arrays)" for name, count in many.items() if count > 1]
    return ", ".join(fields + [f"{name}: {line[name]}" for name in ("metrics", "notes") if line[name]])


def _columns(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name in ("round", "rounds", "calls", "size") else "left")
    return table
