"""The work of a site's worker: it hosts one client, and stores the client's state on the site's disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from fedstill.common import plugins
from fedstill.common.events import Step, Tell
from fedstill.engines import checkpoint
from fedstill.engines.checkpoint import Manifest
from fedstill.engines.host import Host
from fedstill.engines.hosting import Request
from fedstill.federation import own_record
from fedstill.federation.data import PublicSet, site_plan
from fedstill.federation.files import SiteFile
from fedstill.federation.job import Job
from fedstill.federation.requests import Refusal
from fedstill.federation.worker import Errand
from fedstill.plan.plan import Plan
from fedstill.wire.codecs import Passage
from fedstill.wire.messages import Message


class SiteHost:
    """Answers the requests that reach a worker."""

    def __init__(self, errand: Errand, tell: Tell) -> None:
        self.errand, self.tell = errand, tell
        self.job = Job.from_json(errand.job)
        self.file = SiteFile.model_validate(errand.file)
        self.folder = Path(errand.folder)
        plugins.allow_only(self.file.own)

    def answer(self, request: Request) -> bytes:
        """The reply to a request."""
        if request.what == "save":
            self._save(request.round)
            return b""
        if request.what == "restore":
            return json.dumps(self._restore(request.round)).encode()
        reply = self.host.answer(request)
        if request.what == "export":
            own_record.write(self.folder, self.plan, self.errand.site, self.file)
        return reply

    @cached_property
    def plan(self) -> Plan:
        """The site's part of the experiment; made when first used, because reading and tokenising take time."""
        self.tell(Step(self.errand.site, "reading", 0, 1))
        public = PublicSet.unpack(Path(self.errand.public).read_bytes())
        return site_plan(self.job, self.errand.site, self.file, public, self.folder)

    @cached_property
    def host(self) -> Host:
        """The host of the site's only client."""
        torch.set_num_threads(self.plan.experiment.threads)
        plan = replace(self.plan, host_bytes=None)
        return Host(plan, self.tell, [] if self.file.limits.parameters else [refuse_parameters])

    def _save(self, round: int) -> None:
        self._forget_after(round)
        files = self.host.save(round)
        manifest = Manifest(round, dict(files), {}, {}, {}, 0.0, self.job.experiment, self.plan.corpus_fingerprint)
        checkpoint.write(self.folder, manifest)

    def _restore(self, round: int) -> int:
        """Restore the newest state that is not after that round; returns that state's round."""
        self._forget_after(round)
        manifest, _ = checkpoint.latest(self.folder)
        if manifest is None:
            self.host.restore({})
            return 0
        if manifest.corpus != self.plan.corpus_fingerprint:
            raise Refusal("its rows are not those that the experiment began with: it cannot continue from its state.")
        self.host.restore(manifest.parties)
        return manifest.round

    def _forget_after(self, round: int) -> None:
        """Delete states of later rounds: they are of an abandoned run, and only the two newest states are kept."""
        for path in checkpoint.folder_of(self.folder).glob("round-*.json"):
            if int(path.stem.removeprefix("round-")) > round:
                path.unlink()


def refuse_parameters(message: Message, passage: Passage) -> Message:
    """A guard for outgoing messages at a site that does not allow parameters to leave."""
    if any(isinstance(value, Mapping) for value in vars(message).values()):
        raise Refusal(f"its limits do not allow parameters to leave, and {type(message).__name__} holds some.")
    return message
