"""The module that trains a model by a burst-parallel plan."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from evenstep.burst_parallel.cut import Piece, cut, opened_modules
from evenstep.burst_parallel.plan import Plan, read_plan
from evenstep.burst_parallel.routes import Layout, Move, Route, first_layout, moved
from evenstep.errors import DivergedError, EvenstepError, SettingError, UnsupportedError

#: The last training pass in which ranks compare their parameters: in the first three, then in those numbered by powers of two.
_COMPARED_MAX = 1024
#: Maximum difference of the sums of parameters, in roundings of their norm. Replicas differ by rounding if devices differ.
_ROUNDINGS = 64


def burst(
    model: nn.Module, plan: str | PathLike[str] | Mapping[str, Any], *, loss: Literal["mean", "sum"] = "mean"
) -> "Burst":
    """Returns a module that runs each block of a model on its own ranks, with its own shares of the samples.

    All ranks must call it together, with the same model and plan, after ``init_process_group`` and after the model is
    on its device. Ranks get the parameters of rank 0. Parameters that a rank does not need lose their memory: they
    move to the device ``meta``.

    Args:
        model: a chain of layers, such as ``nn.Sequential``, or a module whose forward torch.fx traces into one.
        plan: the output of ``evenstep plan --json``: its file, or the object, or the response of ``/v1/plan/burst``.
            GPU i of the plan is rank i.
        loss: whether the loss of a rank is the mean or the sum over its samples. In both cases the gradient is that of
            the mean over the global batch.

    Raises:
        SettingError: the plan breaks a rule, or is for another number of ranks.
        UnsupportedError: the model cannot be cut as planned; the message names the module.
        DivergedError: ranks have different plans or models.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> layers = [{"name": "0 Linear", "samples": [16]}, {"name": "2 Linear", "samples": [16]}]
        >>> model = evenstep.burst(net, {"gpus": 1, "global_batch": 16, "layers": layers})
        >>> x, y = torch.ones(16, 4), torch.ones(16, 2)
        >>> torch.nn.functional.mse_loss(model(x[model.rows]), model.targets(y[model.rows])).backward()
    """
    many = dist.is_available() and dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
    refused: EvenstepError | None = None
    try:
        if loss not in ("mean", "sum"):
            raise SettingError(f"loss={loss!r}: must be 'mean' or 'sum'")
        read = read_plan(plan, world_size)
        opened = opened_modules(model, read)
        pieces = cut(model, read, opened)
        values = {name: (tuple(value.shape), str(value.dtype)) for name, value in _values(model).items()}
        own: Any = (None, loss, read, values, [parameter.requires_grad for parameter in model.parameters()])
    except EvenstepError as error:
        refused, own = error, (f"{type(error).__name__}: {error}",)
    if many:
        _check_alike(rank, own, refused, _gathered(own, world_size))
    elif refused:
        raise refused
    return Burst(model, read, pieces, opened, loss, rank, world_size)


def _check_alike(rank: int, own: Any, refused: EvenstepError | None, all_ranks: Sequence[Any]) -> None:
    """Raises an error on all ranks if one of them was refused, or if they differ."""
    if refused:
        raise refused
    for other, theirs in enumerate(all_ranks):
        if theirs[0]:
            raise SettingError(f"rank {other} cannot run the plan: {theirs[0]}")
    for what, values in zip(("", "loss", "plan", "model", "requires_grad"), zip(*all_ranks, strict=True), strict=True):
        if other := next((at for at, value in enumerate(values) if value != values[0]), 0):
            raise DivergedError(
                f"evenstep.burst: ranks 0 and {other} have a different {what}: all ranks must give the same"
                + (f" ({values[0]!r}, {values[other]!r})" if what == "loss" else "")
            )


def _gathered(own: Any, world_size: int) -> list[Any]:
    values = [None] * world_size
    dist.all_gather_object(values, own)
    return values


def _values(net: nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers."""
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor between two blocks, without the number of its rows."""

    row: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Shape":
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.requires_grad)


class _Block:
    """A block on this rank."""

    def __init__(self, piece: Piece, rank: int, groups: dict[tuple[int, ...], Any]) -> None:
        self.first, self.last, self.shares = piece.first, piece.last, piece.shares
        self.rows = piece.shares[rank]
        #: Rank 0 has all parameters, and therefore all gradients.
        self.members = tuple(member for member, share in enumerate(piece.shares) if share or not member)
        self.held = rank in self.members
        self.alone = len(self.members) == 1
        if self.members not in groups:
            # All ranks must create each group. One of all ranks exists already.
            whole = len(self.members) == len(piece.shares)
            groups[self.members] = None if whole else dist.new_group(list(self.members))
        self.group = groups[self.members]
        #: The rank whose buffers all others get.
        self.source = next(member for member, share in enumerate(piece.shares) if share)
        self.parameters = [*piece.module.parameters()]
        self.buffers = [*piece.module.buffers()]
        #: The way of its samples from the block before it; None for the first one.
        self.route: Route | None = None

    def summed(self, gradients: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Returns the sums of gradients over the ranks of the block; None if no rank has one."""
        sums: dict[int, torch.Tensor | None] = {}
        for dtype in sorted({parameter.dtype for parameter in parameters}, key=str):
            at = [number for number, parameter in enumerate(parameters) if parameter.dtype == dtype]
            used = torch.tensor([gradients[number] is not None for number in at], dtype=dtype)
            parts = [torch.zeros_like(parameters[number]) if (own := gradients[number]) is None else own for number in at]
            flat = torch.cat([*(part.reshape(-1) for part in parts), used.to(parts[0].device)])
            dist.all_reduce(flat, group=self.group)
            *values, used = flat.split([*(part.numel() for part in parts), len(at)])
            # Only a rank without a gradient has to know whether another one has it.
            some = [True] * len(at) if all(gradients[number] is not None for number in at) else used.tolist()
            for number, value, has in zip(at, values, some, strict=True):
                sums[number] = value.view_as(parameters[number]) if has else None
        return [sums[number] for number in range(len(parameters))]


