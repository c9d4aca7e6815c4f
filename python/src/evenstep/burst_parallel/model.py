"""The module that trains a model by a burst-parallel plan."""

import operator
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.autograd.function import once_differentiable

from evenstep.burst_parallel.auto import auto_plan
from evenstep.burst_parallel.block import Block, Shape, gathered, put
from evenstep.burst_parallel.cut import Piece, cut, opened_modules
from evenstep.burst_parallel.plan import Plan, read_plan
from evenstep.burst_parallel.replicas import Call, Replicas, check_equal
from evenstep.burst_parallel.routes import Exchange, Layout, Move, Route, first_layout, moved
from evenstep.errors import SettingError, UnsupportedError

#: Maximum number of modes, such as autocast and frozen parameters, whose shapes and modules are kept.
_MODES_MAX = 64


def burst(
    model: nn.Module,
    plan: str | PathLike[str] | Mapping[str, Any],
    *,
    loss: Literal["mean", "sum"] = "mean",
    sample_input: torch.Tensor | None = None,
    global_batch: int | None = None,
    amplification: float | None = None,
    path: str | PathLike[str] | None = None,
) -> "Burst":
    """Returns a module that runs each block of a model on its own ranks, with its own shares of the samples.

    All ranks must call it together, with the same model and plan, after ``init_process_group`` and after the model is
    on its device. Ranks get the parameters of rank 0. Parameters that a rank does not need lose their memory: they
    move to the device ``meta``.

    Args:
        model: a chain of layers, such as ``nn.Sequential``, or a module whose forward torch.fx traces into one.
        plan: the output of ``evenstep plan --json``: its file, or the object, or the response of ``/v1/plan/burst``.
            GPU i of the plan is rank i. "auto" measures the model and the network on all ranks, then plans.
        loss: whether the loss of a rank is the mean or the sum over its samples. In both cases the gradient is
            the gradient of the mean over the global batch.
        sample_input: for "auto": one sample or more, along the first axis, on the device of the model.
        global_batch: for "auto": number of samples per iteration over all ranks.
        amplification: for "auto": maximum GPU time of a layer, as a multiple of its GPU time on one GPU.
        path: for "auto": the file in which rank 0 keeps the plan, for the next start with this model and arguments.

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
    settings = {"global_batch": global_batch, "amplification": amplification}
    if isinstance(plan, str) and plan == "auto":
        plan = auto_plan(model, sample_input, settings, path, lambda: _memory_of(_device_of(model)))
        sample_input = path = None
        settings = {}
    try:
        _check(model, loss, {"sample_input": sample_input, "path": path, **settings})
        read = read_plan(plan, world_size)
        _check_memory(model, read, rank)
        opened = opened_modules(model, read)
        pieces = cut(model, read, opened)
        values = {
            name: (tuple(value.shape), value.dtype, value.requires_grad) for name, value in _values(model).items()
        }
        own: Any = {"loss": loss, "plan": read, "model": values}
    except Exception as error:  # noqa: BLE001  # Other ranks wait for this one.
        own = error
    check_equal(gathered(own, world_size))
    return Burst(model, read, pieces, opened, loss, rank, world_size)


def _check(model: nn.Module, loss: str, unused: Mapping[str, Any]) -> None:
    if given := [name for name, value in unused.items() if value is not None]:
        raise SettingError(f"{given[0]} is only for plan='auto'")
    if loss not in ("mean", "sum"):
        raise SettingError(f"loss={loss!r}: must be 'mean' or 'sum'")
    if absent := [name for name, value in _values(model).items() if value.is_meta]:
        raise UnsupportedError(
            f"{absent[0]} has no memory (device meta). evenstep.burst runs once for a model: create it again, and "
            "load the state of rank 0"
        )


def _values(net: nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers."""
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _device_of(net: nn.Module) -> torch.device:
    return next((value.device for value in _values(net).values()), torch.device("cpu"))


def _memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(net: nn.Module, plan: Plan, rank: int) -> None:
    present = _memory_of(_device_of(net))
    if rank == plan.fastest and plan.memory_bytes > present:
        raise SettingError(
            f"plan: memory_bytes {plan.memory_bytes} of rank {rank}, which runs all layers, must be at most the memory "
            f"of its device, {present}: plan with --memory-bytes={present}"
        )


def _close(group: Any) -> None:
    """Closes a Gloo group, if the script has not closed all groups."""
    with suppress(ValueError, AssertionError):
        if dist.get_backend(group) == "gloo":
            dist.destroy_process_group(group)


