"""Hugging Face's Trainer: change an import and add one argument. ``pip install evenstep[transformers]``.

::

    from evenstep.transformers import Trainer

    trainer = Trainer(job=evenstep.init(), model=model, args=arguments, train_dataset=dataset)

For other trainer classes, use the mixin: ``class MyTrainer(EvenstepMixin, SFTTrainer): pass``.
"""

# ruff: noqa: ARG002  # Callbacks get all arguments by name.

import json
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from evenstep.errors import SettingError, UnsupportedError
from evenstep.job.frameworks import check_ranks
from evenstep.job.job import Job
from evenstep.run.needs import Needs
from evenstep.samples.costs import SampleCosts
from evenstep.samples.items import total as items_over_ranks
from evenstep.samples.order import epoch_seed

try:
    import transformers
    from accelerate.data_loader import SeedableRandomSampler
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ImportError as error:
    raise ImportError("evenstep.transformers needs Transformers: pip install evenstep[transformers]") from error

#: File with the run's progress, next to the trainer's own state in each checkpoint.
STATE_NAME = "evenstep.json"

#: Settings that evenstep's loader takes over from the trainer's DataLoader.
_KEPT = ("collate_fn", "num_workers", "pin_memory", "worker_init_fn", "multiprocessing_context")
_KEPT_WITH_WORKERS = ("persistent_workers", "prefetch_factor")


