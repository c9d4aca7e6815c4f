"""The sums of an iteration over all members: its gradients, and the numbers by which all decide alike.

Hooks on the parameters see the begin of the backward pass, and a callback of autograd its end, where the weighted
gradients are summed. DDP's reducer could not be used: it is unusable after a failed pass, and knows one set of ranks.

An iteration is complete for a member that has all sums. If another member has failed meanwhile, some may have them and
others not. The state of one that has them is then the state of all (:mod:`evenstep.elastic.job`).
"""

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import EvenstepError, UnsupportedError
from evenstep.exchange.report import SLOTS
from evenstep.gradients import fsdp
from evenstep.gradients.buffers import Kept, needs_two_samples
from evenstep.gradients.fsdp_state import at_end_of_backward
from evenstep.run.losses import Loss
from evenstep.run.step import Step

#: Time before the first look whether another member has seen a failure, and between two of them, in seconds.
_LOOK_S = 0.005

#: Pause between two looks at a collective, in seconds.
_POLL_S = 0.0002


class LostError(EvenstepError):
    """The sums of an iteration failed; the members divide its samples again."""


@dataclass(slots=True)
class Said:
    """Numbers of one member; the sum has the numbers of all of them in an iteration."""

    #: Whether a worker leaves after the iteration, and whether one is ready to come.
    leaves: bool
    has_new: bool
    #: The report of this member; see :meth:`evenstep.exchange.report.Report.to_row`.
    row: Sequence[float]
    #: A plan for later iterations, of rank 0 only.
    plan: Sequence[int] = ()


@dataclass(slots=True)
class Heard:
    """The numbers of all members in an iteration, the same on each of them."""

    leaving: list[int]
    has_new: bool
    rows: list[float]
    plan: list[int]


