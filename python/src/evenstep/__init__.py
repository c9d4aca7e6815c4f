"""Balanced synchronous training on unequal GPUs and CPUs.

Three lines in a training script::

    job = evenstep.init()
    loader = job.loader(dataset, global_batch=512)
    model = job.wrap(DistributedDataParallel(net))

Each worker gets a local batch sized so that all workers finish the step at the same time. The gradient equals the
gradient of the whole global batch. Every sample occurs exactly once per epoch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenstep.burst_parallel.model import Burst, burst
    from evenstep.elastic.job import ElasticJob
    from evenstep.errors import DivergedError, EvenstepError, RejectedError, SettingError, UnsupportedError
    from evenstep.job.init import init
    from evenstep.job.job import Job
    from evenstep.profiling.profiles import Profile, profile
    from evenstep.run.measured import measure_costs
    from evenstep.run.step import Step

__all__ = [
    "Burst",
    "DivergedError",
    "ElasticJob",
    "EvenstepError",
    "Job",
    "Profile",
    "RejectedError",
    "SettingError",
    "Step",
    "UnsupportedError",
    "burst",
    "init",
    "measure_costs",
    "profile",
]

_MODULES = {
    "Burst": "burst_parallel.model",
    "burst": "burst_parallel.model",
    "ElasticJob": "elastic.job",
    "Job": "job.job",
    "init": "job.init",
    "measure_costs": "run.measured",
    "Profile": "profiling.profiles",
    "profile": "profiling.profiles",
    "Step": "run.step",
}


def __getattr__(name: str) -> Any:
    """Loads a public name at its first use: importing torch takes seconds, which most commands need not wait for."""
    if name not in __all__:
        try:
            return importlib.import_module(f"evenstep.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module 'evenstep' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"evenstep.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