class EvenstepMixin:
    """Mixin for any trainer class: batches sized by the plan, and the gradient of one process."""

    def __init__(
        self,
        *args: Any,
        job: Job,
        global_batch: int | None = None,
        cost: SampleCosts | str | None = None,
        hidden_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the trainer's arguments, and:

        Args:
            *args: passed to the trainer.
            job: what ``evenstep.init()`` returned.
            global_batch: number of samples per optimizer step over all ranks. Default ``per_device_train_batch_size``
                times ranks times ``gradient_accumulation_steps``.
            cost: the cost of each sample, as in :meth:`evenstep.Job.loader`, or the name of the column of the data set
                that has it, such as ``args.length_column_name``. The plan then balances tokens instead of samples.
            hidden_size: ``model.config.hidden_size``, from which the first estimate of attention's work follows, as in
                :meth:`evenstep.Job.loader`.
            **kwargs: passed to the trainer.

        Raises:
            UnsupportedError: an argument of the trainer also controls the batches.
        """  # noqa: D415  # The line ends with a colon.
        super().__init__(*args, **kwargs)
        self.args: Any
        if self.args.auto_find_batch_size:
            raise UnsupportedError(
                "auto_find_batch_size: the plan sizes batches; cap this rank with init(max_local_batch=..) instead"
            )
        # evenstep counts the items of a batch over ranks itself: items of a rank without samples must not count.
        self.args.average_tokens_across_devices = False
        # evenstep's loader resumes at the checkpoint's position, so no data needs to be skipped.
        self.args.ignore_data_skip = True
        # Models reshape by the number of rows, which is impossible for 0.
        job._gradients.needs |= Needs(needs_samples=True)  # noqa: SLF001  # Both classes are evenstep's own.
        self._job = job
        self._global_batch = global_batch
        self._cost = self._column(cost) if isinstance(cost, str) else cost
        self._hidden_size = hidden_size
        self._loader: Any = None
        #: By micro-batch: the weight of its mean loss, and its number of items if the trainer counts them.
        self._shares: deque[tuple[Any, Any]] = deque()
        self._share: tuple[Any, Any] | None = None
        self.add_callback(_Callback(self, job))  # type: ignore[attr-defined]  # Defined by the trainer.

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Trains like the trainer's own method; a checkpoint must have been written by a trainer with evenstep."""
        found = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        if found:
            path = Path(found) / STATE_NAME
            if not path.is_file():
                raise SettingError(f"{path} is missing: only checkpoints written with evenstep can be resumed with it")
            self._job.load_state_dict(json.loads(path.read_text()))
        ended = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        return ended._replace(training_loss=ended.metrics["train_loss"])

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs numbers. At the end of a training, its mean loss becomes the mean over all ranks.

        The trainer itself adds the weighted losses of rank 0 since the last log.
        """
        if "train_runtime" in logs and self.args.world_size > 1:
            mean = torch.tensor(logs["train_loss"], device=self.args.device)
            dist.all_reduce(mean)
            logs["train_loss"] = mean.item() / self.args.world_size
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        """Returns evenstep's loader with the settings and the sampler of the trainer's own loader."""
        check_ranks("the Trainer", self.args.world_size, "on CPUs use TrainingArguments(use_cpu=True)")
        theirs = super().get_train_dataloader()  # type: ignore[misc]  # Defined by the trainer.
        kept = _KEPT + (_KEPT_WITH_WORKERS if theirs.num_workers else ())
        args, seed = self.args, self.args.data_seed
        sampler = _sampler(theirs)
        try:
            self._loader = self._job.loader(
                theirs.dataset,
                global_batch=self._global_batch
                or args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps,
                **_order(sampler, len(theirs.dataset), args.seed if seed is None else seed),
                drop_last=args.dataloader_drop_last,
                accumulate=args.gradient_accumulation_steps,
                cost=self._cost,
                hidden_size=self._hidden_size,
                **{name: getattr(theirs, name) for name in kept},
            )
        except SettingError as error:
            raise SettingError(f"with the trainer's {type(sampler).__name__}: {error}") from error
        if self._loader.sampler.num_replicas != self.args.world_size:
            raise UnsupportedError(
                f"init(mesh=..) with {self._loader.sampler.num_replicas} workers on {self.args.world_size} ranks: the "
                "Trainer counts each rank as a worker; use your own loop, or remove mesh"
            )
        return self._loader

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *device: Any) -> tuple[list[Any], Any]:
        """Reads the micro-batches of an optimizer step and computes their weights."""
        batches, items = [], []
        for _ in range(num_batches):
            read, count = super().get_batch_samples(epoch_iterator, 1, *device)  # type: ignore[misc]
            batches += read
            items += [count] * len(read)
        if not batches:
            return [], None
        self._shares = deque(zip(self._shares_of(items), items, strict=True))
        return batches, None if items[0] is None else sum(items)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Trains on one micro-batch."""
        with self._job.step(), self._job.on_oom():
            self._share = self._shares.popleft()
            try:
                return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
            finally:
                self._share = None

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Returns the loss, scaled so that DDP's average over ranks is the gradient of one process.

        A model that divides by ``num_items_in_batch`` gets the number of items in this micro-batch, so its loss is
        their mean. Models without this argument return a mean as well. That mean is then multiplied by its weight in
        the mean over all items.
        """
        # An evaluation has none. A subclass may compute several losses in a training step.
        if self._share is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch, **kwargs)  # type: ignore[misc]
        factor, items = self._share
        items = None if items is None else items.clamp(min=1)
        outputs: Any = None
        loss = super().compute_loss(model, inputs, return_outputs, items, **kwargs)  # type: ignore[misc]
        if return_outputs:
            loss, outputs = loss
        loss = loss * factor
        return (loss, outputs) if return_outputs else loss

    def _column(self, name: str) -> Any:
        dataset = self.train_dataset  # type: ignore[attr-defined]  # Defined by the trainer.
        if name not in (names := getattr(dataset, "column_names", None) or []):
            raise SettingError(f"cost={name!r}: train_dataset has no such column, only {list(names)}")
        return list(dataset[name])

    def _shares_of(self, items: list[Any]) -> list[Any]:
        """Returns the weight of each micro-batch's mean, times the number of ranks, by which DDP divides."""
        step, ranks = self._loader.latest, self.args.world_size
        sizes = step.sizes if step.local_batch else [0] * len(items)
        scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if scaled is not None and scaled != (items[0] is not None):
            raise UnsupportedError(
                f"loss_is_scaled_for_ga={scaled}: must be None, so that the reduction of the loss is known"
            )
        if items[0] is None:
            if step.work is not None and len(set(step.passes)) > 1:
                raise UnsupportedError(
                    f"micro-batches of {list(step.passes)} samples whose losses are means: the trainer must count "
                    "items, as it does for models with labels; or use gradient_accumulation_steps=1 with cost"
                )
            # The trainer divides by the number of micro-batches.
            return [size * len(items) / step.global_batch * ranks for size in sizes]
        group = dist.group.WORLD if ranks > 1 else None
        counted = [count for count, size in zip(items, sizes, strict=True) if size]
        total = items_over_ranks(counted, self.args.device, group).wait()
        return [count * ranks / total if size else 0.0 for count, size in zip(items, sizes, strict=True)]


class Trainer(EvenstepMixin, transformers.Trainer):
    """Hugging Face's Trainer with evenstep."""


class _Callback(transformers.TrainerCallback):
    """Actions between the training steps."""

    def __init__(self, trainer: Any, job: Job) -> None:
        self._trainer = trainer
        self._job = job
        self._wrapped: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer._loader is None:  # noqa: SLF001  # Both classes implement one object.
            raise UnsupportedError(
                f"{type(self._trainer).__name__}.get_train_dataloader is overridden: the plan must size the batches; "
                "override _get_train_sampler instead, or put EvenstepMixin before the class that overrides it"
            )
        model = self._trainer.model_wrapped
        if model is self._wrapped:
            return
        self._wrapped = model
        if isinstance(model, DistributedDataParallel):
            self._job.wrap(model, loss="scaled")
        elif args.world_size > 1:
            raise UnsupportedError(f"{type(model).__name__} is not DDP: evenstep supports only DDP with the Trainer")
        optimizer = self._trainer.optimizer
        self._job.optimizer(getattr(optimizer, "optimizer", optimizer))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # After a resume the trainer assumes that it read the epoch from its start.
        loader = self._trainer._loader  # noqa: SLF001  # Both classes implement one object.
        state.epoch = state.global_step * loader.accumulate / len(loader)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.should_save:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            (folder / STATE_NAME).write_text(json.dumps(self._job.state_dict()))


def _sampler(theirs: Any) -> Any:
    """Returns the sampler of the trainer's own loader, which Accelerate has split over ranks.

    Raises:
        UnsupportedError: the loader reads a stream, or composes its batches itself.
    """
    if isinstance(theirs.dataset, IterableDataset):
        raise UnsupportedError(
            f"train_dataset is a stream ({type(theirs.dataset).__name__}): must have a length and random access; use "
            "such a data set, or your own loop with job.step(global_batch=..)"
        )
    batches = theirs.batch_sampler
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    if type(batches) is not BatchSampler:
        raise UnsupportedError(
            f"{type(batches).__name__} composes the batches of the trainer, but the plan sizes them: override "
            "_get_train_sampler, which returns an order of samples, instead"
        )
    return batches.sampler


def _order(sampler: Any, samples: int, seed: int) -> dict[str, Any]:
    """Returns the arguments of ``job.loader`` for the order of a sampler."""
    if type(sampler) is SequentialSampler:
        return {"shuffle": False}
    # Other subclasses may have another order.
    is_random = type(sampler) in {RandomSampler, SeedableRandomSampler}
    if is_random and not sampler.replacement and sampler.num_samples == samples:
        return {"shuffle": True, "seed": seed}

    def order(epoch: int) -> list[int]:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        # The random numbers of ranks differ after the first steps.
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed the GPUs, whose dropout would then be the same on all ranks.
            torch.default_generator.manual_seed(epoch_seed(seed, epoch))
            if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
                generator.manual_seed(epoch_seed(seed, epoch))
            return list(sampler)

    return {"order": order}
