"""Handling of out-of-memory errors."""

import logging

import torch

from evenstep.errors import EvenstepError
from evenstep.opening import RunOptions
from evenstep.run import Step
from evenstep.wire.client import Client

log = logging.getLogger("evenstep")

#: The out-of-memory error of devices; available under this short name since PyTorch 2.5.
OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)

#: Smallest failing batch that can be reduced.
_SAMPLES_MIN = 2


def report(job_options: RunOptions, step: Step, error: BaseException) -> None:
    """Reports the batch that did not fit to the predictor, so that this worker never gets it again. Never raises."""
    settings, samples = job_options.settings, step.batch_size
    what = f"iteration {step.iteration}: {samples} samples did not fit into the memory of {settings.worker} ({error})"
    if settings.server is None or settings.job is None or job_options.fixed is not None:
        log.error("%s; give it fewer samples in init(plan=..), or cap it with init(max_local_batch=..)", what)
        return
    if samples < _SAMPLES_MIN:
        log.error("%s; no batch below %s samples is possible", what, _SAMPLES_MIN)
        return
    try:
        client = Client(settings.server, settings.job, job_options.timeout_s)
        answer = client.report_oom(settings.worker, step.iteration, samples)
    except EvenstepError as unheard:
        log.error("%s; reporting it to the predictor failed: %s", what, unheard)  # noqa: TRY400  # The message contains the cause.
    else:
        log.error("%s; its batch is now limited to %s samples. Restart the processes.", what, answer.max_local_batch)
