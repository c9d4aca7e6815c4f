"""FSDP2: models made with PyTorch's ``fully_shard``, whose ranks hold shards of parameters and gradients.

``torch.distributed.fsdp`` is not imported here, because that takes as long as all other imports of this package. A
process whose model is sharded has imported it already.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel.distributed import _find_tensors

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import hook, ranks
from evenstep.gradients.fsdp_state import (
    at_end_of_backward,
    can_reset,
    divide_factor,
    groups,
    has_failed,
    leave_out_hooks,
    leave_out_waits,
    local_passes,
    mesh,
    reduces,
    reset,
    reshards,
)
from evenstep.gradients.last_pass import OwnPasses
from evenstep.gradients.later import apply_weight
from evenstep.gradients.mean_check import MeanCheck
from evenstep.gradients.passes import has_gradients, is_recomputing
from evenstep.measure.device import current_device
from evenstep.run.losses import Loss
from evenstep.run.passes import Passes
from evenstep.run.run import Run
from evenstep.samples import items
from evenstep.settings.workers import Workers

log = logging.getLogger("evenstep")


def modules(model: torch.nn.Module) -> list[Any]:
    """Returns the modules to which ``fully_shard`` was applied, parents first; empty without FSDP2."""
    loaded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return [module for module in model.modules() if isinstance(module, loaded)] if loaded else []


def reshard(model: torch.nn.Module) -> None:
    """Frees whole parameters, which modules may still hold after an evaluation without gradients."""
    for module in modules(model):
        module.reshard()


def parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Returns the trained parameters as the optimizer sees them: as shards."""
    reshard(model)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def measures(run: Run) -> bool:
    """Returns whether the time of a run leaves out the waits of FSDP2 models; otherwise warns of it once."""
    try:
        leave_out_waits(run.sensor)
    except UnsupportedError:
        if run.exchange and run.rank == 0 and not run.is_told:
            run.is_told = True
            log.warning(
                "the speed of ranks cannot be measured with FSDP of PyTorch %s, because their passes wait for each "
                "other: shares stay even; give them in init(plan=..), or use job.steps with fully_shard(.., "
                "reshard_after_forward=False)",
                torch.__version__,
            )
        return False
    return True


def check_wrap(model: torch.nn.Module, *, has_inner: bool, has_mesh: bool) -> None:
    """Checks that gradients of the model can be weighted; with a mesh, its ranks are checked when the run starts.

    Raises:
        UnsupportedError: the gradients cannot be weighted.
    """
    if has_inner:
        raise UnsupportedError("wrap(inner=..) is a hook of DistributedDataParallel: remove it with fully_shard")
    _check_shards(model, has_mesh=has_mesh)
    if dist.get_world_size() == 1:
        return
    for module in modules(model):
        if not hasattr(module, "set_custom_reduce_scatter"):
            raise UnsupportedError(
                f"wrap with fully_shard requires PyTorch 2.9 or newer, and this is {torch.__version__}: omit wrap and "
                "use job.scale(loss).backward()"
            )
        if len(groups(module)) > 1:
            raise UnsupportedError(
                f"wrap: {type(module).__name__} has parameters on several meshes, whose gradients FSDP cannot reduce "
                "in another way: omit wrap and use job.scale(loss).backward()"
            )


def check_state(roots: Sequence[Any], *, has_own: bool = False) -> None:
    """Checks that no backward pass of these root modules has failed: FSDP would not end those that follow.

    With own passes, only another job can begin again: gradients of earlier passes are lost.

    Raises:
        UnsupportedError: one has failed.
    """
    if any(map(has_failed, roots)):
        advice = (
            "create a new job, or restart from the checkpoint"
            if has_own
            else "call reset_iter_state() of the root module and begin the iteration again; if this PyTorch has no "
            "such method, create the model again"
        )
        raise UnsupportedError(
            f"a backward pass of fully_shard ended with an error, after which PyTorch trains wrongly: {advice}"
        )


def check_keeps(model: torch.nn.Module, what: str, otherwise: str) -> None:
    """Checks that passes need no communication while a rank holds all parameters.

    Raises:
        UnsupportedError: the model frees parameters between passes.
    """
    roots = _roots(model)
    sharded = modules(model)
    for name, module in model.named_modules():
        if module in sharded and reshards(module, is_root=module in roots):
            raise UnsupportedError(
                f"{what}: module {name or type(module).__name__!r} frees its parameters after the forward pass, so "
                "passes would wait for other ranks, whose number of passes differs: use fully_shard(.., "
                f"reshard_after_forward=False) for all modules (ZeRO-2), or {otherwise}"
            )


