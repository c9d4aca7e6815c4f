"""The state of FSDP2 that has no public interface. Tests run with PyTorch 2.8 and the newest version.

| private name | used to |
|---|---|
| ``FSDPModule._get_fsdp_state()`` | find the groups of a module's parameters |
| ``FSDPState._fsdp_param_groups``, in older versions ``_fsdp_param_group`` | the same |
| ``FSDPState._auto_reshard_after_forward`` | know whether a root module keeps its parameters after the forward pass |
| ``FSDPParamGroup._reshard_after_forward`` | the same for any module |
| ``FSDPParamGroup.mesh_info.mesh`` | find the ranks over which gradients are summed |
| ``FSDPParamGroup.reduce_grads`` | know whether a backward pass reduces gradients |
| ``FSDPParamGroup.all_reduce_grads``, ``.reshard_after_backward`` | restore the script's settings |
| ``FSDPParamGroup.gradient_divide_factor`` | find a factor that the script has set later |
| ``FSDPParamGroup.comm_ctx``, ``FSDPCommContext.post_forward_order`` | forget the modules of an evaluation |
| ``FSDPState._is_root`` | know whether a root module has begun a forward pass |
| ``FSDPState._state_ctx``, ``FSDPStateContext.post_backward_final_callback_queued`` | notice failed backward passes |
| ``FSDPParamGroup._to_sharded`` | keep parameters while a pass is forgotten |
| ``FSDPParamGroup.fsdp_params``, ``FSDPParam._unsharded_param``, ``.unsharded_accumulated_grad`` | drop gradients |
| the methods of ``FSDPParamGroup`` and ``FSDPState`` in ``_WAITS`` | leave waits for other ranks out of the time |
| ``FSDPState._pre_forward_hook_handle``, ``._post_forward_hook_handle`` | leave out what FSDP does besides |
| ``Variable._execution_engine.queue_callback`` | learn when a backward pass ends; DDP and FSDP use it, too |
"""
# ruff: noqa: SLF001  # The purpose of this module.

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh

from evenstep.errors import UnsupportedError
from evenstep.measure.sensor import Sensor

_MISSING = object()

#: The settings of a group that let backward passes communicate.
_COMMUNICATION = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")

#: The methods in which FSDP communicates, and waits for other ranks, by module and class. They contain each other.
_WAITS = {
    ("_fsdp_param_group", "FSDPParamGroup"): (
        "pre_forward",
        "post_forward",
        "pre_backward",
        "post_backward",
        "unshard",
        "wait_for_unshard",
    ),
    ("_fsdp_state", "FSDPState"): ("_pre_backward", "_root_post_backward_final_callback"),
}

#: The sensor of the job that began the last pass, unless the job has ended.
_sensor: weakref.ref[Sensor] | None = None
#: The thread of that pass, and whether the methods pause the sensor.
_thread = 0
_pauses = False


def groups(module: Any) -> list[Any]:
    """Returns the groups of parameters of a module: none, one, or several with newer versions of PyTorch.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    state = _private(module, "_get_fsdp_state")()
    found = getattr(state, "_fsdp_param_groups", None)
    return [group for group in ([_private(state, "_fsdp_param_group")] if found is None else found) if group]


def reshards(module: Any, *, is_root: bool) -> bool:
    """Returns whether a module frees its parameters after a forward pass.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    if is_root and _private(_private(module, "_get_fsdp_state")(), "_auto_reshard_after_forward"):
        return False
    return any(_private(group, "_reshard_after_forward") for group in groups(module))


def mesh(group: Any) -> DeviceMesh:
    """Returns the mesh over which FSDP sums the gradients of a group.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    found: DeviceMesh = _private(_private(group, "mesh_info"), "mesh")
    return found


def reduces(group: Any) -> bool:
    """Returns whether the next backward pass reduces the gradients of a group.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    return bool(_private(group, "reduce_grads"))


def divide_factor(group: Any) -> float:
    """Returns the factor by which FSDP divides the gradients of a group.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    factor: float = _private(group, "gradient_divide_factor")
    return factor


def leave_out_waits(sensor: Sensor) -> None:
    """Pauses a sensor while any FSDP2 model communicates in this thread, until this is called for another sensor.

    All models matter, also those that are not trained. The first call replaces methods of FSDP's classes.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    global _sensor, _thread, _pauses  # noqa: PLW0603  # FSDP's classes are global, too.
    if not _pauses:
        found = []
        for (module, name), methods in _WAITS.items():
            owner = _private(sys.modules.get(f"torch.distributed.fsdp._fully_shard.{module}"), name)
            found += [(owner, method, _private(owner, method)) for method in methods]
        for owner, method, waits in found:
            setattr(owner, method, _pausing(waits))
        _pauses = True
    _sensor, _thread = weakref.ref(sensor), threading.get_ident()


