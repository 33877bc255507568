"""How blends stand liars, measured without training a federation: linear models of clients speak about public rows.

    python scripts/choose_blend.py DATA      # DATA holds agnews/ and amazon/; writes evidence/blends.md

Each client fits a logistic regression to its own rows; some lie as `faults:` would make them; a blend of what all say
about 1,500 public rows, which nobody trained on, is scored by their labels. This is how `blend: auto` was chosen; no
test row is read. What blends do to whole runs is the recipe trust/attacks.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from fedstill.data.corpora import CorpusSpec, load
from fedstill.wire import blends
from fedstill.wire.blends import About
from fedstill.wire.faults import ATTACKS

PAGE = Path(__file__).resolve().parents[1] / "evidence" / "blends.md"
BLENDS = {
    "mean": "mean",
    "median": "median",
    "trimmed, 0.3": {"name": "trimmed", "share": 0.3},
    "cronus, 0.4": {"name": "cronus", "share": 0.4},
    "clipped": "clipped",
    "expguard": "expguard",
    "agreement": "agreement",
    "agreement, 0.3": {"name": "agreement", "share": 0.3},
    "agreement, 0.6": {"name": "agreement", "share": 0.6},
}
CASES = ["nobody lies", "flip", "negate", *ATTACKS, "honest ones alone"]
SETTINGS = [
    ("tweets", 10, 400, "at random"),
    ("tweets", 10, 150, "at random"),
    ("tweets", 10, 400, "Dirichlet 1"),
    ("tweets", 10, 400, "by domain"),
    ("tweets", 5, 600, "by domain"),
    ("agnews", 10, 200, "at random"),
    ("agnews", 10, 200, "Dirichlet 1"),
    ("amazon", 10, 400, "at random"),
    ("amazon", 12, 400, "by domain"),
    ("amazon", 5, 400, "at random"),
]
SEEDS, LYING, PUBLIC = 4, 0.4, 1500

Rows = np.ndarray
Random = np.random.Generator
Scores = dict[tuple[str, str], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with agnews/ and amazon/")
    folder = parser.parse_args().data
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # 25 steps are enough here
    every: Scores = defaultdict(list)
    parts = []
    for setting in SETTINGS:
        scores = measured(folder, *setting)
        name, clients, rows, dealt = setting
        parts.append(table(f"{name}, {clients} clients, {rows} rows each, dealt {dealt}", scores))
        print(parts[-1], flush=True)
        for key, found in scores.items():
            every[key] += found
    PAGE.write_text("\n\n".join([HEAD, table("Mean of all", every), *parts]) + "\n", encoding="utf-8")
    print(f"written: {PAGE}")


HEAD = f"""# What blends make of liars

Weighted F1, in points, of a blend of what clients say about {PUBLIC:,} public rows, mean of {SEEDS} seeds;
{LYING:.0%} of the clients lie. Made by `python scripts/choose_blend.py DATA`, which says how; no federation is
trained here."""


def measured(folder: Path, name: str, clients: int, rows: int, dealt: str) -> Scores:
    """F1 by case and blend, a score a seed."""
    places = {"tweets": None, "agnews": folder / "agnews", "amazon": folder / "amazon"}
    corpus = load(CorpusSpec(name=name, path=None if places[name] is None else str(places[name])))
    words = HashingVectorizer(n_features=2**13, alternate_sign=False).transform(corpus.texts)
    labels = np.asarray(corpus.labels)
    domains = np.zeros(len(labels)) if corpus.domains is None else np.asarray(corpus.domains)
    scores: Scores = defaultdict(list)
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        liars = sorted(random.permutation(clients)[: int(LYING * clients)].tolist())
        order = random.permutation(len(labels))
        public, own = order[:PUBLIC], deal(order[PUBLIC:], labels, domains, clients, rows, dealt, random)
        honest = np.stack([speak(words, labels, mine, public) for mine in own])
        flipped = honest.copy()
        for liar in liars:
            flipped[liar] = speak(words, (labels + 1) % (labels.max() + 1), own[liar], public)
        for case, said in lies(torch.tensor(honest), torch.tensor(flipped), liars).items():
            weights = torch.full((len(said), 1, 1), 1 / len(said), dtype=torch.float64)
            about = About(tuple(map(str, range(len(said)))), round=1)
            for title, spec in BLENDS.items():
                about.memory.clear()
                answer = blends.make(spec).opinions(said, weights, "probabilities", about).argmax(-1)
                scores[case, title].append(100 * f1_score(labels[public], answer.numpy(), average="weighted"))
    return scores


def deal(rest: Rows, labels: Rows, domains: Rows, clients: int, rows: int, dealt: str, random: Random) -> list[Rows]:
    """The rows of every client."""
    if dealt == "at random":
        return np.array_split(rest[: clients * rows], clients)
    if dealt == "by domain":
        names = np.unique(domains)
        pools = [rest[domains[rest] == names[client % len(names)]] for client in range(clients)]
        return [random.choice(pool, min(rows, len(pool)), replace=False) for pool in pools]
    classes = range(int(labels.max()) + 1)
    left = {label: list(rest[labels[rest] == label]) for label in classes}
    own = []
    for shares in random.dirichlet([1.0] * len(classes), size=clients):
        wanted = random.multinomial(rows, shares)
        own.append(
            np.array([left[label].pop() for label in classes for _ in range(min(wanted[label], len(left[label])))])
        )
    return own


def speak(words: np.ndarray, labels: np.ndarray, own: np.ndarray, public: np.ndarray) -> np.ndarray:
    """A client's probabilities of the public rows."""
    model = LogisticRegression(C=5, max_iter=25).fit(words[own], labels[own])
    said = np.full((len(public), int(labels.max()) + 1), 1e-3)
    said[:, model.classes_] += model.predict_proba(words[public])
    return said / said.sum(1, keepdims=True)


def lies(honest: torch.Tensor, flipped: torch.Tensor, liars: list[int]) -> dict[str, torch.Tensor]:
    """What everybody says in each case."""
    true = honest[[client for client in range(len(honest)) if client not in liars]]
    cases = {"nobody lies": honest, "flip": flipped, "honest ones alone": true}
    wrong = {name: attack(true)[None] for name, attack in ATTACKS.items()}
    wrong["negate"] = (1 - honest[liars]) / (honest.shape[-1] - 1)
    for name, said in wrong.items():
        cases[name] = honest.clone()
        cases[name][liars] = said.expand(len(liars), *said.shape[1:])
    return cases


def table(title: str, scores: Scores) -> str:
    rows = [f"| {title} | {' | '.join(CASES)} |", f"|---|{'---|' * len(CASES)}"]
    rows += [f"| {blend} | {' | '.join(f'{fmean(scores[case, blend]):.1f}' for case in CASES)} |" for blend in BLENDS]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
