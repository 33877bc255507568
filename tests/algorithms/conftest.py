"""Small real parties over made-up reviews, and small real federations over a CSV of them."""

import csv
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedstill.config.experiment import Experiment
from fedstill.data.examples import NO_ROWS, Examples, Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.phases import PhaseSettings
from fedstill.models import Model, ModelSpec
from fedstill.models.small import BagOfWords
from fedstill.models.tokenizers import HashedNgrams
from fedstill.parties.client import Client
from fedstill.parties.evaluation import Evaluation
from fedstill.parties.party import PartyData, PartySpec, Surroundings, TrainSettings
from fedstill.parties.server import Server
from fedstill.wire.messages import Hello, Opinion
from fedstill.wire.replies import Replies

LABELS = ("bad", "fine", "good")
WORDS = (("awful", "broken", "poor"), ("average", "usual", "plain"), ("great", "lovely", "superb"))
THINGS = ("book", "film", "shoe", "lamp", "soap", "game", "sofa")


def reviews(rows, seed=0):
    """Different texts with the class in their words, and their classes, which take turns."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    texts = [
        f"{random.choice(THINGS)} {number} was {random.choice(WORDS[label])} and {random.choice(WORDS[label])}"
        for number, label in enumerate(labels)
    ]
    return texts, labels


@dataclass
class Bench:
    """Twelve public rows, twelve to train on and twelve to be measured on, read by bags of 64 hashed words."""

    store: TokenStore
    labels: torch.Tensor
    tokenizer: HashedNgrams

    public = np.arange(0, 12)
    private = np.arange(12, 24)
    test = np.arange(24, 36)

    def rows(self, numbers, labelled=True):
        return Labelled(self.store, numbers, self.labels[numbers]) if labelled else Examples(self.store, numbers)

    def model(self, seed=7):
        torch.manual_seed(seed)
        module = BagOfWords(self.tokenizer.vocabulary, len(LABELS), self.tokenizer.pad_id, dropout=0.0)
        torch.nn.init.normal_(module.weight.weight, std=0.3)
        return Model(module, self.tokenizer, ModelSpec(name="bow"), LABELS, rate=0.05)

    def party(self, kind, name, data, train=None, distill=None, seed=0, **more):
        # One epoch of one plain gradient step: what a loss does can be worked out by hand.
        step = {"epochs": 1, "batch": 64, "optimiser": "sgd", "rate": 0.5, "schedule": "constant"}
        spec = PartySpec(
            ModelSpec(name="bow"), TrainSettings(**(step | (train or {}))), PhaseSettings(**(step | (distill or {})))
        )
        around = Surroundings(seed, torch.device("cpu"), "fp32")
        return kind(name, spec, data, around, self.model, **more)

    def server(self, labelled=NO_ROWS, pooled=NO_ROWS, **settings):
        data = PartyData(
            public=self.rows(self.public, labelled=False),
            evaluation=Evaluation(self.rows(self.test), {"test": np.arange(12)}),
            labelled=labelled,
        )
        return self.party(Server, "server", data, pooled=pooled, **settings)

    def client(self, name="books", **settings):
        data = PartyData(
            public=self.rows(self.public, labelled=False),
            train=self.rows(self.private),
            evaluation=Evaluation(self.rows(self.test), {"test": np.arange(12)}),
        )
        return self.party(Client, name, data, **settings)

    def after_one_step(self, loss, rows=None, rate=0.5):
        """The parameters after one gradient step of the fresh model on `loss(logits)`, by autograd alone."""
        module = self.model().module
        batch = self.rows(self.public if rows is None else rows).batch(torch.arange(12), torch.device("cpu"))
        loss(module(**batch)).backward()
        return {name: (value - rate * value.grad).detach() for name, value in module.named_parameters()}


@pytest.fixture
def bench():
    texts, labels = reviews(36)
    tokenizer = HashedNgrams(buckets=64)
    ids, offsets, _ = tokenizer.encode(texts, None, 128)
    return Bench(TokenStore(ids, offsets, None), torch.from_numpy(labels), tokenizer)


@pytest.fixture
def opinions():
    """Replies of three clients with 10, 20 and 70 rows, about twelve public rows; keywords give a value a client."""

    def make(clients=3, public=12, counts=None, **fields):
        random = torch.Generator().manual_seed(1)
        messages, hellos = {}, {}
        for number, name in enumerate(("books", "films", "shoes")[:clients]):
            logits = 2 * torch.randn(public, len(LABELS), generator=random)
            own = {field: values[number] for field, values in fields.items()}
            messages[name] = Opinion(**({"logits": logits} | own))
            hellos[name] = Hello((10, 20, 70)[number], None if counts is None else torch.tensor(counts[number]))
        return Replies(messages, hellos)

    return make


@pytest.fixture
def same():
    """Whether a party's parameters are these."""

    def check(party, parameters, tolerance=1e-6):
        own = party.parameters()
        assert set(own) == set(parameters)
        for name, value in parameters.items():
            torch.testing.assert_close(own[name], value, rtol=tolerance, atol=tolerance)

    return check


@pytest.fixture(scope="session")
def folder_of_reviews(tmp_path_factory):
    """A CSV of 180 reviews in three domains, and a cache of its own."""
    folder = tmp_path_factory.mktemp("reviews")
    texts, labels = reviews(180)
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "shop"])
        for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
            writer.writerow([text, LABELS[label], ("books", "films", "shoes")[number // 3 % 3]])
    return folder


@pytest.fixture
def experiment(folder_of_reviews, monkeypatch):
    """A federation of three bags of words that runs in well under a second; keywords change it."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder_of_reviews / "cache"))

    def make(**changes):
        settings = {
            "name": "small",
            "corpus": {"path": str(folder_of_reviews / "reviews.csv"), "domain": "shop"},
            "clients": "bow",
            "server": "bow",
            "train": {"epochs": 1, "batch": 16},
            "rounds": 2,
            "workers": 1,
            "device": "cpu",
        }
        return Experiment(**(settings | changes))

    return make
