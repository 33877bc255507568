"""What a site knows of its own run: its scores, its gain, and a record of its model to predict with.

Nothing of it leaves the site. It lies in `KIT/runs/ID`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from fedstill.common.files import MODELS, write_whole
from fedstill.config.specs import ClientSpec
from fedstill.federation.budget import append_line, read_sent
from fedstill.federation.files import SiteFile
from fedstill.learning.metrics import METRICS
from fedstill.plan.plan import Plan
from fedstill.results.members import members
from fedstill.results.privacy import spent
from fedstill.results.record import Record, last_scores, versions

METRIC = "f1"
"""The headline metric until the run has ended and says which it is."""


def keep_scores(folder: Path, site: str, metrics: Sequence[dict[str, Any]]) -> None:
    """Add what the site measured of itself in a call."""
    for metric in metrics:
        append_line(folder / "metrics.jsonl", metric | {"party": site})


def write(folder: Path, plan: Plan, site: str, file: SiteFile) -> None:
    """Make the folder a record of a finished run with one model, the site's own."""
    experiment, spec = plan.experiment, plan.clients[site]
    own = {"corpus": file.corpus, "public": None, "clients": {site: ClientSpec(model=spec.model)}, "train": spec.train}
    write_whole(folder / "experiment.yaml", experiment.model_copy(update=own).to_yaml().encode())
    measured, models = _measured(folder), {site: str(spec.model)}
    summary = {
        "name": experiment.name,
        "engine": experiment.engine,
        "method": experiment.method.title,
        "algorithm": type(experiment.method).__name__,
        "role": experiment.method.role,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "labels": list(plan.labels),
        "metrics": list(plan.metrics),
        "clients": [site],
        "models": models,
        "scores": {"clients": {site: last_scores(measured, site)}},
        "members": [asdict(member) for member in members(measured, models, plan.metrics[0])],
        "epsilon": spent(plan, Record(folder).metrics),
        **_crossed(folder),
        "test_fingerprint": plan.test_fingerprint,
        "versions": versions(),
    }
    write_whole(folder / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())


def _crossed(folder: Path) -> dict[str, Any]:
    """The bytes of this run that left the site and that reached it, and the seconds from first to last answer."""
    lines = [line for line in read_sent(folder.parent) if line["experiment"] == folder.name]
    times = [datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S%z") for line in lines]
    return {
        "bytes": {"up": sum(line["bytes"] for line in lines), "down": sum(line.get("received", 0) for line in lines)},
        "seconds": (times[-1] - times[0]).total_seconds() if times else 0.0,
    }


def has_model(folder: Path) -> bool:
    """Whether the site's model of this run can be used."""
    return Record(folder).is_finished and any((folder / MODELS).glob("*"))


def gain(folder: Path) -> str | None:
    """What the site had alone and has now, in a sentence; None if it never took part in a round."""
    measured = _measured(folder)
    if not measured:
        return (
            "no scores of it are kept here (`scores: false`, or an earlier version)."
            if (folder / "checkpoint").is_dir()
            else None
        )
    record = Record(folder)
    metric = record.summary["metrics"][0] if record.is_finished else METRIC
    site = str(measured[-1]["party"])
    found = members(measured, {site: ""}, metric)
    about = f"{METRICS[metric].caption}, on your own test rows"
    if not found or found[0].score is None:
        alone = max(measured, key=lambda line: line["round"]).get(metric)
        return None if alone is None else f"{100 * alone:.1f} alone; nothing was learnt from others yet ({about})."
    score = found[0].score
    before, now, gained = (100 * value for value in (score.alone, score.after, score.gain))
    return f"after one round alone {before:.1f}, now {now:.1f}, gain {gained:+.1f} ({about})."


def _measured(folder: Path) -> list[dict[str, Any]]:
    """The site's measurements; of a round that was repeated, the last."""
    lines = [line for line in Record(folder).metrics if "split" in line]
    return list({(line["round"], line["stage"], line["split"]): line for line in lines}.values())
