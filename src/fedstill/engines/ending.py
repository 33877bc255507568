"""The end of a round: what its checkpoint needs of the moment when the answer is known, and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedstill.algorithms.base import Answers
from fedstill.common.files import FileReference, file_name
from fedstill.engines import checkpoint
from fedstill.engines.checkpoint import Manifest, folder_of
from fedstill.engines.host import write_state
from fedstill.parties.server import Server
from fedstill.plan.plan import Plan
from fedstill.wire.encoding import encode
from fedstill.wire.messages import SERVER


@dataclass(frozen=True)
class Ending:
    """A round whose answer is known. The server may still have to learn; the clients may have begun the next round."""

    round: int
    answer: Answers
    files: Mapping[str, FileReference] | None
    """The clients' states; None where the round has no checkpoint."""
    wire: Mapping[str, Mapping[str, Tensor]]
    """What codecs remember at the server."""
    totals: dict[str, int]
    """The bytes sent so far, up and down."""
    sizes: dict[str, int]
    active: int
    spent: dict[str, float] | None = None
    """Where the round's time went, if the rest is done when the next round has begun."""

    def save(self, plan: Plan, server: Server, offsets: dict[str, int], seconds: float) -> None:
        """Write the checkpoint, with the server as it is now and all else as it was."""
        by_client = dict(self.answer) if isinstance(self.answer, Mapping) else {"": self.answer}
        answers = {
            name: FileReference.write(
                folder_of(plan.folder), f"state/answer-{file_name(name)}.{self.round}", encode(message)
            )
            for name, message in by_client.items()
        }
        manifest = Manifest(
            round=self.round,
            parties={**(self.files or {}), SERVER: write_state(plan.folder, server, self.round, self.wire)},
            answer=answers,
            offsets=offsets,
            bytes=self.totals,
            seconds=seconds,
            experiment=plan.experiment.model_dump(mode="json"),
            corpus=plan.corpus_fingerprint,
            sizes=self.sizes,
        )
        checkpoint.write(plan.folder, manifest)
