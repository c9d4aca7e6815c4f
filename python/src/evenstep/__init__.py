"""Unequal GPUs and CPUs that finish every step together.

Three lines in a training script::

    job = evenstep.init()
    loader = job.loader(dataset, global_batch=512)
    model = job.wrap(DistributedDataParallel(net))

Each worker gets as many samples as it can finish by the same moment; the gradient stays that of the whole global
batch, and every sample comes exactly once an epoch.
"""

from evenstep.errors import DivergedError, EvenstepError, RefusedError, SettingError, UnsupportedError
from evenstep.job import Job, init
from evenstep.profiles import Profile, profile
from evenstep.run import Step

__all__ = [
    "DivergedError",
    "EvenstepError",
    "Job",
    "Profile",
    "RefusedError",
    "SettingError",
    "Step",
    "UnsupportedError",
    "init",
    "profile",
]