def leave_out_hooks(module: Any) -> None:
    """Pauses the sensor in FSDP's hooks of a module.

    Their time does not grow with the batch, except for casts of inputs with mixed precision. They are bound when
    ``fully_shard`` is called. Those of grouped modules remain.
    """
    state = _private(module, "_get_fsdp_state")()
    for hooks, name in ((module._forward_pre_hooks, "_pre_forward"), (module._forward_hooks, "_post_forward")):
        at = getattr(getattr(state, f"{name}_hook_handle", None), "id", None)
        if at in hooks and not hasattr(hooks[at], "evenstep"):
            hooks[at] = torch.compiler.disable(_pausing(hooks[at]))
            hooks[at].evenstep = True


def _pausing(waits: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(waits)
    def paused(*args: Any, **kwargs: Any) -> Any:
        # Backward passes of GPUs run in other threads.
        is_own = threading.get_ident() == _thread or torch._C._current_graph_task_id() >= 0
        sensor = _sensor() if _sensor and is_own else None
        if sensor is None or not sensor.pause():
            return waits(*args, **kwargs)
        try:
            return waits(*args, **kwargs)
        finally:
            sensor.resume()

    return paused


@contextmanager
def local_passes(groups: Sequence[Any]) -> Iterator[None]:
    """Context manager in which passes neither reduce gradients nor free parameters, whatever the script has set.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    before = [(group, name, _private(group, name)) for group in groups for name in _COMMUNICATION]
    for group, name, _ in before:
        setattr(group, name, False)
    try:
        yield
    finally:
        for group, name, value in before:
            setattr(group, name, value)


def forget_evaluations(groups: Sequence[Any]) -> None:
    """Forgets the forward passes that no backward pass followed.

    Backward passes prefetch parameters in the reverse order of all forward passes since the last reduction. After an
    evaluation it is wrong, so ranks would gather other parameters than those with another number of passes.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    for group in groups:
        # The first forward pass of its root creates it.
        if (order := getattr(_private(group, "comm_ctx"), "post_forward_order", None)) is not None:
            order.clear()


def drop_unreduced(groups: Sequence[Any]) -> None:
    """Drops gradients of passes that were not reduced; ``zero_grad`` of an optimizer has only the shards.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    for parameter in [parameter for group in groups for parameter in _private(group, "fsdp_params")]:
        # It is created by the first forward pass.
        if hasattr(parameter, "_unsharded_param"):
            parameter._unsharded_param.grad = None
        # Newer versions have no other place.
        if vars(parameter).get("unsharded_accumulated_grad") is not None:
            parameter.unsharded_accumulated_grad = None


def has_failed(root: Any) -> bool:
    """Returns whether the last backward pass of a root module ended with an error, which FSDP does not notice.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    context = _private(_private(root, "_get_fsdp_state")(), "_state_ctx")
    return bool(_private(context, "post_backward_final_callback_queued")) and torch._C._current_graph_task_id() < 0


def can_reset(roots: Iterable[Any]) -> bool:
    """Returns whether this version of PyTorch can forget passes that failed."""
    return all(hasattr(root, "reset_iter_state") for root in roots)


def reset(roots: Iterable[Any], *, keeps: Sequence[Any] = ()) -> None:
    """Forgets the passes since the last step, with their gradients; the groups in ``keeps`` remain gathered.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    for group in keeps:
        _private(group, "_to_sharded")
        group._to_sharded = lambda: None
    try:
        for root in roots:
            # Before its first forward pass, a root has nothing to forget.
            if _private(_private(root, "_get_fsdp_state")(), "_is_root") is not None:
                root.reset_iter_state()
    finally:
        for group in keeps:
            del group._to_sharded


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Calls a function at the end of the backward pass that is running.

    Raises:
        UnsupportedError: this version of PyTorch has other names.
    """
    _private(Variable._execution_engine, "queue_callback")(callback)


def _private(thing: Any, name: str) -> Any:
    value = getattr(thing, name, _MISSING)
    if value is _MISSING:
        raise UnsupportedError(
            f"{type(thing).__name__} of PyTorch {torch.__version__} has no {name}, which evenstep needs for "
            "fully_shard: omit job.wrap and use job.scale(loss).backward(), or use another version of PyTorch"
        )
    return value
