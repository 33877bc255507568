"""What a site's worker does: a host of one client, its state on the site's own disk, and a guard on what leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedstill.common import plugins
from fedstill.common.events import Event, Step
from fedstill.engines import checkpoint
from fedstill.engines.checkpoint import Manifest
from fedstill.engines.host import Host
from fedstill.engines.seconds import Slip
from fedstill.federation.data import PublicSet, site_plan
from fedstill.federation.files import SiteFile
from fedstill.federation.job import Job
from fedstill.federation.requests import Refusal
from fedstill.federation.worker import Errand
from fedstill.plan.plan import Plan
from fedstill.wire.messages import decode

SHOWN = ("phase", "done", "steps", "epochs")
"""What a site tells of its progress: how far it is, never how well it does."""


class SiteHost:
    """Answers the requests that reach a worker."""

    def __init__(self, errand: Errand, tell: Callable[[dict[str, Any]], None]) -> None:
        self.errand, self.tell = errand, tell
        self.job = Job.from_json(errand.job)
        self.file = SiteFile.model_validate(errand.file)
        self.folder = Path(errand.folder)
        plugins.allow_only(self.file.own)

    def answer(self, header: Mapping[str, Any], payload: bytes) -> bytes:
        """What is asked for, as bytes."""
        kind = header["what"]
        if kind == "call":
            return self._checked(self.host.call(self.errand.site, payload))
        if kind == "save":
            self._save(int(header["round"]))
        elif kind == "restore":
            return json.dumps(self._restore(int(header["round"]))).encode()
        elif kind == "export":
            self.host.export(self.errand.site)
        return b""

    @cached_property
    def plan(self) -> Plan:
        """The site's part of the experiment; reading and tokenising take their time."""
        self.tell({"phase": "reading", "done": 0, "steps": 1})
        public = PublicSet.unpack(Path(self.errand.public).read_bytes())
        return site_plan(self.job, self.errand.site, self.file, public, self.folder)

    @cached_property
    def host(self) -> Host:
        """One client's."""
        torch.set_num_threads(self.plan.threads)
        return Host(self.plan, None, self._progress)

    def _progress(self, event: Event) -> None:
        if isinstance(event, Step):
            self.tell({key: getattr(event, key) for key in SHOWN})

    def _checked(self, reply: bytes) -> bytes:
        """The reply, if it holds nothing that the site keeps to itself."""
        if not self.file.limits.parameters:
            message = decode(Slip.take_off(reply)[0], self.host.types).message
            if any(isinstance(value, Mapping) for value in vars(message).values()):
                raise Refusal(f"its limits forbid that parameters leave, and {type(message).__name__} holds some.")
        return reply

    def _save(self, round: int) -> None:
        self._forget_after(round)
        files = self.host.save(round)
        manifest = Manifest(round, dict(files), {}, {}, {}, 0.0, self.job.experiment, self.plan.corpus_fingerprint)
        checkpoint.write(self.folder, manifest)

    def _restore(self, round: int) -> int:
        """Go back to the newest state that is no newer than that round; which one that was."""
        self._forget_after(round)
        manifest, _ = checkpoint.latest(self.folder)
        if manifest is None:
            self.host.restore({})
            return 0
        if manifest.corpus != self.plan.corpus_fingerprint:
            raise Refusal("its rows are not those that the experiment began with: it cannot go on from its state.")
        self.host.restore(manifest.parties)
        return manifest.round

    def _forget_after(self, round: int) -> None:
        """States of later rounds are of a run that went another way: kept, they would drive out those of this one."""
        for path in checkpoint.folder_of(self.folder).glob("round-*.json"):
            if int(path.stem.removeprefix("round-")) > round:
                path.unlink()
