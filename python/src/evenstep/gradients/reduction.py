"""When DDP reduces gradients, and the factor of its buckets.

A reduction begins when DDP, or a library, calls ``prepare_for_backward``, and ends when DDP has averaged the last
bucket. Several backward passes may come between. A bucket then contains the sum of ``.grad`` before the first of these
passes and of what they add.

So if all ``.grad`` were ``None`` and the loss is a mean, one operation multiplies the bucket by the factor of the first
pass. Hooks of parameters multiply gradients of later passes by the quotient of their factor and this one, which usually
is 1. In all other cases the buckets have the factor 1, and hooks of parameters apply the whole factor.

| private name | used to |
|---|---|
| ``Reducer.prepare_for_backward`` | learn that DDP reduces; libraries call it too |
| ``Reducer._check_reducer_finalized`` | learn whether DDP waits for more gradients |
| ``torch.distributed._register_comm_hook`` | multiply buckets; models that are copied have no such hook |
| ``DistributedDataParallel._get_ddp_logging_data`` | learn how many parameters it reduces |
| ``DistributedDataParallel._delay_all_reduce_all_params`` | know whether the model has a reducer |
"""
# ruff: noqa: SLF001  # The purpose of this module.

import functools
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError
from evenstep.gradients.later import apply_weight
from evenstep.measure.device import backend

#: A communication hook of DDP.
Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

#: The models whose buckets have evenstep's hook, without one of the script.
_hooked = WeakSet[Any]()

#: The methods that call these functions. Other libraries may have replaced the method, too.
_observed = WeakSet[Any]()

#: The reductions of reducers.
_reductions = WeakKeyDictionary[Any, "Reduction"]()


def _observe(reducer: Any, reduction: "Reduction") -> None:
    """Tells a reduction whenever its reducer is prepared; the first call replaces the method of its class."""
    original = type(reducer).prepare_for_backward
    if original not in _observed:

        @functools.wraps(original)
        def prepare_for_backward(reducer: Any, *args: Any, **kwargs: Any) -> None:
            own = _reductions.get(reducer)
            if own and own.skips():
                return
            original(reducer, *args, **kwargs)
            if own:
                own.prepares()

        # Not to be compiled, as the original.
        own = torch.compiler.disable(prepare_for_backward)
        _observed.add(own)
        type(reducer).prepare_for_backward = own
    _reductions[reducer] = reduction


