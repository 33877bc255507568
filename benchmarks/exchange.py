"""What an exchange with three sites costs on each engine: there and back, nobody computes.

    python benchmarks/exchange.py

Prints the median of the wall clock an exchange. `flare` is a whole federation on this machine, with TLS.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import fedstill
from fedstill.config.experiment import Experiment
from fedstill.federation.rehearsal import rehearse
from fedstill.results.record import Record

ECHO = Path(__file__).with_name("echo.py")


def experiment() -> Experiment:
    """Three sites that read little and compute nothing."""
    return Experiment.model_validate(
        {
            "name": "exchange",
            "corpus": "tweets",
            "partition": {"kind": "iid", "clients": 3, "rows_per_domain": 20},
            "clients": "bow",
            "server": "bow",
            "algorithm": f"{ECHO}:Echo",
            "rounds": 1,
            "workers": 1,
        }
    )


def medians(record: Record) -> dict[str, float]:
    """Milliseconds by size."""
    observed = [line for line in record.metrics if "observation" in line]
    return {line["observation"]: round(line["values"]["median_ms"], 1) for line in observed}


def measure() -> dict[str, dict[str, float]]:
    """Both engines."""
    with tempfile.TemporaryDirectory() as scratch:
        local = medians(fedstill.run(experiment(), Path(scratch) / "local"))
        folder = rehearse(experiment(), Path(scratch) / "flare", lambda line: print(line, file=sys.stderr))
        return {"local": local, "flare": medians(Record(folder))}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
