"""Hugging Face Accelerate: one call in place of ``accelerator.prepare``. ``pip install evenstep[accelerate]``.

::

    job = evenstep.init()
    loader = job.loader(dataset, global_batch=512, accumulate=accelerator.gradient_accumulation_steps)
    model, optimizer, loader = evenstep.accelerate.prepare(job, accelerator, model, optimizer, loader)
"""

from collections.abc import Iterator
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from evenstep.errors import UnsupportedError
from evenstep.frameworks import check_accumulate, check_ranks
from evenstep.hook import Loss
from evenstep.job import Job
from evenstep.loader import Loader

try:
    from accelerate.utils import send_to_device
except ImportError as error:
    raise ImportError("evenstep.accelerate needs Accelerate: pip install evenstep[accelerate]") from error


def prepare(job: Job, accelerator: Any, *objects: Any, loss: Loss = "mean") -> Any:
    """Prepares as ``accelerator.prepare`` does, which then needs not be called.

    Models become DDP with weighted gradients, optimizers follow the learning-rate instruction, our loader gives batches
    on the accelerator's device and is not shared out a second time. With the model, the job becomes part of
    ``accelerator.save_state``; ``accelerator.load_state`` must come before ``job.loader``, so prepare the loader alone
    after it.

    Args:
        job: what ``evenstep.init()`` returned.
        accelerator: an ``accelerate.Accelerator``.
        *objects: models, optimizers, schedulers, loaders, in any order.
        loss: of :meth:`evenstep.Job.wrap`.

    Returns:
        what was given, prepared, in the same order; alone where it was one.

    Raises:
        SettingError: the accelerator sees other ranks, or accumulates other than the loader.
        UnsupportedError: neither DDP nor a single process.
    """
    check_ranks("Accelerate", accelerator.num_processes, "on CPUs say Accelerator(cpu=True)")
    for thing in objects:
        if isinstance(thing, Loader):
            check_accumulate("gradient_accumulation_steps", accelerator.gradient_accumulation_steps, thing)
    theirs = [thing for thing in objects if not isinstance(thing, Loader)]
    given = accelerator.prepare(*theirs) if theirs else ()
    prepared = iter(given if len(theirs) != 1 else (given,))
    done = [
        Placed(thing, accelerator.device)
        if isinstance(thing, Loader)
        else _ours(job, accelerator, next(prepared), loss)
        for thing in objects
    ]
    return done[0] if len(done) == 1 else tuple(done)


class Placed:
    """A loader whose batches are on a device."""

    def __init__(self, loader: Loader, device: Any) -> None:
        """Gives what ``loader`` gives, on ``device``."""
        self._loader = loader
        self._device = device

    @property
    def dataset(self) -> Any:
        """What is trained on."""
        return self._loader.dataset

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """What is left of the epoch."""
        for batch in self._loader:
            yield send_to_device(batch, self._device, non_blocking=True)


def _ours(job: Job, accelerator: Any, prepared: Any, loss: Loss) -> Any:
    if isinstance(prepared, Optimizer):
        # Accelerate's wrapper leaves out the steps between which gradients accumulate; the one inside steps.
        job.optimizer(getattr(prepared, "optimizer", prepared))
    elif isinstance(prepared, Module) and any(parameter.requires_grad for parameter in prepared.parameters()):
        if isinstance(prepared, DistributedDataParallel):
            job.wrap(prepared, loss=loss)
        elif accelerator.num_processes > 1:
            raise UnsupportedError(
                f"{type(prepared).__name__} is not DDP: use accelerator.prepare, and "
                "accelerator.backward(job.scale(loss))"
            )
        accelerator.register_for_checkpointing(job)
    return prepared