def check_hedged(model: torch.nn.Module, loss: Loss) -> None:
    """Checks that hedged steps can train the model.

    Raises:
        UnsupportedError: the model frees parameters between passes, keeps them on another device, or has a loss that
            only FSDP's own reduction makes right.
    """
    _check_shards(model)
    check_keeps(model, "job.steps", "job.loader")
    for parameter in parameters(model):
        computes_on = parameter.device_mesh.device_type  # type: ignore[attr-defined]  # A DTensor.
        if parameter.device.type != computes_on:
            raise UnsupportedError(
                f"job.steps: parameters are on {parameter.device.type}, but passes compute on {computes_on}: remove "
                "the offload policy, or use job.loader"
            )
    if loss == "scaled":
        raise UnsupportedError(
            'job.steps reduces gradients itself, without FSDP: it cannot use wrap(loss="scaled"); use "mean" or "sum"'
        )


class GradientWeights:
    """Weights this rank's gradients before FSDP reduces them. It is FSDP's reduce-scatter, too."""

    def __init__(
        self, model: torch.nn.Module, loss: Loss, run: Callable[[], Run | None], *, has_mesh: bool = False
    ) -> None:
        """Creates the hooks of a model.

        Args:
            model: a model that passed :func:`check_wrap`.
            loss: the reduction of the loss; with ``"scaled"``, FSDP's own reduction stays as the script has set it.
            run: returns the run, or None if it has not started.
            has_mesh: whether some ranks may get the same samples.
        """
        self._model = model
        self._has_mesh = has_mesh
        self._loss = loss
        self._run = run
        self._groups = [group for module in modules(model) for group in groups(module)]
        self._roots = _roots(model)
        reduced = mesh(self._groups[0]) if has_mesh and self._groups else None
        self._world_size = reduced.size() if reduced else dist.get_world_size()
        #: The groups over which FSDP sums gradients, and the number of their ranks with the same samples.
        self._reduces_over = tuple(reduced.get_all_groups()) if reduced else (dist.group.WORLD,)
        self._copies = 1
        #: The type of the device that computes. The shards may be on another one.
        self._device_type = next((at.device_mesh.device_type for at in parameters(model)), "cpu")  # type: ignore[attr-defined]
        #: Whether the end of a backward pass is awaited, whether the pass is reducing, its weight, and its tokens.
        self._is_awaited = self._is_reducing = False
        self._weight = 1.0
        self._total: items.Total | None = None
        self._check = MeanCheck(run) if loss == "mean" else None
        #: The passes, if each rank has its own number of them.
        self.own: OwnPasses | None = None

    def follow(self, workers: Workers) -> None:
        """Checks that the model sums its gradients over the workers of the run, some of which have several ranks.

        Raises:
            UnsupportedError: it does not, or its loss would count samples several times.
        """
        if not self._groups:
            return
        over, own = mesh(self._groups[0]), dist.get_rank()
        if any(not torch.equal(mesh(group).mesh, over.mesh) for group in self._groups):
            raise UnsupportedError(
                "fully_shard on meshes of different ranks: must be the same mesh for all modules; or omit wrap and use "
                "job.scale(loss).backward()"
            )
        if over.ndim == 2 and over.size(1) == 1 < over.size():
            raise UnsupportedError(
                f"fully_shard on a mesh of {over.size()} replicas of one shard has no reduce-scatter, which would "
                "weight the gradients: use DistributedDataParallel"
            )
        summed = set(over.mesh.flatten().tolist())
        self._copies = workers.copies(sorted(summed), self._loss)
        reshard(self._model)
        for name, parameter in self._model.named_parameters():
            if not parameter.requires_grad:
                continue
            whole: torch.Tensor = parameter.device_mesh.mesh  # type: ignore[attr-defined]  # A DTensor.
            if not summed <= set(whole.flatten().tolist()):
                raise UnsupportedError(_unsharded(name))
            # The first dimensions are those of FSDP.
            place = tuple((whole == own).nonzero()[0, : over.ndim].tolist())
            workers.check_parts(name, whole[place].flatten().tolist())

    def register(self) -> None:
        """Registers the hooks, and forgets a backward pass that failed.

        Raises:
            UnsupportedError: one has failed, and this version of PyTorch cannot forget it.
        """
        if can_reset(failed := [root for root in self._roots if has_failed(root)]):
            reset(failed)
        # Before FSDP's own hooks.
        self._model.register_forward_pre_hook(torch.compiler.disable(self._model_begins), prepend=True)
        check_state(self._roots)
        # torch.compile need not understand it.
        self._model.register_forward_pre_hook(torch.compiler.disable(self._forward_begins), with_kwargs=True)
        self._model.register_forward_hook(torch.compiler.disable(self._forward_ends))
        for module in modules(self._model):
            leave_out_hooks(module)
            if self._world_size > 1:
                module.set_custom_reduce_scatter(self)
            else:
                # One process has no reduce-scatter.
                module.set_all_reduce_hook(self._weigh)
            if self._loss != "scaled":
                # A sum over ranks. Gloo supports no reduction with a factor.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def reduce_last(self, passes: Passes) -> None:
        """Makes FSDP reduce gradients in the last pass of an iteration only, if the rank has its own passes.

        Raises:
            UnsupportedError: passes would wait for other ranks, whose number of passes differs.
        """
        check_keeps(self._model, "job.loader(micro_batch=..)", "accumulate=N, the same number of passes on each rank")
        if not can_reset(self._roots):
            if passes.searches:
                raise UnsupportedError(
                    'micro_batch="auto" with fully_shard requires a PyTorch with FSDPModule.reset_iter_state, and this '
                    f"is {torch.__version__}: FSDP cannot repeat a pass that does not fit; give a number"
                )
            passes.can_repeat = False
        self.own = OwnPasses(self._model, modules(self._model), self._roots, parameters(self._model))

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns a buffer for FSDP."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Reduces the gradients of all ranks in the flat ``input_tensor`` to this rank's shard, ``output_tensor``.

        Raises:
            SettingError: no batch was read, or its tokens were not counted.
            UnsupportedError: the gradients would be wrong.
        """
        self._weigh(input_tensor)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)

    def _weigh(self, gradient: torch.Tensor) -> None:
        """Weights this rank's gradients of an FSDP module.

        Raises:
            SettingError: no batch was read, or its tokens were not counted.
            UnsupportedError: the gradients would be wrong.
        """
        if not self._is_reducing:
            self._begin_reduction(gradient.device)
        apply_weight(gradient, self._weight)
        if self._total is not None:
            self._total.divide(gradient)

    def _begin_reduction(self, device: torch.device) -> None:
        """Checks the first reduction of a backward pass, and starts to sum the tokens."""
        run = self._run()
        if run is None:
            raise SettingError("gradients before the run has started: call job.loader before the first backward pass")
        step = run.binding.backward().step
        weight = hook.weight(self._loss, step.local_batch, step.global_batch, self._world_size, self._copies)
        self._weight = float(weight > 0) if self._loss == "scaled" else weight
        factors = {1.0} if self._loss == "scaled" else set(map(divide_factor, self._groups))
        if factors != {1.0}:
            raise UnsupportedError(
                f"set_gradient_divide_factor after job.wrap would divide gradients that evenstep has weighted, by "
                f"{sorted(factors - {1.0})}: must be 1.0; remove the call and scale the loss, or use "
                'wrap(loss="scaled")'
            )
        if self._loss == "tokens":
            if not run.current.is_last:
                raise UnsupportedError(
                    'loss="tokens" with several reductions in one iteration: the first ones would be divided by a part '
                    "of the tokens; call set_requires_gradient_sync(False) before all passes but the last"
                )
            over = self._reduces_over if self._world_size > 1 else ()
            self._total = items.total(run.binding.items(), device, *over)
        self._is_reducing = True
        self._await_end()

    def _await_end(self) -> None:
        """Awaits the end of the running backward pass, after the callbacks of FSDP that are queued in it."""
        if not self._is_awaited:
            at_end_of_backward(lambda: at_end_of_backward(self._ends))
            self._is_awaited = True

    def _ends(self) -> None:
        is_reducing, self._is_awaited, self._is_reducing, self._total = self._is_reducing, False, False, None
        if self.own:
            self.own.computed()
        run = self._run()
        if run and (is_reducing or (self.own and not run.current.is_last)):
            run.binding.complete()

    def _model_begins(self, *_: Any) -> None:
        """Gathers the parameters of an iteration that begins with its own passes."""
        check_state(self._roots, has_own=self.own is not None)
        run = self._run()
        turn = run.binding.next_pass if run and torch.is_grad_enabled() and not is_recomputing(run) else None
        if self.own and run and run.passes and turn:
            self.own.gather(turn.step, run.passes)

    def _forward_begins(self, _: torch.nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        """Binds the gradients that follow to the batch of this forward pass; a forward pre-hook.

        Raises:
            UnsupportedError: the gradients would be wrong.
        """
        run = self._run()
        if run is None or run.is_hedging or not has_gradients(run) or is_recomputing(run):
            return
        if self._has_mesh:
            ranks.is_stage(None, self._loss, run)
        # An earlier backward pass may have failed.
        self._is_awaited, self._is_reducing, self._total = False, False, None
        if not run.accumulates and not all(map(reduces, self._groups)):
            raise UnsupportedError(
                "set_requires_gradient_sync(False) with one weight for several batches would give a wrong gradient: "
                "use job.loader(.., accumulate=N), where N is the number of batches per optimizer step"
            )
        others = run.binding.forward(self)
        if run.passes and self.own:
            if others:
                raise UnsupportedError(
                    f"iteration {run.current.step.iteration}: its passes have unequal weights: call backward() for "
                    "each batch before you read the next one"
                )
            self.own.begin(run.current, run.passes)
        if self._check:
            self._check.forward_begins(kwargs)
        if measures(run):
            run.sensor.forward_begins(current_device() if self._device_type == "cuda" else torch.device("cpu"))

    def _passes_output(self) -> None:
        run = self._run()
        if run is not None and self.own and not self._is_awaited:
            self.own.computes(run.binding.backward(), is_mean=self._loss == "mean")
        self._await_end()

    def _forward_ends(self, _: torch.nn.Module, __: Any, output: Any) -> None:
        """Awaits the end of the backward pass from its begin: a checkpoint inside runs its own."""
        if torch.is_grad_enabled():
            for tensor in _find_tensors(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(lambda _: self._passes_output())
            if self._check:
                self._check.forward_ends()


@contextmanager
def gathered(model: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """Context manager in which this rank holds all parameters and passes do not communicate.

    All ranks must enter it together. It yields the trained parameters that passes use, in the order of
    :func:`parameters`.
    """
    sharded = modules(model)
    check_state(_roots(model))
    for module in sharded:
        module.unshard()
    try:
        with local_passes([group for module in sharded for group in groups(module)]):
            yield [parameter for parameter in model.parameters() if parameter.requires_grad]
    finally:
        reshard(model)


def own_shard(gradient: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns a whole gradient as the parameter needs it: this rank's shard of it if the parameter is sharded."""
    mesh: Any = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return gradient
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  # Slow, and imported if needed.

    placements = parameter.placements  # type: ignore[attr-defined]  # A DTensor.
    return distribute_tensor(gradient, mesh, placements, src_data_rank=None)


