"""PyTorch Lightning: one callback. ``pip install evenstep[lightning]``.

::

    job = evenstep.init()
    trainer = Trainer(strategy="ddp", callbacks=[EvenstepCallback(job)], ...)

and ``train_dataloader`` returns ``job.loader(dataset, global_batch=..)``.
"""

# ruff: noqa: ARG002  # Lightning passes all of it by its order.

import warnings
from contextlib import AbstractContextManager, suppress
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import SettingError, UnsupportedError
from evenstep.frameworks import check_accumulate, check_ranks
from evenstep.hook import Loss
from evenstep.job import Job
from evenstep.loader import Loader
from evenstep.oom import OUT_OF_MEMORY

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError("evenstep.lightning needs Lightning 2: pip install evenstep[lightning]") from error

#: What Lightning says of a loader without a state of its own. Ours goes on where the callback's state stands.
_NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class EvenstepCallback(Callback):
    """Weights gradients, marks iterations, follows the learning rate, and goes into checkpoints.

    Works with trainers of ``lightning`` and of ``pytorch_lightning``. Lightning leaves the sampler of our loader alone,
    whatever ``use_distributed_sampler`` says. Logged metrics are synchronised as you say
    (``self.log(.., sync_dist=True)``), and are then means over ranks, not over samples.
    """

    def __init__(self, job: Job, *, loss: Loss | None = "mean") -> None:
        """Of a job.

        Args:
            job: what ``evenstep.init()`` returned.
            loss: of :meth:`evenstep.Job.wrap`; None where the module returns ``job.scale(loss)`` itself, as it must
                with FSDP and DeepSpeed.
        """
        self._job = job
        self._loss = loss
        self._has_begun = False
        self._is_midway = False
        self._step: AbstractContextManager[Any] | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The strategy has wrapped the model, and no batch was read yet."""
        check_ranks("Lightning", trainer.world_size, "say Trainer(devices=.., num_nodes=..) as torchrun does")
        model = trainer.strategy.model
        if self._loss is not None and trainer.world_size > 1:
            if not isinstance(model, DistributedDataParallel):
                raise UnsupportedError(
                    f"{type(trainer.strategy).__name__} is not DDP: return job.scale(loss) from training_step, and say "
                    "EvenstepCallback(job, loss=None)"
                )
            self._job.wrap(model, loss=self._loss)
        for optimizer in trainer.optimizers:
            self._job.optimizer(optimizer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The loader is there."""
        loader = trainer.train_dataloader
        if not isinstance(loader, Loader):
            raise SettingError(
                f"train_dataloader gave a {type(loader).__name__}: it must be job.loader(..), alone, so that "
                "batches are as the plan says"
            )
        check_accumulate("accumulate_grad_batches", trainer.accumulate_grad_batches, loader)
        self._has_begun = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Lightning may have read further than this batch."""
        self._is_midway = True
        self._step = self._job.step()
        self._step.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Checkpoints are written after this."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Also of an epoch that Lightning cuts short (``max_steps``, ``limit_train_batches``)."""
        self._is_midway = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lets the predictor hear of a batch that did not fit."""
        if self._has_begun and isinstance(exception, OUT_OF_MEMORY):
            with suppress(OUT_OF_MEMORY), self._job.on_oom():
                raise exception

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands; nothing before it begins."""
        if not self._has_begun:
            return {}
        state = self._job.state_dict()
        if state["position"] and not self._is_midway:
            # To Lightning a cut epoch is over, and it resumes with the next.
            state.update(epoch=state["epoch"] + 1, position=0)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning restores callbacks before it makes loaders."""
        if state_dict:
            warnings.filterwarnings("ignore", _NOT_RESUMABLE)
            self._job.load_state_dict(state_dict)