class Reduction:
    """The reduction of the gradients of one DDP model, from its preparation to the average of the last bucket."""

    def __init__(
        self, model: DistributedDataParallel, inner: Hook | None, state: Any, ready: Callable[[], None]
    ) -> None:
        """Prepares the hook of buckets.

        Args:
            model: the model.
            inner: a communication hook that averages over ranks, for example with compression.
            state: the state of ``inner``.
            ready: called when this rank has computed all gradients, before it waits for others.
        """
        self._model = weakref.ref(model)
        self._inner = inner
        self._state = state
        self._ready = ready
        self._group = model.process_group
        self._world_size = self._group.size()
        self._is_gloo = backend(model.device.type, self._group) == "gloo"
        #: Whether DDP reduces the gradients of the next backward pass, and whether it has reduced its last bucket.
        self.is_expected = self.is_complete = False
        #: Whether the hook of buckets is registered; None before the first preparation.
        self._has_hook: bool | None = None
        #: The number of parameters that DDP reduces, and of those in the buckets of a static graph that are complete.
        self._parameters = self._reduced = 0
        #: The factor of the buckets; None before the first gradient after the preparation.
        self._factor: float | None = None
        #: Whether the last forward pass was one in which a stage of a pipeline only learns shapes. Its replicas may not
        #: have such a pass, so it must not prepare the reducer: gradients of the next pass would be reduced.
        self.is_trial = False
        #: The sums over ranks that were started and not waited for yet.
        self._sums: list[dist.Work] = []

    @property
    def has_begun(self) -> bool:
        """Whether a backward pass since the preparation has computed a gradient, and buckets are missing."""
        return self._factor is not None and not self.is_complete

    @property
    def inner(self) -> tuple[Hook | None, Any]:
        """The script's communication hook, and its state."""
        return self._inner, self._state

    def register(self) -> None:
        """Registers the hooks. Without ``inner``, the hook of buckets follows later: the script may register one."""
        model: Any = self._model()
        if not model._delay_all_reduce_all_params:
            _observe(model.reducer, self)
            self._parameters = model._get_ddp_logging_data().get("num_parameter_tensors")
        if self._inner:
            self._has_hook = True
            model.register_comm_hook(None, self._hook())

    def forward_begins(self, model: DistributedDataParallel, *, is_stage: bool) -> None:
        """Records a forward pass of the model, which prepares its reducer unless all its parameters are delayed.

        A pipeline prepares the reducer of a stage itself, before the last backward pass.
        """
        self.is_trial = is_stage and model.require_backward_grad_sync
        if model._delay_all_reduce_all_params or not (model.require_backward_grad_sync or self.has_begun):
            self.is_expected = model.require_backward_grad_sync

    def factor(self, factor: float, *, may_weigh: Callable[[], bool]) -> float:
        """Returns the factor for the hooks of parameters in a backward pass whose gradients have ``factor`` in all.

        ``may_weigh`` returns whether the gradients in the buckets are all of passes that have begun since the
        preparation.
        """
        if not self.is_expected or self.is_complete:
            return factor
        if self._factor is None:
            # NaN of a rank without samples is not multiplied by 0, but replaced.
            self._factor = factor if self._has_hook and factor and may_weigh() else 1.0
        return factor / self._factor

    def is_finished(self, *, is_through_model: bool) -> bool:
        """Returns whether DDP has reduced all gradients; call it after DDP's own callback of a backward pass.

        The hook of buckets sees the last one, unless DDP skips it. Nothing else shows that DDP has reduced a static
        graph: without that hook, the first pass through the model is taken for the last one.
        """
        model: Any = self._model()
        if self.is_complete or model is None:
            return True
        if model._delay_all_reduce_all_params or (model.static_graph and not self._has_hook):
            return is_through_model
        if self._has_hook and not model.skip_all_reduce_unused_params:
            return False
        # The check below also passes before the first gradient.
        if model._delay_all_reduce_params and not is_through_model:
            return False
        try:
            model.reducer._check_reducer_finalized()
        except RuntimeError:
            return False
        return True

    def wait(self) -> None:
        """Waits for the sums over ranks."""
        while self._sums:
            self._sums.pop().wait()

    def fails(self) -> None:
        """Forgets the sums of a backward pass that may have failed."""
        self._sums.clear()

    def skips(self) -> bool:
        """Returns whether the reducer must not be prepared; then DDP must not send its buffers, either."""
        if (model := self._model()) and self.is_trial:
            model.require_forward_param_sync = False
        return self.is_trial

    def prepares(self) -> None:
        """Records that the reducer is prepared."""
        if self._has_hook is None:
            model: Any = self._model()
            try:
                dist._register_comm_hook(model.reducer, None, self._hook())  # type: ignore[attr-defined]
                # Copies of a model have its attributes, and no hook. A copied method belongs to the copy.
                model.register_comm_hook = MethodType(register_comm_hook, model)
                _hooked.add(model)
                self._has_hook = True
            except RuntimeError:
                # The script or DDP itself has registered one.
                self._has_hook = False
        if not (self.is_expected and self.has_begun):
            self._factor = None
        # Otherwise .grad has gradients of passes before, which need the factor of the buckets.
        self.is_expected, self.is_complete = True, False
        self._reduced = 0

    def _hook(self) -> Hook:
        # Copies of the model copy its hooks, but no functions. DDP checks names and annotations.
        def reduce_weighted(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            return self._reduce(bucket)

        return reduce_weighted

    @torch.no_grad()
    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Averages a bucket over ranks."""
        model: Any = self._model()
        if model is not None and model.static_graph:
            # In its first iteration DDP calls each bucket the first one.
            self._reduced += len(bucket.parameters())
        if self.is_expected and (bucket.is_last() or self._reduced == self._parameters):
            self.is_complete = True
            self._ready()
        gradient, factor = bucket.buffer(), self._factor or 1.0
        apply_weight(gradient, factor if self._inner else factor / self._world_size)
        if self._inner:
            return self._inner(self._state, bucket)
        work = self._group.allreduce([gradient])
        if not self._is_gloo:
            return work.get_future().then(lambda future: future.value()[0])
        # Gloo's threads would call Python, also while the interpreter ends, which aborts the process. On a GPU its
        # futures are complete before a sum has arrived.
        self._sums.append(work)
        if not self.has_begun:
            self.wait()
        # Without its device, readers of the future would not wait for the GPU.
        devices: list[int | str | torch.device] = [] if gradient.device.type == "cpu" else [gradient.device]
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        done.set_result(gradient)
        return done


def register_comm_hook(model: Any, *arguments: Any, **named: Any) -> None:
    """Refuses a hook of the script, with advice, if the buckets of the model have evenstep's hook.

    Raises:
        UnsupportedError: they have.
    """
    if model in _hooked:
        raise UnsupportedError(
            "register_comm_hook after the first forward pass of a model that job.wrap got: evenstep's own hook weights "
            "its buckets; register it before, or pass it as job.wrap(model, inner=hook, inner_state=state)"
        )
    type(model).register_comm_hook(model, *arguments, **named)
