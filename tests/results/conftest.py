"""Finished run folders as the recorder writes them, with scores and predictions that belong together."""

import json

import numpy as np
from safetensors.numpy import save_file

from fedstill.learning.metrics import scores

LABELS = ["negative", "neutral", "positive"]
CLIENTS = ["companies", "sports"]
ROWS = 120


def pooled_test(seed):
    """Row numbers, labels and domains of the pooled test of a seed."""
    generator = np.random.default_rng(seed)
    return np.arange(ROWS) + 1000 * seed, generator.integers(0, 3, ROWS), np.arange(ROWS) % len(CLIENTS)


def predict(seed, accuracy, party):
    """A party's predictions, right with a given chance."""
    generator = np.random.default_rng([seed, int(1000 * accuracy), len(party)])
    labels = pooled_test(seed)[1]
    return np.where(generator.random(ROWS) < accuracy, labels, (labels + 1) % 3)


def split_scores(seed, predicted):
    _, labels, domains = pooled_test(seed)
    every = {"test": scores(labels, predicted, 3)}
    for number, name in enumerate(CLIENTS):
        every[f"test/{name}"] = scores(labels[domains == number], predicted[domains == number], 3)
    return every


ROLES = {"AdaFD": "method", "FedID": "method", "FedSND": "method", "FedDRS": "method", "Centralized": "upper bound"}


def write_run(root, method, seed=0, accuracy=0.7, *, algorithm=None, name=None, server=True, alone=0.5, **changes):
    """A finished run folder as the recorder writes it; returns it."""
    algorithm = algorithm or method
    name = name or f"tweets-{method.lower().replace(' ', '-').replace('/', '')}"
    folder = root / name / f"seed-{seed}"
    (folder / "predictions").mkdir(parents=True)
    accuracies = dict.fromkeys(CLIENTS, alone) | ({"server": accuracy} if server else {})
    every = {}
    rows, labels, _ = pooled_test(seed)
    order = np.random.default_rng(len(method)).permutation(ROWS)
    for party, chance in accuracies.items():
        predicted = predict(seed, chance, party)
        every[party] = split_scores(seed, predicted)
        tensors = {"rows": rows[order], "labels": labels[order], "predicted": predicted[order]}
        save_file(tensors, folder / "predictions" / f"{party}.safetensors")
    measured = {"clients": {client: every[client] for client in CLIENTS}} | (
        {"server": every["server"]} if server else {}
    )
    summary = {
        "name": name,
        "method": method,
        "algorithm": algorithm,
        "role": ROLES.get(algorithm, "baseline"),
        "seed": seed,
        "rounds": 2,
        "labels": LABELS,
        "clients": CLIENTS,
        "scores": measured,
        "bytes": {"up": 1_500_000, "down": 500_000},
        "seconds": 12.0 + seed,
        "test_fingerprint": f"{seed:04x}",
    }
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    return folder
