"""What the clients of a finished simulation would send next, from their saved models and through the whole crossing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.data.corpus import Ints
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.engines.host import Host
from fedstill.engines.seconds import Slip
from fedstill.parties.client import Client
from fedstill.plan.plan import Plan
from fedstill.results.audit import Heard
from fedstill.results.record import Record
from fedstill.wire.crossing import Crossing
from fedstill.wire.guard import form_of
from fedstill.wire.messages import Message, Opinion


def hear(plan: Plan, record: Record, trust_code: bool = False) -> Iterator[Heard]:
    """What the server hears of one client after the other; nothing is written."""
    experiment = plan.experiment
    wire = experiment.wire.model_copy(update={"mask": None})  # what a mask hides must be known to be summed
    unmasked = replace(
        plan,
        experiment=experiment.model_copy(update={"wire": wire}),
        host_bytes=None,
        device_bytes=None,
    )
    for name in plan.clients:
        yield _heard(unmasked, name, record, trust_code)


def _heard(plan: Plan, name: str, record: Record, trust_code: bool) -> Heard:
    host = Host(plan, tell_nobody)
    client = host.wake(name)
    client.set_parameters(record.model(name, trust_code).module.state_dict())
    before = client.parameters()
    message = _next(plan, host, client)
    store, train = client.data.train.store, plan.partition.train[name]

    def predict(parameters: Mapping[str, Tensor], rows: Ints) -> Tensor:
        client.set_parameters(parameters)
        return client.predict(Examples(store, rows))

    return Heard(
        name,
        message,
        train=train,
        others=plan.partition.test[name],
        predict=predict,
        before=before,
        embedding=table_of_tokens(client.model.module),
        tokens=_tokens(store, train) if isinstance(store, TokenStore) else np.empty(0, np.int64),
    )


def _next(plan: Plan, host: Host, client: Client) -> Message:
    """The client's reply in a further round; of a method with other verbs than `turn`, its model's opinions."""
    method, round = plan.experiment.method, plan.experiment.rounds + 1
    if type(method).opine is Algorithm.opine:
        return Opinion(client.predict()) if len(client.data.public) else Message()
    crossing = Crossing(plan.agreement, plan.make_server(tell_nobody), form_of=lambda _: form_of(client.model.module))
    call = crossing.calls("turn", None, [client.name], round)[client.name]
    try:
        raw, _ = Slip.take_off(host.call(client.name, call))
    except KeyError as error:
        raise FedstillError(
            f"{method.title} cannot be audited: its clients need what they remembered ({error}), and a finished run "
            "keeps only their models."
        ) from error
    reply = crossing.reply(raw, client.name, "turn", round).message
    assert reply is not None
    return reply


def table_of_tokens(module: nn.Module) -> str | None:
    """The name of a model's largest embedding among its parameters."""
    tables = {name: part for name, part in module.named_modules() if isinstance(part, nn.Embedding)}
    largest = max(tables, key=lambda name: tables[name].num_embeddings, default=None)
    return None if largest is None else f"{largest}.weight"


def _tokens(store: TokenStore, rows: Ints) -> Ints:
    """The tokens that occur in these rows."""
    return np.unique(np.concatenate([store.ids[store.offsets[row] : store.offsets[row + 1]] for row in rows]))
