"""FedKD (Gong 2022): one-shot; clients train to the end and send their logits once, then the server learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Answers, Federation, NotNegative, Role
from fedstill.learning.losses import distillation
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Opinion
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class FedKD(Algorithm):
    """Clients train T times E epochs (`local: last_round` for E) and send their logits once; nothing comes back.

    Readings: `paper` (default): the server minimises MSE to sum_k (n_k/n) z^k; `released`: the same, but clients train
    E epochs once, whatever `local` says, as in FedID's and AdaFD's code; `text`: KL to the same, as AdaFD's text says;
    `original`: classes weighted by n_k^c / sum_j n_j^c, logits quantised to 1/100 of the largest with Laplace noise
    (the paper gives no scale; ours is `noise` quantisation steps), L1.
    """

    reading: Literal["paper", "released", "text", "original"] = "paper"
    local: Literal["every_round", "last_round"] = "every_round"
    noise: NotNegative = 1.0
    labelled: bool = False
    """The server also learns from the rows whose labels it keeps (FedID, Fig. 3)."""

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    paper: ClassVar[str] = "FedKD (Gong 2022), as in AdaFD"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NCK once"

    def round(self, fed: Federation, answer: Answers) -> None:
        if fed.round == fed.rounds:
            self.server(fed.server, fed.call("turn", clients=list(fed.clients)))
        elif self.local == "every_round" and self.reading != "released":
            fed.call("practise")

    def practise(self, me: Client, nothing: None) -> Done:
        """Train, and send nothing."""
        me.train()
        me.evaluate("trained")
        return Done()

    def opine(self, me: Client) -> Opinion:
        me.train()
        logits = me.predict()
        return Opinion(self._disguise(me, logits) if self.reading == "original" else logits)

    def server(self, me: Server, ups: Replies[Opinion]) -> None:
        if self.reading == "original":
            counts = ups.label_counts
            shares = counts / counts.sum(0).clamp(min=1)
            # A class that no client has would get no teacher: there clients are weighted by size.
            weights = torch.where(counts.sum(0) > 0, shares, ups.shares[:, None])[:, None, :]
        else:
            weights = ups.shares
        loss = {"text": distillation("kl"), "original": distillation("l1")}.get(self.reading, distillation("mse"))
        me.distill(ups.blend("logits", weights), loss, also=me.labelled_rows() if self.labelled else None)

    def _disguise(self, me: Client, logits: Tensor) -> Tensor:
        step = logits.abs().max().clamp(min=1e-12) / 100
        noise = me.generator("laplace").laplace(size=tuple(logits.shape))
        return (logits / step).round() * step + self.noise * step * torch.from_numpy(noise).to(logits.dtype)

    def masked_weights(self) -> Weights:
        """By n_k; the original weighs classes."""
        return super().masked_weights() if self.reading == "original" else "size"

    @property
    def blends_raw_logits(self) -> bool:
        """The weighted mean of the clients' logits is what is distilled."""
        return True

    @property
    def title(self) -> str:
        """The reading is named if it is not the default."""
        if self.reading == "released" and not self.labelled:
            return "FedKD as released"
        return "FedKD" if self.reading == "paper" else f"FedKD ({self.reading})"

    def requires(self) -> frozenset[str]:
        """The original reading needs label counts, for its weights of classes."""
        return super().requires() | ({"label_counts"} if self.reading == "original" else set())
