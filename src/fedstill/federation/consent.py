"""What a site takes part in: an experiment that its file does not allow is refused in one sentence."""

from __future__ import annotations

from fedstill.common import plugins
from fedstill.common.errors import FedstillError
from fedstill.common.version import VERSION
from fedstill.config.experiment import Experiment
from fedstill.federation.data import rows_at_once, sends_parameters
from fedstill.federation.files import SiteFile
from fedstill.federation.job import Job
from fedstill.federation.requests import Refusal
from fedstill.plan.needs import check_privacy


def refuse_unwanted(job: Job, file: SiteFile, name: str) -> Experiment:
    """The experiment of a job; refuses one that the site's file does not allow, which the centre may be told."""
    limits = file.limits
    if job.version != VERSION:
        raise Refusal(f"it runs fedstill {VERSION}, and the centre {job.version}: install the same version.")
    if name not in job.sites:
        raise Refusal("it is not among the experiment's sites.")
    if limits.experiments is not None and not any(job.hash.startswith(known) for known in limits.experiments):
        raise Refusal(f"it has not accepted this experiment, whose hash is {job.hash[:16]}.")
    plugins.allow_only(file.own)
    try:
        experiment = job.settled()
        algorithm = experiment.method
    except FedstillError as error:
        if any(place.rpartition(":")[0] in str(error) for place in file.own.values()):
            raise  # the message names a file of the site: it goes only to the site's log
        # The message is about the job and contains nothing of the site's.
        raise Refusal(f"it cannot run the experiment: {error}") from error
    if limits.rounds is not None and experiment.rounds > limits.rounds:
        raise Refusal(f"it takes part in {limits.rounds} rounds at most, and the experiment has {experiment.rounds}.")
    if not limits.parameters and sends_parameters(algorithm):
        raise Refusal(f"its limits do not allow parameters to leave, and {algorithm.title} sends them.")
    if limits.masks and experiment.wire.mask is None:
        raise Refusal("it takes part only in experiments with `wire: {mask: true}`, and this one has no masks.")
    rows = rows_at_once(job, experiment, name, file)
    if rows is not None and rows < limits.min_rows:
        raise Refusal(f"it trains on {limits.min_rows} rows at least (min_rows), and train.rows is {rows}.")
    try:
        check_privacy(experiment, {}, job.samples)
    except FedstillError as error:
        raise Refusal(str(error)) from error
    return experiment