class _Weighted(torch.autograd.Function):
    """Weights the gradient of a rank's output: then sums over ranks give the gradient of the global batch."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, weight: float, begins: Callable[[], None]) -> torch.Tensor:
        ctx.weight, ctx.begins = weight, begins
        # No view, so that a loss may change it in place.
        return made.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.begins()
        return gradient * ctx.weight, None, None


def _reads_trained(values: torch.Tensor) -> bool:
    """Whether parameters, or the outputs of another burst-parallel model, get gradients from values."""
    seen, waiting = set(), [values.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(getattr(node, "variable", None), nn.Parameter) or node.name() == "_WeightedBackward":
            return True
        seen.add(node)
        waiting += (before for before, _ in node.next_functions)
    return False


class Burst(nn.Module):
    """A model that runs by a burst-parallel plan. :func:`evenstep.burst` creates it.

    It has the parameters, the names and the state of the model. Call it with this rank's samples of the first layer,
    ``x[model.rows]``. It returns the outputs of this rank's samples of the last layer; ``targets`` moves their targets
    there. Every rank must call the model, ``targets``, ``backward()`` and the optimizer, also without samples: outputs
    are empty then, and a mean loss of them is NaN, which changes nothing.
    """

    _net: nn.Module

    def __init__(  # noqa: PLR0917  # Only burst calls it.
        self,
        net: nn.Module,
        plan: Plan,
        pieces: Sequence[Piece],
        opened: dict[str, nn.Module],
        loss: str,
        rank: int,
        world_size: int,
    ) -> None:
        """Creates the module; all ranks do so together."""
        device, training = _device_of(net), net.training
        # Parameters have the names of the model, so it is no child.
        self.__dict__["_net"] = net
        super().__init__()
        self.__dict__ |= {name: net.__dict__[name] for name in ("_modules", "_parameters", "_buffers")}
        self.training = training
        self._plan, self._opened, self._rank, self._world_size = plan, opened, rank, world_size
        self._groups: dict[tuple[int, ...], Any] = {}
        self._first = first_layout(pieces[0].shares)
        self._blocks, layout = self._routed(pieces)
        self._programs: dict[Any, tuple[list[Block], list[fx.GraphModule]]] = {
            self._modes(): (self._blocks, [piece.module for piece in pieces])
        }
        self._shapes: dict[Any, list[Shape]] = {}
        self._targets_route = None if layout == self._first else Route.between(self._first, layout, rank)
        self._targets_called = False
        self._weight = (len(layout[rank]) if loss == "mean" else 1) / plan.global_batch
        both = [(block, _values(piece.module).values()) for block, piece in zip(self._blocks, pieces, strict=True)]
        for block, values in both:
            for value in values if block.held and not block.alone else ():
                dist.broadcast(value.data, src=0, group=block.group)
        held = {value for block, values in both if block.held for value in values}
        absent = {value for _, values in both for value in values} - held
        empty: dict[torch.Tensor, torch.Tensor] = {}
        for value in absent:
            empty[value] = torch.empty_like(value, device="meta")
            if isinstance(value, nn.Parameter):
                empty[value] = nn.Parameter(empty[value], value.requires_grad)
        trained = [*net.parameters()]
        for module in (net, *(piece.module for piece in pieces)):
            put(module, empty)
        for block, piece in zip(self._blocks, pieces, strict=True):
            block.parameters = [*piece.module.parameters()]
        # An optimizer that is older than this has the parameters that were replaced.
        self._own = [*net.parameters()]
        self._replicas = Replicas(self._blocks, [*trained, *self._own], world_size, device)
        self._exchange = Exchange(rank, self._replicas.settle, self._replicas.group)
        for group in (*self._groups.values(), self._replicas.group):
            if isinstance(group, dist.ProcessGroup):
                weakref.finalize(self, _close, group).atexit = False

    @property
    def training(self) -> bool:
        """The mode of the model, which a rank may also change without this module."""
        return self._net.training

    @training.setter
    def training(self, mode: bool) -> None:
        self._net.training = mode

    @property
    def _device(self) -> torch.device:
        return self._replicas.device

    @property
    def rows(self) -> slice:
        """The samples of the global batch that this rank gives to the model."""
        own = self._first[self._rank]
        return slice(own[0], own[-1] + 1) if own else slice(0, 0)

    # torch.compiler.disable would import the compiler.
    @torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of this rank's samples of the last layer.

        Args:
            x: this rank's samples of the first layer, along the first axis. If it has none, the model uses none of x.

        Raises:
            SettingError: the number of samples is not the planned one.
            UnsupportedError: samples have another shape or type than the first ones, or are the output of another
                model that is trained.
            DivergedError: ranks have different parameters, samples or modes, or call it a different number of times.
        """
        kind = self._device.type
        modes = {
            "autocast type": torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
            "mode of autograd": torch.is_grad_enabled(),
            "set of frozen parameters": tuple(
                name for name, parameter in self.named_parameters() if not parameter.requires_grad
            ),
        }
        call: Call = "training passes" if self.training and torch.is_grad_enabled() else "other calls"
        made = self._checked(x, call, method="model(x)", **modes)
        if _reads_trained(made):
            raise UnsupportedError(
                "the samples depend on parameters outside of the model, whose gradients evenstep.burst does not sum: "
                "burst one module that contains both models, or detach the samples"
            )
        (blocks, programs), settle = self._program(), self._replicas.settle
        key = (*modes.values(), *(block.last for block in blocks))
        shapes, known = [], self._shapes.get(key)
        shapes.append(self._agreed(known[0] if known else None, made, "the samples"))
        begins = [block.views(settle) for block in blocks]
        if self.training and any(True for _ in programs[0].buffers()):
            # An error changes no statistics.
            self._replicas.settle()
        for at, (block, program, begin) in enumerate(zip(blocks, programs, begins, strict=True), 1):
            given = Move.apply(made, block.route, self._exchange) if block.route else made
            views = begin()
            own: Any = None
            try:
                own = block.run(program, given, views) if block.rows else None
            except Exception as error:
                if known:
                    raise
                # Other ranks wait for this one.
                own = error
            shapes.append(self._agreed(known[at] if known else None, own, f"the outputs of layer {block.last!r}"))
            made = block.reached(shapes[at].empty(self._device), given, views) if own is None else own
            if self.training:
                block.share_buffers(program, settle)
        if known is None and len(self._shapes) >= _MODES_MAX:
            self._shapes.clear()
        self._shapes[key] = shapes
        self._replicas.settle()
        return _Weighted.apply(made, self._weight, self._backward_begins) if made.requires_grad else made

    def _agreed(self, known: Shape | None, made: torch.Tensor | Exception | None, what: str) -> Shape:
        """Returns the shape of a tensor between blocks, which ranks without samples learn in the first pass."""
        own = Shape.of(made) if isinstance(made, torch.Tensor) else made
        if known is None or own not in (None, known):
            self._replicas.settle()
        shapes: list[Any] = [own] if known else gathered(own, self._world_size)
        shape: Shape = known or next(each for each in shapes if each)
        if wrong := next((each for each in shapes if each and each != shape), None):
            raise UnsupportedError(
                f"{what} are {wrong}, others were {shape}: samples must have the same shape and type in all iterations "
                "and on all ranks"
            )
        return shape

    def _modes(self) -> tuple[Any, ...]:
        """Returns the modes and the plain attributes of the modules that contain layers: traces have their values."""
        return tuple(
            (name, type(value), id(value) if isinstance(value, torch.Tensor) else value)
            for module in self._opened.values()
            for name, value in module.__dict__.items()
            if isinstance(value, int | float | str | torch.Tensor | None)
        )

    def _routed(self, pieces: Sequence[Piece]) -> tuple[list[Block], Layout]:
        """Returns the blocks with the ways of samples between them, and the layout after the last one."""
        blocks, layout = [Block(piece, self._rank, self._groups) for piece in pieces], self._first
        for block in blocks[1:]:
            before, layout = layout, moved(layout, block.shares)
            block.route = Route.between(before, layout, self._rank)
        return blocks, layout

    def _program(self) -> tuple[list[Block], list[fx.GraphModule]]:
        """Returns the blocks and their modules, traced with the present modes of the modules that contain them.

        Another trace, or another type of parameters, may have other blocks within the same shares.
        """
        modes = self._modes()
        if modes not in self._programs:
            if len(self._programs) >= _MODES_MAX:
                self._programs.clear()
            pieces = cut(self._net, self._plan, self._opened)
            self._programs[modes] = self._routed(pieces)[0], [piece.module for piece in pieces]
        return self._programs[modes]

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        """Returns the targets of this rank's samples of the last layer. All ranks must call it together.

        Args:
            y: the targets of this rank's samples of the first layer, or other values of them, along the first axis.

        Raises:
            SettingError: the number of targets is not the planned number of samples.
        """
        own = self._checked(y, "other calls", method="targets(y)")
        self._targets_called = True
        # Scripts may use other collectives before the backward pass, so a wrong number ends this call on all ranks.
        self._replicas.settle()
        with torch.no_grad():
            return self._targets_route.forward(own, self._exchange) if self._targets_route else own

    def _checked(self, values: torch.Tensor, call: Call, **facts: Any) -> torch.Tensor:
        """Returns the planned number of values. All ranks raise the same error."""
        if not isinstance(values, torch.Tensor) or not values.dim():
            raise SettingError(
                f"{facts['method']} got {type(values).__name__}: must be a tensor with the samples of this rank along "
                "its first axis"
            )
        facts["shape and type of samples"] = Shape.of(values)
        now = [*self._net.parameters()]
        same = len(now) == len(self._own) and all(map(operator.is_, now, self._own))
        planned, number = self._blocks[0].shares[self._rank], len(values) if same else -1
        self._replicas.begin(call, number, self._check_numbers, **facts)
        if number < 0 or (planned and number != planned):
            self._replicas.settle()
        # A loader cannot make empty batches.
        return values[: self._blocks[0].rows]

    def _check_numbers(self, numbers: Sequence[float]) -> None:
        """Checks the number of samples of each rank."""
        for rank, number in enumerate(numbers):
            if number < 0:
                raise UnsupportedError(
                    f"rank {rank} has other parameters than after evenstep.burst: change their values, not the "
                    "parameters, or create the model again"
                )
            planned = self._blocks[0].shares[rank]
            if planned and number != planned:
                raise SettingError(
                    f"rank {rank} got {number:.0f} samples, planned are {planned} of {self._plan.global_batch}: "
                    "give x[model.rows] of a whole global batch, and leave out incomplete ones (drop_last=True)"
                )

    def _backward_begins(self) -> None:
        """Raises an error if a rank skips the backward pass, or if targets cannot belong to the outputs."""
        self._replicas.begin("backward passes", 0.0, lambda _: None)
        torch.autograd.Variable._execution_engine.queue_callback(self._replicas.settle)  # noqa: SLF001  # As FSDP does.
        if self._targets_route and not self._targets_called:
            raise UnsupportedError(
                "outputs of a rank belong to other samples than its inputs, and model.targets was not called: compute "
                "the loss with model.targets(y), and call it also for a loss without targets"
            )

    def reduce(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss over the global batch, from the loss of each rank. All ranks must call it together."""
        own = float(loss.detach()) * self._weight if self._blocks[-1].rows else 0.0
        return loss.new_tensor(sum(self._replicas.compare("other calls", own, method="reduce")))

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips the gradient of the whole model. All ranks must call it together.

        ``torch.nn.utils.clip_grad_norm_`` would see only the blocks of each rank.

        Returns:
            The norm of the gradient of the whole model.
        """
        parameters = [parameter for parameter in self.parameters() if parameter.grad is not None]
        # Rank 0 has all gradients.
        own = [each.grad for each in parameters if each.grad is not None] if not self._rank else []
        norm = float(nn.utils.get_total_norm(own, norm_type))
        norm = self._replicas.compare("other calls", norm, method="clip_grad_norm_")[0]
        total = torch.tensor(norm, dtype=torch.float64, device=self._device)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
        return total

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Returns the state of the model, with the names of the model: on rank 0 all of it, on others their blocks."""
        state: dict[str, Any] = self._net.state_dict(*args, **kwargs)
        for name in [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]:
            del state[name]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads the whole state of the model, of which each rank takes its blocks, or what its ``state_dict`` returned.

        Raises:
            SettingError: ``assign`` is given, which would replace parameters.
        """
        if assign:
            raise SettingError(
                "assign=True: must be False, because evenstep.burst sums the gradients of its parameters"
            )
        values = self._net.state_dict()
        absent = {name: value for name, value in values.items() if isinstance(value, torch.Tensor) and value.is_meta}
        state = OrderedDict(
            (name, torch.empty_like(value, device="meta") if name in absent else value)
            for name, value in state_dict.items()
        )
        if not absent.keys() & state.keys():
            state.update(absent)
        if metadata := getattr(state_dict, "_metadata", None):
            state._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001  # As torch does.
        return self._net.load_state_dict(state, strict)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Burst":
        """Converts and moves what this rank has."""
        self._replicas.device = fn(torch.empty(0, device=self._device)).device

        def applied(value: torch.Tensor) -> torch.Tensor:
            if not value.is_meta:
                return fn(value)
            return torch.empty_like(value, dtype=fn(torch.empty(0, dtype=value.dtype, device=self._device)).dtype)

        super()._apply(applied, recurse)  # type: ignore[no-untyped-call]
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses copies on all ranks: some have no process group, which would be the first error."""
        raise UnsupportedError(
            "the module that evenstep.burst returns cannot be copied or saved: copy or average net, such as "
            "AveragedModel(net), on all ranks, and save model.state_dict()"
        )
