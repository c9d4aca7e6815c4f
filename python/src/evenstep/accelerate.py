"""Hugging Face Accelerate: one call that replaces ``accelerator.prepare``. ``pip install evenstep[accelerate]``.

::

    job = evenstep.init()
    loader = job.loader(dataset, global_batch=512, accumulate=accelerator.gradient_accumulation_steps)
    model, optimizer, loader = evenstep.accelerate.prepare(job, accelerator, model, optimizer, loader)
"""

from functools import partial
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from evenstep.errors import UnsupportedError
from evenstep.job.frameworks import check_accumulate, check_ranks
from evenstep.job.job import Job
from evenstep.run.loader import Loader
from evenstep.run.losses import Loss

try:
    from accelerate.utils import send_to_device
except ImportError as error:
    raise ImportError("evenstep.accelerate needs Accelerate: pip install evenstep[accelerate]") from error


def prepare(job: Job, accelerator: Any, *objects: Any, loss: Loss = "mean") -> Any:
    """Prepares objects for training; replaces ``accelerator.prepare``.

    - Models become DDP models with weighted gradients.
    - Optimizers follow the job's learning-rate rule.
    - The loader of evenstep yields batches on the accelerator's device and is not sharded again.

    Preparing a model adds the job to ``accelerator.save_state``. Call ``accelerator.load_state`` before the first batch
    is read.

    Args:
        job: what ``evenstep.init()`` returned.
        accelerator: an ``accelerate.Accelerator``.
        *objects: models, optimizers, schedulers and loaders, in any order.
        loss: the reduction of the loss; see :meth:`evenstep.Job.wrap`.

    Returns:
        the prepared objects in the same order; a single object if one was given.

    Raises:
        SettingError: the accelerator's number of ranks or accumulation steps differs from the process group's or
            loader's.
        UnsupportedError: the prepared model is not DDP, and there are several processes.
    """
    check_ranks("Accelerate", accelerator.num_processes, "on CPUs use Accelerator(cpu=True)")
    for thing in objects:
        if isinstance(thing, Loader):
            check_accumulate("gradient_accumulation_steps", accelerator.gradient_accumulation_steps, thing)
            thing.moves(partial(send_to_device, device=accelerator.device, non_blocking=True))
    theirs = [thing for thing in objects if not isinstance(thing, Loader)]
    given = accelerator.prepare(*theirs) if theirs else ()
    prepared = iter(given if len(theirs) != 1 else (given,))
    done = [
        thing if isinstance(thing, Loader) else _evenstep_loader(job, accelerator, next(prepared), loss)
        for thing in objects
    ]
    return done[0] if len(done) == 1 else tuple(done)


def _evenstep_loader(job: Job, accelerator: Any, prepared: Any, loss: Loss) -> Any:
    if isinstance(prepared, Optimizer):
        # Accelerate's wrapper skips the steps between which gradients accumulate; the inner optimizer makes the real
        # step.
        job.optimizer(getattr(prepared, "optimizer", prepared))
    elif isinstance(prepared, Module) and any(parameter.requires_grad for parameter in prepared.parameters()):
        if isinstance(prepared, DistributedDataParallel):
            job.wrap(prepared, loss=loss)
        elif accelerator.num_processes > 1:
            raise UnsupportedError(
                f"{type(prepared).__name__} is not DDP: use accelerator.prepare and "
                "accelerator.backward(job.scale(loss)) instead"
            )
        accelerator.register_for_checkpointing(job)
    return prepared
