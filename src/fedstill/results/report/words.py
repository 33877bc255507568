"""A run in words: what was trained, what went wrong, how to repeat it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstill.common.units import size_text
from fedstill.data.partition import Partition
from fedstill.results.privacy import in_words
from fedstill.results.record import Record
from fedstill.results.report.material import Material
from fedstill.results.runs import Run

HASHED = ("experiment.yaml", "partition.safetensors", "metrics.jsonl", "ledger.jsonl")
"""The last two are whole when the run is finished."""


@dataclass(frozen=True)
class Remark:
    """Something that went wrong, or was known to: who said it, in which rounds, and what."""

    who: str
    rounds: str
    says: str


def facts(run: Run, record: Record, material: Material) -> dict[str, str]:
    """What was trained, by name; what is not known is left out."""
    summary, parts = record.so_far, material.parts
    corpus, partition = (material.settings.get(key) or {} for key in ("corpus", "partition"))
    known = {
        "Experiment": run.name,
        "Method": run.method + (f" ({run.role})" if run.role != "method" else ""),
        "Corpus": str(corpus.get("name") or Path(corpus.get("path") or "").name),
        "Labels": ", ".join(run.labels) if len(run.labels) <= 14 else f"{len(run.labels)}",
        "Clients": f"{len(run.client_names)}",
        "Models": ", ".join(dict.fromkeys(summary.get("models", {}).values())),
        "Partition": str(partition.get("kind", "")),
        "Rounds": str(summary.get("rounds", "")),
        "Privacy": in_words(summary["epsilon"]).removeprefix("privacy: ") if summary.get("epsilon") else "",
        "Engine": material.engine + ("" if material.is_simulated else ": not a simulation"),
    }
    if parts is not None:
        known["Rows"] = facts_of_rows(parts)
    return {name: value for name, value in known.items() if value}


def facts_of_rows(parts: Partition) -> str:
    """How many rows there are for what."""
    train, test = (sum(map(len, each.values())) for each in (parts.train, parts.test))
    return f"{train:,} private for training, {len(parts.public):,} public, {test:,} for testing"


def remarks(record: Record, material: Material) -> tuple[Remark, ...]:
    """Dropped rows, cautions before the run, then what was noted during it, each once with its rounds."""
    cautions = record.cautions or record.so_far.get("cautions", [])
    seen: dict[tuple[str, str], list[int]] = {}
    for line in record.log:
        if "note" in line:
            seen.setdefault((line["party"], line["note"]), []).append(line["round"])
    return (
        *_dropped(record, material),
        *(Remark("before the run", "", caution) for caution in cautions),
        *(Remark("run", "", note) for note in ([] if record.log else record.so_far.get("notes", []))),
        *(Remark(who, spans(rounds), says) for (who, says), rounds in seen.items()),
    )


def repeat(run: Run, record: Record, material: Material) -> dict[str, str]:
    """How to run it again, and how to see that the outcome is the same."""
    versions = record.so_far.get("versions", {})
    known = {
        "Command": f"fedstill run {run.folder / 'experiment.yaml'} --out again" if material.is_simulated else "",
        "Seed": str(run.seed),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or "not in this record",
        "Test rows (sha256)": run.test_fingerprint,
    }
    for name in HASHED if record.is_finished else HASHED[:2]:
        if (path := record.folder / name).is_file():
            known[f"{name} (sha256)"] = hashlib.sha256(path.read_bytes()).hexdigest()
    known["Bytes"] = f"{size_text(run.bytes_up)} up, {size_text(run.bytes_down)} down"
    known["Seconds"] = f"{run.seconds:.1f}"
    return {name: value for name, value in known.items() if value}


def spans(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1–3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in parts)


def _dropped(record: Record, material: Material) -> list[Remark]:
    """Rows that were read and not used, by reason."""
    read = record.counts if material.corpus is None else material.corpus.counts
    unused = {} if material.parts is None else material.parts.counts
    reasons = {why: many for why, many in {**read, **unused}.items() if many and why not in ("rows read", "rows kept")}
    says = ", ".join(f"{why}: {many:,}" for why, many in reasons.items())
    total = f" of {read['rows read']:,} read" if "rows read" in read else ""
    return [Remark("corpus", "", f"Rows not used{total}. {says}.")] if says else []