@contextmanager
def _replaced(program: nn.Module, by: Mapping[nn.Parameter, torch.Tensor]) -> Iterator[None]:
    """Makes modules compute with other tensors in place of their parameters."""
    try:
        _put(program, by)
        yield
    finally:
        _put(program, {tensor: parameter for parameter, tensor in by.items()})


def _put(program: nn.Module, by: Mapping[Any, Any]) -> None:
    for module in program.modules() if by else ():
        slots = module._parameters
        slots.update({name: by[own] for name, own in slots.items() if own in by})
        if isinstance(module, nn.RNNBase):
            # Its own list of the same tensors.
            module._flat_weights = [slots[name] for name in module._flat_weights_names]


class _Sum(torch.autograd.Function):
    """Passes the parameters of a block on. Its backward pass sums their gradients over the ranks of the block.

    So a backward pass adds the sum to ``grad`` whatever was there before, and what a loss adds by itself, such as a
    penalty on parameters, is not summed. Autograd runs later functions first: a block's sum comes before the move of
    gradients to the block before it, on all ranks in the same order.
    """

    @staticmethod
    def forward(ctx: Any, block: _Block, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.block, ctx.parameters = block, parameters
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.block.summed(gradients, ctx.parameters))


class _Skip(torch.autograd.Function):
    """The output of a block on a rank without samples of it: its backward pass reaches the block's input and parameters."""

    @staticmethod
    def forward(ctx: Any, empty: torch.Tensor, given: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.given, ctx.count = torch.zeros_like(given), len(parameters)
        return empty.view_as(empty)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[Any, ...]:
        return (None, ctx.given, *[None] * ctx.count)


class _Weighted(torch.autograd.Function):
    """Weights the gradient of a rank's output: then sums over ranks give the gradient of the global batch."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, model: "Burst") -> torch.Tensor:
        ctx.model = model
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.model._check_targets()
        return gradient * ctx.model._weight, None


class Burst(nn.Module):
    """A model that runs by a burst-parallel plan. :func:`evenstep.burst` creates it.

    It has the parameters, the names and the state of the model. Call it with this rank's samples of the first layer,
    ``x[model.rows]``. It returns the outputs of this rank's samples of the last layer; ``targets`` moves their targets
    there. Every rank must call the model, ``targets``, ``backward()`` and the optimizer, also without samples: outputs are
    then empty, and a mean loss of them is NaN, which changes nothing.
    """

    def __init__(
        self,
        net: nn.Module,
        plan: Plan,
        pieces: Sequence[Piece],
        opened: Mapping[str, nn.Module],
        loss: str,
        rank: int,
        world_size: int,
    ) -> None:
        """Creates the module; all ranks do so together."""
        super().__init__()
        # The names of parameters are those of the model.
        self._modules, self._parameters, self._buffers = net._modules, net._parameters, net._buffers
        self._non_persistent_buffers_set = net._non_persistent_buffers_set
        self.training = net.training
        hidden = self.__dict__
        hidden.update(_net=net, _plan=plan, _opened=dict(opened), _rank=rank, _world_size=world_size)
        groups: dict[tuple[int, ...], Any] = {}
        self._blocks = [_Block(piece, rank, groups) for piece in pieces]
        self._device = next((value.device for value in _values(net).values()), torch.device("cpu"))
        self._programs = {self._flags(): [piece.module for piece in pieces]}
        self._shapes: dict[Any, list[_Shape]] = {}
        self._passes = 0
        first = layout = first_layout(pieces[0].shares)
        for block in self._blocks[1:]:
            before, layout = layout, moved(layout, block.shares)
            block.route = Route.between(before, layout, rank)
        self._start: Layout = first
        self._targets_route = None if layout == first else Route.between(first, layout, rank)
        self._targets_called = False
        share = len(layout[rank])
        self._weight = (share if loss == "mean" else 1) / plan.global_batch
        with torch.no_grad():
            for block in self._blocks:
                if block.held and not block.alone:
                    for value in [*block.parameters, *block.buffers]:
                        dist.broadcast(value, src=0, group=block.group)
            absent = {
                parameter: nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
                for block in self._blocks
                if not block.held
                for parameter in block.parameters
            }
            for module in (net, *(piece.module for piece in pieces)):
                _put(module, absent)
            for block in self._blocks:
                block.parameters = [absent.get(parameter, parameter) for parameter in block.parameters]

    @property
    def rows(self) -> slice:
        """The samples of the global batch that this rank gives to the model."""
        own = self._start[self._rank]
        return slice(own[0], own[-1] + 1) if own else slice(0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of this rank's samples of the last layer.

        Args:
            x: this rank's samples of the first layer, along the first axis; empty if it has none.

        Raises:
            SettingError: the number of samples is not the planned one.
            UnsupportedError: samples have another shape or type than the first ones.
            DivergedError: ranks have different parameters.
        """
        self._check_rows(x)
        if self.training and torch.is_grad_enabled():
            self._compare()
        programs = self._program()
        cast = torch.is_autocast_enabled(self._device.type) and torch.get_autocast_dtype(self._device.type)
        key = (cast, torch.is_grad_enabled(), *(parameter.requires_grad for parameter in self.parameters()))
        known = self._shapes.get(key)
        shapes = [self._shape(known, 0, x, "the samples")]
        made = x
        for at, (block, program) in enumerate(zip(self._blocks, programs, strict=True)):
            if block.route:
                made = Move.apply(made, block.route)
            made = self._run(block, program, made, known, shapes, at + 1)
        self._shapes[key] = shapes
        return _Weighted.apply(made, self) if made.requires_grad else made

    def _run(
        self, block: _Block, program: nn.Module, given: torch.Tensor, known: list[_Shape] | None, shapes: list[_Shape], at: int
    ) -> torch.Tensor:
        """Returns the output of a block."""
        trained = [parameter for parameter in block.parameters if parameter.requires_grad]
        views: tuple[torch.Tensor, ...] = ()
        if block.held and not block.alone and trained and torch.is_grad_enabled():
            views = _Sum.apply(block, *trained)
        made = None
        if block.rows:
            with _replaced(program, dict(zip(trained, views, strict=False))):
                made = program(given)
            if not isinstance(made, torch.Tensor) or made.shape[:1] != given.shape[:1]:
                kind = tuple(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
                raise UnsupportedError(
                    f"layer {block.last!r} returned {kind} for {len(given)} samples: must be a tensor with the samples along its "
                    "first axis"
                )
        shapes.append(self._shape(known, at, made, f"the outputs of layer {block.last!r}"))
        if made is None:
            made = self._empty(shapes[-1])
            if made.requires_grad:
                made = _Skip.apply(made, given, *views)
        if block.buffers and block.held and not block.alone and self.training:
            # As in DDP, where they are those of rank 0.
            for buffer in block.buffers:
                dist.broadcast(buffer, src=block.source, group=block.group)
        return made

    def _shape(self, known: list[_Shape] | None, at: int, made: torch.Tensor | None, what: str) -> _Shape:
        """Returns the shape of a tensor between blocks, which ranks without samples learn in the first pass."""
        own = None if made is None else _Shape.of(made)
        if known is None:
            shapes = [own] if self._world_size == 1 else _gathered(own, self._world_size)
            shape: _Shape = next(each for each in shapes if each)
        else:
            shape, shapes = known[at], [own]
        if wrong := next((each for each in shapes if each and each != shape), None):
            raise UnsupportedError(
                f"{what} are {wrong}, others were {shape}: all samples of a training must have the same shape and type on all ranks"
            )
        return shape

    def _empty(self, shape: _Shape) -> torch.Tensor:
        empty = torch.empty((0, *shape.row), dtype=shape.dtype, device=self._device)
        return empty.requires_grad_() if shape.requires_grad else empty

    def _flags(self) -> tuple[bool, ...]:
        return tuple(module.training for module in self._opened.values())

    def _program(self) -> Sequence[nn.Module]:
        """Returns the modules of the blocks, traced with the present modes of the modules that were opened."""
        self._net.training = self.training
        flags = self._flags()
        if flags not in self._programs:
            self._programs[flags] = [piece.module for piece in cut(self._net, self._plan, self._opened)]
        return self._programs[flags]

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        """Returns the targets of this rank's samples of the last layer. All ranks must call it together.

        Args:
            y: the targets of this rank's samples of the first layer, or other values of them, along the first axis.

        Raises:
            SettingError: the number of targets is not the planned number of samples.
        """
        self._check_rows(y)
        self._targets_called = True
        with torch.no_grad():
            return self._targets_route.forward(y) if self._targets_route else y

    def _check_rows(self, values: torch.Tensor) -> None:
        planned = self._blocks[0].rows
        if len(values) != planned:
            raise SettingError(
                f"rank {self._rank} got {len(values)} samples, the plan gives it {planned} of {self._plan.global_batch}: give "
                "x[model.rows] of a whole global batch x, and leave out incomplete batches (drop_last=True)"
            )

    def _check_targets(self) -> None:
        """Raises an error in the first backward pass if targets cannot be those of the outputs."""
        if self._targets_route and not self._targets_called:
            raise UnsupportedError(
                "outputs belong to other samples than the inputs of this rank, and model.targets was not called: compute the loss with "
                "model.targets(y); call it also for a loss without targets"
            )

    def reduce(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss over the global batch, from the loss of each rank. All ranks must call it together."""
        mean = loss.detach() * self._weight if self._blocks[-1].rows else torch.zeros_like(loss)
        if self._world_size > 1:
            dist.all_reduce(mean)
        return mean

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips the gradient as ``torch.nn.utils.clip_grad_norm_`` does in one process. All ranks must call it together.

        PyTorch's function would see only the blocks of each rank.

        Returns:
            The norm of the gradient of the whole model.
        """
        parameters = [parameter for parameter in self.parameters() if parameter.grad is not None]
        norm = torch.zeros((), device=self._device)
        if not self._rank:
            # Rank 0 has all gradients.
            norm = nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None], norm_type)
        if self._world_size > 1:
            norm = norm.to(torch.float64)
            dist.broadcast(norm, src=0)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the state of the model, with the names of the model: on rank 0 all of it, on others their blocks."""
        state: dict[str, Any] = self._net.state_dict(*args, **kwargs)
        for name in [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]:
            del state[name]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads the whole state of the model, of which each rank takes its blocks. All ranks must load the same."""
        absent = {name for name, value in _values(self._net).items() if value.is_meta}
        state = OrderedDict(
            (name, torch.empty_like(value, device="meta") if name in absent else value) for name, value in state_dict.items()
        )
        if metadata := getattr(state_dict, "_metadata", None):
            state._metadata = metadata  # type: ignore[attr-defined]  # as torch does.
        return self._net.load_state_dict(state, strict, assign)

    def _compare(self) -> None:
        """Compares the parameters of the ranks of each block in some of the first training passes.

        Raises:
            DivergedError: they differ by more than rounding.
        """
        at, self._passes = self._passes, self._passes + 1
        if self._world_size == 1 or at > _COMPARED_MAX or (at > 2 and at & (at - 1)):
            return
        own = torch.zeros(len(self._blocks), 2, dtype=torch.float64, device=self._device)
        with torch.no_grad():
            for number, block in enumerate(self._blocks):
                for parameter in block.parameters if block.held else ():
                    total, norm = parameter.sum(dtype=torch.float64), torch.linalg.vector_norm(parameter, dtype=torch.float64)
                    own[number] += torch.stack((total, torch.finfo(parameter.dtype).eps * norm))
            all_ranks = [torch.empty_like(own) for _ in range(self._world_size)]
            dist.all_gather(all_ranks, own)
        values = torch.stack(all_ranks).cpu()
        for number, block in enumerate(self._blocks):
            totals, rounding = values[[*block.members], number].unbind(1)
            if float(totals.max() - totals.min()) > _ROUNDINGS * float(rounding.max()):
                raise DivergedError(
                    f"ranks {', '.join(map(str, block.members))} have different parameters of layers {block.first!r} to {block.last!r} "
                    f"in training pass {at + 1}: clip with model.clip_grad_norm_, not PyTorch's function, which sees only a part of "
                    "the gradient on some ranks; do not use GradScaler, for the same reason; give all ranks the same optimizer, "
                    "and load the same checkpoint on all"
                )
