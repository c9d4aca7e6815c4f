"""Balanced synchronous training on unequal GPUs and CPUs.

Three lines in a training script::

    job = evenstep.init()
    loader = job.loader(dataset, global_batch=512)
    model = job.wrap(DistributedDataParallel(net))

Each worker gets a local batch sized so that all workers finish the step at the same time. The gradient equals the
gradient of the whole global batch. Every sample occurs exactly once per epoch.
"""

from evenstep.errors import DivergedError, EvenstepError, RejectedError, SettingError, UnsupportedError
from evenstep.job import Job, init
from evenstep.profiles import Profile, profile
from evenstep.run import Step

__all__ = [
    "DivergedError",
    "EvenstepError",
    "Job",
    "Profile",
    "RejectedError",
    "SettingError",
    "Step",
    "UnsupportedError",
    "init",
    "profile",
]
