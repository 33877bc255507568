"""FedOpt: the server's Adam takes the clients' mean change of parameters as its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedstill.algorithms.base import Positive
from fedstill.algorithms.fedavg import FedAvg
from fedstill.parties.server import Server
from fedstill.wire.messages import Parameters
from fedstill.wire.replies import Replies

Momentum = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedAdam (Algorithm 2): D = sum_k (n_k/n) theta^k - theta, and theta += `rate` m / (sqrt(v) + `tau`).

    m = `beta1` m + (1 - `beta1`) D from 0, v = `beta2` v + (1 - `beta2`) D^2 from tau^2, without bias correction. The
    paper tunes the rate (and tau) for each task: 1e-2 is only a starting point. Buffers are averaged, since they have
    no gradient (a variance must not become negative), and integers are the first client's.
    """

    rate: Positive = 1e-2
    beta1: Momentum = 0.9
    beta2: Momentum = 0.99
    tau: Positive = 1e-3

    paper: ClassVar[str] = "FedOpt (Reddi 2021), FedAdam, as in FedDRS"

    def server(self, me: Server, ups: Replies[Parameters]) -> Parameters:
        theta = me.parameters()
        mean = ups.average("parameters", self.shares(ups))
        # All that are not buffers: a parameter that two layers share has two names here, and both must change.
        buffers = {name for name, _ in me.model.module.named_buffers(remove_duplicate=False)}
        first, second = (me.memory.mappings.get(moment, {}) for moment in ("m", "v"))
        m, v = {}, {}
        for name in [name for name in theta if name not in buffers]:
            change = mean[name] - theta[name]
            zero = torch.zeros_like(change)
            m[name] = self.beta1 * first.get(name, zero) + (1 - self.beta1) * change
            v[name] = self.beta2 * second.get(name, zero + self.tau**2) + (1 - self.beta2) * change**2
            mean[name] = theta[name] + self.rate * m[name] / (v[name].sqrt() + self.tau)
        me.memory.mappings |= {"m": m, "v": v}
        me.set_parameters(mean)
        return Parameters(me.parameters())
