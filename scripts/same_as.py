"""Small runs of every method, by this tree and by an earlier commit: metrics, predictions and weights to the byte.

    python scripts/same_as.py REVISION [METHOD ...]

For changes that must not change what is computed. Both run on this machine, one after the other, in a few minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.conftest import write_reviews  # noqa: E402

LABELLED = {"partition": {"kind": "domain", "public": 0.3, "labelled_public": 0.2}}
ALIKE = {"clients": {"name": "textcnn", "tokenizer": "bert-tiny"}}
ABSENT = {"rounds": 3, "participation": 0.67}
RUNS: dict[str, dict[str, object]] = {
    **{name: {"algorithm": name} for name in ("AdaFD", "LogitAvg", "DSFL", "MHAT", "FedKD", "Local", "Centralized")},
    **{name: {"algorithm": name, **ABSENT} for name in ("Cronus", "FD", "FedHe")},
    **{name: {"algorithm": name, **ALIKE, **ABSENT} for name in ("FedOpt", "FedGKD", "CFD", "MutualKD")},
    **{name: {"algorithm": name, **ALIKE} for name in ("FedAvg", "FedED", "FedAUX")},
    **{name: {"algorithm": name, **LABELLED} for name in ("FedMD", "FedDF", "FedID")},
    "FedSND": {"algorithm": {"name": "FedSND", "steps": 5}, **ALIKE},
    "FedDRS": {"algorithm": {"name": "FedDRS", "sampling_steps": 4, "samples": 8, "length": 8, "post": 1}, **ALIKE},
}
ONE = """
import hashlib, json, sys, fedstill
from pathlib import Path
folder = fedstill.run(fedstill.Experiment.model_validate(json.loads(sys.argv[1])), sys.argv[2]).folder
files = [f for p in ("metrics.jsonl", "predictions/*", "models/*/model.safetensors") for f in sorted(folder.glob(p))]
print(json.dumps({str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}))
"""


def hashes(source: Path, experiment: dict[str, object], out: Path) -> dict[str, str]:
    """What a run leaves behind, computed by the package in that folder."""
    command = [sys.executable, "-c", ONE, json.dumps(experiment), str(out)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one line per method, and exit with 1 where anything differs."""
    revision, *chosen = sys.argv[1:] or sys.exit(__doc__)
    different = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        subprocess.run(["git", "worktree", "add", "--detach", "-q", scratch / "old", revision], cwd=ROOT, check=True)
        try:
            corpus = {"path": str(write_reviews(scratch / "reviews.csv")), "text": ["title", "body"]}
            common = {
                "corpus": {**corpus, "label": "stars", "domain": "shop"},
                "clients": ["bow", "textcnn", "bow"],
                "server": {"name": "textcnn", "tokenizer": "bert-tiny"},
                "train": {"epochs": 2, "max_length": 16},
                "rounds": 2,
                "workers": 1,
            }
            for method in chosen or RUNS:
                sources = {"old": scratch / "old" / "src", "new": ROOT / "src"}
                found = {k: hashes(v, common | RUNS[method], scratch / f"{k}-{method}") for k, v in sources.items()}
                files = {*found["old"], *found["new"]}
                changed = sorted(file for file in files if found["old"].get(file) != found["new"].get(file))
                different += bool(changed)
                print(f"{method}: {'differs in ' + ', '.join(changed) if changed else 'the same'}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", scratch / "old"], cwd=ROOT, check=True)
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
