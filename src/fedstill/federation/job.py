"""A job: the experiment that the centre asks the sites to run, and its hash, which a site may require."""

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

LOCAL = (
    "corpus",
    "partition",
    "public",
    "client_tests",
    "alone",
    "measure",
    "engine",
    "workers",
    "device",
    "memory",
    "report_to",
)
"""Keys of an experiment that each machine sets for itself, or that only a simulation uses."""


@dataclass(frozen=True)
class Job:
    """The experiment and its public samples; the same at the centre and at every site."""

    experiment: dict[str, Any]
    """Without the keys of LOCAL; user-written algorithms and models are named `own:Class`."""
    public: str
    """The fingerprint of the public samples and labels."""
    samples: int
    labelled: int
    """The number of public samples, and of further public texts for which the centre has labels."""
    sites: tuple[str, ...]
    version: str
    """The centre's version of fedstill."""

    @classmethod
    def make(
        cls, experiment: Experiment, public: str, samples: int, labelled: int, sites: Sequence[str], version: str
    ) -> Job:
        """The job that runs an experiment."""
        if experiment.labels is None:
            raise FedstillError(
                "labels: a federation needs the ordered list of labels in the experiment, because nobody sees all rows."
            )
        if experiment.faults:
            raise FedstillError("faults are for simulations: nobody is made to lie in a federation.")
        whole = experiment.resolved().model_dump(mode="json")
        kept = {key: anonymous(value) for key, value in whole.items() if key not in LOCAL}
        return cls(kept, public, samples, labelled, tuple(sorted(sites)), version)

    @cached_property
    def hash(self) -> str:
        """The sha256 of everything except the version, which sites check separately."""
        body = asdict(self)
        del body["version"]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    @property
    def id(self) -> str:
        """The name of its folder, at the centre and at the sites."""
        return f"{self.experiment['name']}-{self.hash[:12]}"

    def to_json(self) -> str:
        """The text that is sent."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job in a received text; an error if it holds none."""
        try:
            body = json.loads(text)
            job = cls(**(body | {"sites": tuple(body["sites"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise FedstillError(f"this is not a job of fedstill ({error}).") from error
        kinds = ((job.experiment, dict), (job.public, str), (job.samples, int), (job.labelled, int), (job.version, str))
        if not all(type(value) is kind for value, kind in kinds):
            raise FedstillError("this is not a job of fedstill (a field has the wrong type).")
        names = (job.experiment.get("name"), *job.sites)
        if not all(isinstance(name, str) and re.fullmatch(EXPERIMENT_NAME, name) for name in names):
            raise FedstillError("this is not a job of fedstill (a name is not valid).")
        return job

    def settled(self) -> Experiment:
        """The typed experiment; before, `plugins.allow_only` must have set which user-written classes are allowed."""
        if unwanted := sorted(set(self.experiment) & set(LOCAL)):
            raise FedstillError(f"the job sets {', '.join(unwanted)}, which each machine sets for itself.")
        return from_source(Source.of(self.experiment, "the job"))


def anonymous(value: Any) -> Any:
    """`file.py:Class` and `package.module:Class` become `own:Class`: each machine has its own path to the class."""
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
