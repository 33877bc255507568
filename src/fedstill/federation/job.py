"""A job: what the centre asks the sites to take part in, and the hash that a site may insist on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import is_own
from fedstill.config.experiment import EXPERIMENT_NAME, Experiment, from_source
from fedstill.config.source import Source

LOCAL = ("corpus", "partition", "public", "client_tests", "engine", "workers", "device", "memory")
"""What of an experiment is each machine's own affair, or a simulation's."""


@dataclass(frozen=True)
class Job:
    """Plain data, the same at the centre and at every site."""

    experiment: dict[str, Any]
    """Without what is local; algorithms and models of one's own as `own:Class`."""
    public: str
    """The fingerprint of the public samples and labels."""
    samples: int
    labelled: int
    """How many public samples there are, and how many further ones that the centre has labels for."""
    sites: tuple[str, ...]
    version: str
    """Of fedstill at the centre."""

    @classmethod
    def make(
        cls, experiment: Experiment, public: str, samples: int, labelled: int, sites: Sequence[str], version: str
    ) -> Job:
        """The job that runs an experiment."""
        if experiment.labels is None:
            raise FedstillError(
                "labels: a federation needs the ordered list of labels in the experiment, because nobody sees all rows."
            )
        whole = experiment.resolved().model_dump(mode="json")
        kept = {key: anonymous(value) for key, value in whole.items() if key not in LOCAL}
        return cls(kept, public, samples, labelled, tuple(sorted(sites)), version)

    @cached_property
    def hash(self) -> str:
        """sha256 of everything that decides what happens; not of the version, which sites check by themselves."""
        body = asdict(self)
        del body["version"]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    @property
    def id(self) -> str:
        """What its state lies under, at the centre and at the sites."""
        return f"{self.experiment['name']}-{self.hash[:12]}"

    def to_json(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """What arrived, if it is a job."""
        try:
            body = json.loads(text)
            job = cls(**(body | {"sites": tuple(body["sites"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise FedstillError(f"this is no job of fedstill's ({error}).") from error
        kinds = ((job.experiment, dict), (job.public, str), (job.samples, int), (job.labelled, int), (job.version, str))
        if not all(type(value) is kind for value, kind in kinds):
            raise FedstillError("this is no job of fedstill's (a field is of another kind).")
        names = (job.experiment.get("name"), *job.sites)
        if not all(isinstance(name, str) and re.fullmatch(EXPERIMENT_NAME, name) for name in names):
            raise FedstillError("this is no job of fedstill's (a name is none).")
        return job

    def settled(self) -> Experiment:
        """The experiment; `plugins.allow_only` says first which classes of one's own a job may name."""
        if unwanted := sorted(set(self.experiment) & set(LOCAL)):
            raise FedstillError(f"the job sets {', '.join(unwanted)}, which is each machine's own affair.")
        return from_source(Source.of(self.experiment, "the job"))


def anonymous(value: Any) -> Any:
    """`file.py:Class` and `package.module:Class` as `own:Class`: where it lies is each machine's own affair."""
    if isinstance(value, str) and ".py:" in value:
        return f"own:{value.rpartition(':')[2]}"
    if isinstance(value, list):
        return [anonymous(part) for part in value]
    if not isinstance(value, dict):
        return value
    inside = {key: anonymous(part) for key, part in value.items()}
    if isinstance(name := inside.get("name"), str) and is_own(name):
        inside["name"] = f"own:{name.rpartition(':')[2]}"
    return inside