def _check_shards(model: torch.nn.Module, *, has_mesh: bool = False) -> None:
    """Checks that the sum over all ranks, or over the ranks of a mesh, is the gradient of the model.

    Raises:
        UnsupportedError: a trained parameter is not sharded, or not over all ranks in the way of FSDP or HSDP.
    """
    world_size = dist.get_world_size()
    reshard(model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        shard: Any = parameter
        if not hasattr(shard, "device_mesh"):
            raise UnsupportedError(_unsharded(name))
        if has_mesh:
            continue
        over, placements = shard.device_mesh, shard.placements
        is_fsdp = over.ndim == 1 and placements[0].is_shard()
        is_hsdp = over.ndim == 2 and placements[0].is_replicate() and placements[1].is_shard()
        # One shard has no reduce-scatter, which would weight the gradients.
        is_hsdp = is_hsdp and (over.size(1) > 1 or world_size == 1)
        if not (is_fsdp or is_hsdp) or over.size() != world_size:
            raise UnsupportedError(
                f"parameter {name} has the placements {placements} on a mesh of shape {tuple(over.shape)}: must be "
                f"sharded over all {world_size} ranks, on a mesh (shards,) or (replicas, shards); if some ranks get "
                'the same samples, as with tensor parallelism, pass the others to evenstep.init(mesh=mesh["dp"])'
            )


def _unsharded(name: str) -> str:
    return (
        f"parameter {name} is in no module of fully_shard, so its gradient is not reduced: call fully_shard on the "
        "whole model too, or freeze the parameter"
    )


def _roots(model: torch.nn.Module) -> list[Any]:
    """Returns the sharded modules outside all others. FSDP keeps their parameters after forward by default."""
    sharded = modules(model)
    inner = {child for module in sharded for child in module.modules() if child is not module}
    return [module for module in sharded if module not in inner]
