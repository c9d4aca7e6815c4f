"""PyTorch Lightning: one callback. ``pip install evenstep[lightning]``.

::

    job = evenstep.init()
    trainer = Trainer(strategy="ddp", callbacks=[EvenstepCallback(job)], ...)

``train_dataloader`` must return ``job.loader(dataset, global_batch=..)``.
"""

# ruff: noqa: ARG002  # Lightning passes the arguments by position.

import warnings
from contextlib import AbstractContextManager, suppress
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import SettingError, UnsupportedError
from evenstep.job.frameworks import check_accumulate, check_ranks
from evenstep.job.job import Job
from evenstep.job.oom import is_out_of_memory
from evenstep.run.loader import Loader
from evenstep.run.losses import Loss

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError("evenstep.lightning needs Lightning 2: pip install evenstep[lightning]") from error

#: Lightning's warning for loaders without their own state. The callback restores the position of evenstep's loader.
_NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class EvenstepCallback(Callback):
    """Weights gradients, marks iterations, applies the learning-rate rule, and saves the run's progress in checkpoints.

    Works with trainers of ``lightning`` and of ``pytorch_lightning``. Lightning does not replace the sampler of
    evenstep's loader, regardless of ``use_distributed_sampler``. Metrics logged with ``self.log(.., sync_dist=True)``
    are means over ranks, not over samples.
    """

    def __init__(self, job: Job, *, loss: Loss | None = "mean") -> None:
        """Creates the callback of a job.

        Args:
            job: what ``evenstep.init()`` returned.
            loss: the reduction of the loss, see :meth:`evenstep.Job.wrap`. Use None if the module returns
                ``job.scale(loss)`` itself, which is required with FSDP and DeepSpeed.
        """
        self._job = job
        self._loss = loss
        self._has_begun = False
        self._is_epoch_cut = False
        self._step: AbstractContextManager[Any] | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Wraps the model; Lightning calls this after the strategy has wrapped it, and before the first batch."""
        check_ranks(
            "Lightning", trainer.world_size, ("use Trainer(devices=.., num_nodes=..) with the values that torchrun has")
        )
        if trainer.overfit_batches:
            raise UnsupportedError(
                f"overfit_batches={trainer.overfit_batches}: Lightning would replace the sampler of the loader; use "
                "limit_train_batches and job.loader(.., shuffle=False)"
            )
        model = trainer.strategy.model
        if self._loss is not None and trainer.world_size > 1:
            if not isinstance(model, DistributedDataParallel):
                raise UnsupportedError(
                    f"{type(trainer.strategy).__name__} is not DDP: return job.scale(loss) from training_step and "
                    "use EvenstepCallback(job, loss=None)"
                )
            self._job.wrap(model, loss=self._loss)
        for optimizer in trainer.optimizers:
            self._job.optimizer(optimizer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Checks the loader, which exists from here on."""
        loader = trainer.train_dataloader
        if not isinstance(loader, Loader):
            raise SettingError(
                f"train_dataloader returned a {type(loader).__name__}: must be a single job.loader(..), so that "
                "the plan sizes the batches"
            )
        check_accumulate("accumulate_grad_batches", trainer.accumulate_grad_batches, loader)
        self._has_begun = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Marks the batch; Lightning may have read ahead of it."""
        self._is_epoch_cut = True
        self._step = self._job.step()
        self._step.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Finishes the iteration; Lightning writes checkpoints after this."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Finishes the epoch, also if Lightning ends it early (``max_steps``, ``limit_train_batches``)."""
        self._is_epoch_cut = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Reports an out-of-memory error to the predictor."""
        if self._has_begun and isinstance(exception, RuntimeError) and is_out_of_memory(exception):
            with suppress(RuntimeError), self._job.on_oom():
                raise exception

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the run; empty before it starts."""
        if not self._has_begun:
            return {}
        state = self._job.state_dict()
        if state["position"] and not self._is_epoch_cut:
            # Lightning counts a shortened epoch as finished and resumes with the next one.
            state.update(epoch=state["epoch"] + 1, position=0)
            state.update({"sample": 0} if "sample" in state else {})
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the progress; Lightning restores callbacks before it creates loaders."""
        if state_dict:
            warnings.filterwarnings("ignore", _NOT_RESUMABLE)
            self._job.load_state_dict(state_dict)
