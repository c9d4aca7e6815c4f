"""Running out of memory."""

import logging

import torch

from evenstep.errors import EvenstepError
from evenstep.opening import Wishes
from evenstep.run import Step
from evenstep.wire.client import Client

log = logging.getLogger("evenstep")

#: The error that devices raise; PyTorch 2.5 gave it the shorter name.
OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)

#: With fewer samples nothing can be given up.
_SAMPLES_MIN = 2


def report(wishes: Wishes, step: Step, error: BaseException) -> None:
    """Tells the predictor which batch did not fit, so that this worker never gets it again. Never raises."""
    settings, samples = wishes.settings, step.batch_size
    what = f"iteration {step.iteration}: {samples} samples did not fit into the memory of {settings.worker} ({error})"
    if settings.server is None or settings.job is None or wishes.fixed is not None:
        log.error("%s; give it fewer in init(plan=..), or cap it with init(max_local_batch=..)", what)
        return
    if samples < _SAMPLES_MIN:
        log.error("%s; fewer than %s cannot be planned", what, _SAMPLES_MIN)
        return
    try:
        client = Client(settings.server, settings.job, wishes.timeout_s)
        answer = client.report_oom(settings.worker, step.iteration, samples)
    except EvenstepError as unheard:
        log.error("%s; the predictor was not told: %s", what, unheard)  # noqa: TRY400  # The cause is the message.
    else:
        log.error("%s; from now on it gets at most %s. Begin the processes again.", what, answer.max_local_batch)