class Sums:
    """The gradients of the wrapped models of this process."""

    def __init__(self, say: Callable[[], Said], is_seen: Callable[[], bool], limit_s: float) -> None:
        """Creates the sums.

        Args:
            say: returns the numbers of this member at the end of the backward pass.
            is_seen: returns whether another member has seen a failure.
            limit_s: the time after which another member hangs, in seconds.
        """
        self._say, self._is_seen, self._limit_s = say, is_seen, limit_s
        self.models: list[torch.nn.Module] = []
        self._losses: list[Loss] = []
        #: The parameters with a hook, and the indices of their losses.
        self._hooked: dict[torch.nn.Parameter, int] = {}
        #: The iteration that is being computed; None outside of one.
        self._step: Step | None = None
        self._kept: Kept | None = None
        self._is_open = False
        #: The result of the iteration, and why it has none.
        self.heard: Heard | None = None
        self.failure: BaseException | None = None
        #: Time of the monotonic clock when this member began to wait for the others.
        self.begun_s = 0.0

    def wrap(self, model: torch.nn.Module, loss: Loss) -> None:
        """Follows the backward passes of a model.

        Raises:
            UnsupportedError: its gradients could not be summed alike by any number of members.
        """
        name = f"wrap({type(model).__name__})"
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise UnsupportedError(
                f"{name} with init(elastic=True): pass the module itself, because DDP's reducer belongs to a fixed set "
                "of ranks"
            )
        tensors = [*model.parameters(), *model.buffers()]
        if fsdp.modules(model) or any(hasattr(at, "placements") for at in tensors):
            raise UnsupportedError(
                f"{name} with init(elastic=True): parts of its parameters are on one rank only (fully_shard, DTensor), "
                "and end with it; use a module with whole parameters, or init() without elastic, and restart"
            )
        if needs_two_samples(model):
            raise UnsupportedError(
                f"{name} with init(elastic=True): batch norm depends on the shares, which change with the workers; use "
                "a layer that normalises each sample, such as GroupNorm"
            )
        if loss not in ("mean", "sum"):
            raise UnsupportedError(f'wrap(loss={loss!r}) with init(elastic=True): must be "mean" or "sum"')
        for parameter in model.parameters():
            if parameter.requires_grad and parameter not in self._hooked:
                self._hooked[parameter] = len(self._losses)
                parameter.register_post_accumulate_grad_hook(self._computed)
        self.models.append(model)
        self._losses.append(loss)

    def tensors(self) -> list[torch.Tensor]:
        """Returns the parameters and buffers of all models, in the same order on all members."""
        whole = [at for model in self.models for at in (*model.parameters(), *model.buffers())]
        return [at.data for at in dict.fromkeys(whole)]

    def begin(self, step: Step) -> None:
        """Begins an iteration without gradients."""
        self._step, self.heard, self.failure, self._is_open = step, None, None, False
        self._kept = Kept(self.models)
        self._clear()

    def end(self) -> None:
        """Ends the iteration."""
        self._step = self._kept = None

    def undo(self) -> None:
        """Undoes an iteration that has failed: its passes may have changed buffers."""
        if self._kept:
            self._kept.restore()
        self._clear()
        self.end()

    def _clear(self) -> None:
        for parameter in self._hooked:
            parameter.grad = None

    def _computed(self, _: torch.Tensor) -> None:
        """Sees a gradient of a backward pass."""
        if self._is_open:
            return
        if self._step is None:
            raise UnsupportedError(
                "a backward pass outside of `with job.step()`: put each iteration into one, with init(elastic=True)"
            )
        if self.heard:
            raise UnsupportedError(
                "a second backward pass in one `with job.step()`: init(elastic=True) sums the gradients after the "
                "first one; add the losses and compute one backward pass"
            )
        self._is_open = True
        at_end_of_backward(self._ends)

    def _ends(self) -> None:
        self._is_open = False
        try:
            self._sum()
        except EvenstepError as error:
            self.failure = error if isinstance(error, LostError) else None
            raise

    def _sum(self) -> None:
        step, parameters = self._step, list(self._hooked)
        if step is None:
            return
        trained = [at for model in self.models for at in model.parameters() if at.requires_grad]
        if missing := [at for at in trained if at not in self._hooked]:
            raise UnsupportedError(
                f"{len(missing)} parameters are trained that were frozen in job.wrap: wrap the model after it is final"
            )
        said, world_size = self._say(), dist.get_world_size()
        rank, plan_size = dist.get_rank(), world_size + 1
        numbers = torch.zeros(world_size + 1 + plan_size + len(parameters) + world_size * SLOTS, dtype=torch.float64)
        leaves, new, plan, used, rows = numbers.split([world_size, 1, plan_size, len(parameters), world_size * SLOTS])
        leaves[rank], new[0] = said.leaves, said.has_new
        if said.plan:
            plan[:] = torch.tensor([1, *said.plan])
        rows[rank * SLOTS : (rank + 1) * SLOTS] = torch.tensor(said.row, dtype=torch.float64)
        for at, parameter in enumerate(parameters):
            used[at] = parameter.grad is not None
        flats = self._flat(parameters, step)
        self.begun_s = time.monotonic()
        try:
            # The gradients come last: a member with them has all numbers, too.
            for each in (numbers, *(flat for flat, _ in flats)):
                self._complete(dist.all_reduce(each, async_op=True))
        except RuntimeError as error:
            raise LostError(f"iteration {step.iteration}: the sum over workers failed: {error}") from error
        is_used = dict(zip(parameters, used.tolist(), strict=True))
        for flat, of_flat in flats:
            parts = flat.split([at.numel() for at in of_flat])
            for parameter, part in zip(of_flat, parts, strict=True):
                parameter.grad = part.view_as(parameter) if is_used[parameter] else None
        planned = [int(batch) for batch in plan[1:].tolist()] if plan[0] else []
        leaving = [at for at, leaves_too in enumerate(leaves.tolist()) if leaves_too]
        self.heard = Heard(leaving, bool(new[0]), rows.tolist(), planned)

    def _flat(
        self, parameters: Sequence[torch.nn.Parameter], step: Step
    ) -> list[tuple[torch.Tensor, list[torch.nn.Parameter]]]:
        """Returns the weighted gradients, one tensor for each type and device."""
        groups: dict[Any, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise UnsupportedError(
                    f"a gradient with layout {parameter.grad.layout} with init(elastic=True): must be dense; use "
                    "Embedding(sparse=False)"
                )
            groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        flats = []
        for (dtype, device), group in groups.items():
            flat = torch.zeros(sum(at.numel() for at in group), dtype=dtype, device=device)
            # 0 times NaN is not 0, so a rank without samples adds zeros.
            for parameter, part in zip(group, flat.split([at.numel() for at in group]), strict=True):
                if parameter.grad is not None and step.local_batch:
                    mean = self._losses[self._hooked[parameter]] == "mean"
                    weight = step.weight if mean else 1 / step.global_batch
                    torch.mul(parameter.grad.reshape(-1), weight, out=part)
            flats.append((flat, group))
        return flats

    def gather(self, own: Any) -> list[Any]:
        """Returns the objects of all members, by rank."""
        data = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        sizes = torch.zeros(dist.get_world_size(), dtype=torch.int64)
        sizes[dist.get_rank()] = len(data)
        self.begun_s = time.monotonic()
        self._complete(dist.all_reduce(sizes, async_op=True))
        whole = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
        parts = whole.split(sizes.tolist())
        parts[dist.get_rank()].copy_(data)
        self._complete(dist.all_reduce(whole, async_op=True))
        return [pickle.loads(part.numpy().tobytes()) for part in parts]  # noqa: S301  # From the same job.

    def send(self, tensor: torch.Tensor, source: int) -> None:
        """Copies a tensor of bytes from a member to all."""
        if tensor.numel():
            self.begun_s = time.monotonic()
            self._complete(dist.broadcast(tensor, source, async_op=True))

    def tell(self, what: Any, source: int) -> Any:
        """Returns the object of a member on all."""
        is_own = dist.get_rank() == source
        data = torch.frombuffer(bytearray(pickle.dumps(what)), dtype=torch.uint8)
        size = torch.tensor([len(data)])
        self.send(size, source)
        data = data if is_own else torch.empty(int(size), dtype=torch.uint8)
        self.send(data, source)
        return what if is_own else pickle.loads(data.numpy().tobytes())  # noqa: S301  # From the same job.

    def _complete(self, work: Any) -> None:
        """Waits for a collective. Only one may be running: others would keep threads of a group that has changed.

        Raises:
            RuntimeError: it failed, another member has seen a failure, or hangs.
        """
        looked = time.monotonic()
        while not work.is_completed():
            time.sleep(_POLL_S)
            if (now := time.monotonic()) - looked > _LOOK_S:
                looked = now
                # Gloo does not wake a rank that waits for a living one.
                if self._is_seen():
                    raise RuntimeError("another worker has seen a failure")
                if now - self.begun_s > self._limit_s:
                    raise RuntimeError(f"another worker did not come within {self._limit_s} s")
        work.wait()
