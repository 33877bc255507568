"""FedAUX: an ensemble on auxiliary data, in which a client counts more on samples that look like its own rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from scipy.optimize import minimize
from torch import Tensor, nn

from fedstill.algorithms.averaging import Limit
from fedstill.algorithms.base import Algorithm, Federation, Positive
from fedstill.algorithms.fedavg import FedAvg
from fedstill.common.errors import FedstillError
from fedstill.common.randomness import generator
from fedstill.data.corpus import Ints
from fedstill.learning.features import features
from fedstill.learning.losses import kl
from fedstill.models.text_to_text import TextToText
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Parameters, array
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class Certainty(Message):
    """How much each public sample looks like a client's own rows; 0 for those that are negatives."""

    scores: Tensor = array("public", holds="floats", least=0, most=1)


@dataclass(frozen=True)
class FedAUX(FedAvg):
    """theta = mean_k theta^k, then KL(s(sum_k s_k z^k / sum_k s_k) || f) with all received models on public rows.

    s_k(x), sent once, is the probability that x is the client's and not auxiliary (at least `floor`), by a logistic
    regression on theta_0's features of the client's rows and of the share `negatives` of the public ones, the same for
    everybody; the other public rows are scored and distilled (`negatives: null`: all public rows are both). Its L2,
    lambda/2 |w|^2 (`regularisation`), is added to the *sum* of the losses, as released, or to their mean, as printed
    (`penalty: mean`, and always with `epsilon`, whose proof needs it). Features have norms of at most 1: they are
    divided by the largest norm of the public ones, and longer private ones are cut to it. (The paper's largest norm of
    both is itself private.) The auxiliary data is the public set, and theta_0 is what the server's model starts as; the
    paper pre-trains it on the auxiliary data. `rate` is the paper's, for pretrained models: one that starts at random
    needs a larger one. Optimiser, batch and schedule are those of `distill`.

    With `epsilon`, the regression's weights are sent through the Gaussian mechanism: the scores, and only they,
    are (epsilon, delta)-differentially private for replacing one row. The proof holds for epsilon up to 1. In a
    simulation the noise is drawn from the experiment's seed; at a real site the operating system gives it, for nobody
    to draw again.
    """

    weights: Weights = "uniform"
    rate: Positive = 5e-5
    epochs: Annotated[int, Field(ge=0)] = 1
    negatives: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    regularisation: Positive = 0.01
    penalty: Literal["sum", "mean"] = "sum"
    floor: Annotated[float, Field(gt=0, lt=1)] = 1e-8
    epsilon: Annotated[float, Field(gt=0, le=1)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    needs: ClassVar[frozenset[str]] = frozenset({"public", "parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Parameters, Certainty, Limit, Done)
    paper: ClassVar[str] = "FedAUX (Sattler 2021)"
    cost: ClassVar[str] = "P(K+1)+N_a K once"

    def admit(self, me: Server) -> None:
        layers = me.model.module.modules()
        if isinstance(me.model.module, TextToText) or not any(isinstance(layer, nn.Linear) for layer in layers):
            raise FedstillError(
                f"FedAUX: {me.model.spec} has no linear layer with one input vector per row, which would be the "
                "features; choose a text classifier (a transformer, textcnn, bigru) or an image model."
            )

    def start(self, fed: Federation) -> None:
        replies = fed.call("certify", Parameters(fed.server.parameters()), clients=list(fed.clients))
        if replies.failures:
            raise FedstillError(f"FedAUX needs everybody's scores, and {replies.failures[0].client} sent none.")
        fed.server.memory.mappings["certainty"] = {name: said.scores for name, said in replies.items()}

    def certify(self, me: Client, first: Parameters) -> Certainty:
        """Take theta_0, learn to separate own rows from public ones, and score how similar each public one is."""
        me.set_parameters(first.parameters)
        module, precision = me.model.module, me.around.precision
        own, public = in_unit_ball(
            features(module, me.data.train, precision), features(module, me.data.public, precision)
        )
        negative, scored = self.divided(me)
        sides = torch.cat([torch.ones(len(own)), -torch.ones(len(negative))]).double()
        weights = separator(torch.cat([own, public[negative]]), sides, self.pull(len(sides)))
        noise = me.noise("privacy").normal(scale=self.deviation(len(sides)), size=len(weights))
        weights = weights + torch.from_numpy(noise)
        scores = torch.zeros(len(public))
        scores[scored] = (public[scored] @ weights).sigmoid().clamp(min=self.floor).float()
        return Certainty(scores)

    def divided(self, me: Party) -> tuple[Ints, Ints]:
        """The public rows that are negatives, and those that are scored; the same at every party."""
        rows = np.arange(len(me.data.public))
        if self.negatives is None or len(rows) < 2:
            return rows, rows
        shuffled = generator(me.around.seed, 0, "everybody", "negatives").permutation(rows)
        many = min(max(1, round(self.negatives * len(rows))), len(rows) - 1)
        return np.sort(shuffled[:many]), np.sort(shuffled[many:])

    def pull(self, rows: int) -> float:
        """The regularisation of the mean loss of so many rows."""
        is_mean = self.penalty == "mean" or self.epsilon is not None
        return self.regularisation if is_mean else self.regularisation / rows

    def deviation(self, rows: int) -> float:
        """The noise on each weight; replacing one of the rows moves the weights at most by the sensitivity."""
        if self.epsilon is None:
            return 0.0
        sensitivity = 2 / (self.regularisation * rows)
        return math.sqrt(2 * math.log(1.25 / self.delta)) * sensitivity / self.epsilon

    def leaks(self) -> str | None:
        return "tells how much public samples are like private rows"

    def masked_weights(self) -> Weights:
        """Every model is asked by itself."""
        return Algorithm.masked_weights(self)

    def server(self, me: Server, ups: Replies[Parameters]) -> Parameters:
        certainty = me.memory.mappings["certainty"]
        _, scored = self.divided(me)
        rows = me.data.public.pick(scored)
        scores = torch.stack([certainty[name][scored] for name in ups]).double()
        logits = torch.stack([me.model_from(said.parameters).predict(rows) for said in ups.values()])
        ensemble = ups.blended(logits, (scores / scores.sum(0))[:, :, None])
        me.set_parameters(ups.average("parameters", self.shares(ups)))
        settings = me.spec.distill.model_copy(update={"rate": self.rate, "epochs": self.epochs})
        me.distill(ensemble, kl, rows=scored, settings=settings)
        return Parameters(me.parameters())


def in_unit_ball(own: Tensor, public: Tensor) -> tuple[Tensor, Tensor]:
    """Features with a constant 1 appended, in float64, with norms of at most 1; only public rows set the scale."""
    longest = public.double().norm(dim=1).max().clamp(min=1e-12)

    def scaled(rows: Tensor) -> Tensor:
        rows = rows.double() / longest
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
        return F.pad(rows, (0, 1), value=1.0) / math.sqrt(2)

    return scaled(own), scaled(public)


def separator(rows: Tensor, sides: Tensor, regularisation: float) -> Tensor:
    """The w that minimises mean log(1 + exp(-side w x)) + regularisation/2 |w|^2, for sides 1 and -1."""

    def objective(values: npt.NDArray[Any]) -> tuple[float, npt.NDArray[Any]]:
        w = torch.tensor(values)
        margins = sides * (rows @ w)
        value = F.softplus(-margins).mean() + regularisation / 2 * (w @ w)
        gradient = regularisation * w - rows.T @ (sides * torch.sigmoid(-margins)) / len(rows)
        return float(value), gradient.numpy()

    start = np.zeros(rows.shape[1])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-10})
    if not np.linalg.norm(objective(found.x)[1]) < 1e-6:
        raise FedstillError(f"the regression own-vs-auxiliary did not converge ({found.message}).")
    return torch.tensor(found.x)
