"""Records a script's samples, the gradients that its optimizers get, and the resulting parameters."""

import math
import pickle
import random
import statistics
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from evenstep.errors import SettingError, UnsupportedError
from evenstep.run.losses import Loss
from evenstep.run.observer import Observer
from evenstep.run.step import Step
from evenstep.samples.checksums import tensor_bytes
from evenstep.samples.order import STREAM_STEPS, Order
from evenstep.settings.options import Fixed, RunOptions
from evenstep.verify.recording.items import RecordingDataset, checksum
from evenstep.verify.recording.micro import split_passes
from evenstep.verify.recording.models import Models, number_modules
from evenstep.verify.recording.plans import batches
from evenstep.verify.recording.task import INITIAL, Recorded, Task, Update, summary_file, update_file

#: Seed of the second run in one process.
_OTHER_SEED = 20_011

#: Number of steps after the end of an epoch, in multiples of the compared iterations, after which the script has kept
#: the batches.
_UNREAD = 2

#: Number of samples that are read twice.
_PROBES = 4

Tensors = dict[str, torch.Tensor]


class Recorder(Observer):
    """Records one process.

    Gradients are recorded right after an optimizer's step, when all aggregation, unscaling and clipping is done. Then
    the one process gets the parameters of the uneven ranks. So each step starts from the same state, and its gradient
    is an independent check without earlier differences.
    """

    def __init__(self, task: Task, finished: Callable[[], None]) -> None:
        """Starts with the next optimizer step; ``finished`` is called at the end and does not return."""
        self._task = task
        self._finished = finished
        self._recorded = Recorded()
        self._models: Models | None = None
        self._own_plan: Fixed | None = None
        self._order: Order | None = None
        #: Iteration of the last batch read.
        self._iteration = 0
        #: Number of samples in that batch.
        self._batch_size = 0
        #: Number of steps since the end of an epoch; None if a batch was read since.
        self._unread: int | None = None
        self._is_reseeded = False
        #: The parameters before the next step, in one process.
        self._before: Tensors = {}
        register_optimizer_step_post_hook(self._on_step)
        number_modules()

    def finish(self) -> None:
        """Writes the records and ends the process."""
        is_short = self._order is not None and self._order.limit is not None
        self._recorded.seen.lacks_epoch = is_short and len(self._recorded.iterations()) < self._task.steps
        path = summary_file(self._task.folder, self._task.rank)
        path.write_bytes(pickle.dumps(self._recorded))
        self._finished()

    # Events of the run

    def job_made(self, job_options: RunOptions) -> RunOptions:
        """Removes the predictor and sets the plans of the verification."""
        self._recorded.seen.has_init = True
        if job_options.mesh:
            raise UnsupportedError("evenstep verify compares with one process, which has no mesh: remove init(mesh=..)")
        self._own_plan = job_options.fixed
        return replace(job_options, settings=replace(job_options.settings, server=None), fixed=self._plan)

    def global_batch(self, asked: int) -> int:
        """Returns the global batch of the uneven ranks: some scripts multiply it by the number of processes."""
        return self._task.reference.global_batch if self._task.reference else asked

    def order(self, order: Order) -> Order:
        """Shortens long epochs, so that two are compared."""
        if 1 < self._task.steps <= order.steps < STREAM_STEPS:
            order = replace(order, limit=-(-self._task.steps // 2))
        self._order = order
        seen = self._recorded.seen
        seen.has_loader, seen.global_batch, seen.accumulate = True, order.global_batch, order.accumulate
        return order

    def dataset(self, dataset: Any) -> Any:
        """Wraps the data set.

        Some samples are read twice, to tell random contents from a split that differs between ranks.
        """
        length = len(dataset)
        probed = range(0, length, max(1, length // _PROBES))
        self._recorded.seen.probes = [(checksum(dataset[index]), checksum(dataset[index])) for index in probed]
        return RecordingDataset(dataset, self._task.folder, self._task.rank)

    def wrapped(self, loss: Loss, *, has_inner: bool) -> None:
        """Records the call."""
        self._recorded.seen.loss, self._recorded.seen.has_inner = loss, has_inner

    def scaled(self) -> None:
        """Records the call."""
        self._recorded.seen.has_scale = True

    def hedged(self) -> None:
        """Records the call."""
        self._recorded.seen.is_hedged = True

    def not_a_mean(self, told: str) -> None:
        """Records the loss."""
        self._recorded.seen.not_a_mean = told

    def epoch_begins(self) -> None:
        """Changes the random numbers of the second run, before worker processes draw theirs."""
        if self._task.role == "again" and not self._is_reseeded:
            self._is_reseeded = True
            reseed(_OTHER_SEED)

    def drawn(self, step: Step, indices: list[int]) -> list[int]:
        """Records the samples; the second run in one process adds them up in another order."""
        self._recorded.samples.setdefault(step.iteration, []).extend(indices)
        return indices[::-1] if self._task.role == "again" else indices

    def read(self, step: Step) -> None:
        """Records a batch. The first one finds the initial models; the last one is not trained on."""
        if self._models is None:
            self._begin()
        if step.iteration != self._iteration:
            self._end_if_done()
        self._iteration, self._unread = step.iteration, None
        # A remainder is smaller than the other passes.
        self._batch_size = 0 if step.has_own_passes else step.batch_size
        self._recorded.batches[step.iteration] = step.local_batch

    def epoch_ends(self) -> None:
        """Ends the recording with the epoch."""
        self._end_if_done()
        self._unread = 0

    # Internals

    def _plan(self, iteration: int) -> Sequence[int]:
        if self._order is None:
            if self._own_plan is None:
                raise SettingError("global_batch is missing: pass it, or use init(plan=..)")
            return self._own_plan(iteration) if callable(self._own_plan) else self._own_plan
        if self._task.world_size == 1:
            return [self._order.global_batch]
        return batches(self._task.plans, iteration, self._order.global_batch, self._order.accumulate)

    def _begin(self) -> None:
        self._models = models = Models()
        seen, path = self._recorded.seen, self._task.folder / INITIAL
        if self._task.is_plain:
            models.make_plain()
        else:
            seen.dropouts, seen.batch_norms = models.dropouts(), models.batch_norms()
        models.watch(self._notes_type)
        for root in models.roots:
            root.register_forward_pre_hook(self._notes_batch)
        if self._task.reference is None:
            seen.has_same_start = bool(models.tensors)
            # Ranks gather sharded tensors together.
            initial = {name: whole(tensor) for name, tensor in models.tensors.items()}
            if self._task.rank == 0:
                torch.save(initial, path)
            return
        initial = torch.load(self._task.reference.folder / INITIAL, weights_only=True)
        seen.has_same_start = bool(initial) and initial.keys() == models.tensors.keys()
        _take_over(models.tensors, initial)
        self._before = initial
        if self._task.micro_batch:
            for root in models.roots:
                split_passes(root, self._task.micro_batch, self._notes_split)

    def _notes_type(self, module: torch.nn.Module, *_: Any) -> None:
        """Records the type of autocast, and that of parameters, which FSDP casts for each pass."""
        types = self._recorded.seen.types
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                types.add(str(torch.get_autocast_dtype(device)))
        types.update(str(parameter.dtype) for parameter in module.parameters(recurse=False))

    def _notes_split(self) -> None:
        self._recorded.seen.is_split = True

    def _notes_batch(self, root: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Records a model whose input tensors do not have the number of samples of the last batch read."""
        shapes = [value.shape for value in args if isinstance(value, torch.Tensor) and value.ndim]
        if root.training and self._batch_size and shapes and not any(self._batch_size in shape for shape in shapes):
            self._recorded.seen.mismatched_batch = (self._iteration, self._batch_size, shapes[0][0])

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        updates = self._recorded.updates
        iterations = self._recorded.iterations()
        if self._iteration not in iterations and len(iterations) >= self._task.steps:
            self.finish()
        if self._models is None or not self._models.knows(optimizer):
            self._models = Models()
        parameters = self._models.named(optimizer)
        if not self._recorded.seen.has_loader:
            self._iteration = len(updates)
        gradients = {
            name: whole(parameter.grad) for name, parameter in parameters.items() if parameter.grad is not None
        }
        after = {name: whole(parameter) for name, parameter in parameters.items()}
        update = Update(self._iteration, _checksum(gradients), _checksum(after), dtype=_least_precise(gradients))
        update = self._kept(len(updates), update, parameters, gradients, after)
        updates.append(update)
        if not self._recorded.seen.has_loader and len(updates) >= self._task.steps:
            self.finish()
        if self._unread is not None:
            self._unread += 1
            # Loops that read ahead make a few steps after the end of an epoch.
            if self._unread >= _UNREAD * self._task.steps:
                self._recorded.seen.is_unread = True
                self.finish()

    def _kept(self, number: int, update: Update, parameters: Tensors, gradients: Tensors, after: Tensors) -> Update:
        """Records an update; in one process the next step then starts from the parameters of the uneven ranks."""
        task = self._task
        if task.reference is None:
            if task.rank == 0:
                torch.save({"gradients": gradients, "after": after}, update_file(task.folder, number))
            return update
        torch.save({"gradients": gradients}, update_file(task.folder, number))
        path = update_file(task.reference.folder, number)
        if not path.exists():
            # The uneven ranks ended before.
            self.finish()
        theirs: Tensors = torch.load(path, weights_only=True)["after"]
        apart = [
            difference(after[name] - self._before[name], theirs[name] - self._before[name])
            for name in after.keys() & theirs.keys() & self._before.keys()
        ]
        _take_over(parameters, theirs)
        self._before |= theirs
        return replace(update, apart=statistics.median(apart) if apart else 0.0)

    def _end_if_done(self) -> None:
        if len(self._recorded.iterations()) >= self._task.steps:
            self.finish()


def reseed(seed: int | None) -> None:
    """Seeds the random numbers of this process; None for a seed that no other process has."""
    random.seed(seed)
    torch.seed() if seed is None else torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy on the CPU; for a tensor sharded over ranks, the whole tensor."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().to_dense().cpu().clone()


def difference(own: torch.Tensor, other: torch.Tensor, floor: float = 0.0) -> float:
    """Returns the largest difference, relative to the other's largest entry or ``floor``; infinite if shapes differ."""
    if own.shape != other.shape:
        return float("inf")
    if not own.numel():
        return 0.0
    own, other = own.double(), other.double()
    # Overflow in both is not a difference.
    finite = own.isfinite() | other.isfinite()
    apart = float((own - other).where(finite, 0.0).abs().max())
    scale = max(float(other.nan_to_num(posinf=0.0, neginf=0.0).abs().max()), floor)
    if apart == 0.0:
        return 0.0
    return apart / scale if scale and math.isfinite(apart) else float("inf")


def _take_over(tensors: Tensors, theirs: Tensors) -> None:
    for name, tensor in tensors.items():
        if name in theirs and theirs[name].shape == tensor.shape:
            data: Any = tensor.detach()
            # The shard of one process is the whole tensor.
            (data.to_local() if hasattr(data, "to_local") else data).copy_(theirs[name])


def _checksum(tensors: Tensors) -> int:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensor_bytes(tensors[name]), value)
    return value


def _least_precise(tensors: Tensors) -> str:
    return str(max((tensor.dtype for tensor in tensors.values()), key=lambda dtype: torch.finfo(dtype).eps, default=""))
