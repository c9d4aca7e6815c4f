"""The gradients of a training job: the weights of losses and gradients, and the learning rate."""

import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import buffers, first_step, fsdp, hook, ranks, reduction
from evenstep.gradients.last_pass import LastPass
from evenstep.hedge.trainee import TrainedModel
from evenstep.job import oom
from evenstep.job.lifecycle import Lifecycle
from evenstep.run.losses import Loss, check_loss
from evenstep.run.needs import Needs
from evenstep.run.run import Run
from evenstep.samples.order import Order

#: The error of gradients that would be weighted twice.
_TWICE = (
    "job.wrap and job.scale both weight the gradients: use job.wrap with DistributedDataParallel and fully_shard, and "
    "job.scale with wrappers that average gradients themselves"
)


class Gradients:
    """Weights gradients and learning rates by the local batches."""

    def __init__(self, life: Lifecycle) -> None:
        """Starts without a model; ``life`` has the run."""
        self._life = life
        # Gradients hold the model, and the garbage collector does not see that DDP holds its hook.
        started = weakref.WeakMethod(life.started_run)

        def run_later() -> Run | None:
            return get() if (get := started()) else None

        #: Returns the run, which starts later, without holding the job.
        self._run_later = run_later
        #: The model that was wrapped last, and the number of wrapped models.
        self._trained_model: TrainedModel | None = None
        self._wrapped_models = 0
        #: The models that live, with the weights of their gradients, and how many reduce in the last pass only.
        self._weights: list[tuple[weakref.ref[torch.nn.Module], weakref.ref[Any]]] = []
        self._last_reduced = 0
        #: The iteration that is being computed, if it can be repeated.
        self._attempt: oom.Attempt | None = None
        #: Whether the training scales its losses.
        self._is_scaled = False
        #: Whether a model was made with ``fully_shard``.
        self._has_shards = False
        #: How batches must be cut for the models of this rank.
        self.needs = Needs()
        #: The weights of models whose ranks are checked when the run starts.
        self._unchecked: list[hook.GradientWeights | fsdp.GradientWeights] = []

    def check(self, order: Order, *, is_sharded: bool = False) -> None:
        """Checks that the gradients of this order's micro-batches can be weighted.

        Raises:
            UnsupportedError: this model, or an earlier one, is sharded, and its gradients cannot; or an earlier one
                does not sum them over the workers.
        """
        while self._unchecked and (run := self._life.started_run()):
            # After an error, the model is checked again.
            self._unchecked[-1].follow(run.workers)
            self._unchecked.pop()
        if (is_sharded or self._has_shards) and order.has_unequal_passes:
            raise UnsupportedError(
                "fully_shard may add the gradients of micro-batches before they can be weighted, and the remainder of "
                "an epoch has unequal ones: pass drop_last=True or another global_batch to job.loader"
            )

    def follow(self, run: Run) -> None:
        """Follows a run from its start to the end of the job."""
        self._tell(run)
        for handle in first_step.follow_steps(run, self._is_weighted, self._only_wraps):
            self._life.ends.callback(handle.remove)

    def wrap(self, model: torch.nn.Module, loss: Loss, inner: reduction.Hook | None, inner_state: Any) -> None:
        """Weights the gradients of a model; see :meth:`Job.wrap`."""
        ddp = hook.ddp_of(model)
        if ddp is None and not fsdp.modules(model):
            raise UnsupportedError(
                f"wrap({type(model).__name__}): must be DistributedDataParallel, or made with fully_shard; with FSDP1, "
                "DeepSpeed and others that average gradients themselves, omit wrap and use job.scale(loss).backward()"
            )
        if getattr(ddp, "_use_python_reducer", False):
            raise UnsupportedError(
                "torch._dynamo.config.optimize_ddp='python_reducer' reduces gradients without DDP's reducer, so they "
                "cannot be weighted: use 'ddp_optimizer', the default, or job.scale(loss).backward() without wrap"
            )
        if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
            raise UnsupportedError(
                "SyncBatchNorm sends gradients between ranks before they can be weighted: omit wrap and use "
                "job.scale(loss).backward()"
            )
        if self._is_scaled:
            raise UnsupportedError(_TWICE)
        check_loss(loss)
        run, has_mesh = self._life.started_run(), self._life.options.mesh is not None
        needs = self._needs_of(run, model, loss)
        if ddp is None:
            fsdp.check_wrap(model, has_inner=inner is not None, has_mesh=has_mesh)
            if run:
                self.check(run.order, is_sharded=True)
            sharded = fsdp.GradientWeights(model, loss, self._run_later, has_mesh=has_mesh)
            self._check_workers(run, sharded)
            sharded.register()
            self._weights.append((weakref.ref(model), weakref.ref(sharded)))
        else:
            if not has_mesh:
                ranks.check_group(ddp)
            weights = hook.GradientWeights(ddp, loss, self._run_later, inner, inner_state)
            self._check_workers(run, weights)
            weights.register(ddp.module if model is ddp else model)
            self._weights.append((weakref.ref(model), weakref.ref(weights)))
        first_step.weighted.add(ddp.module if ddp else model)
        self._has_shards |= ddp is None
        self.needs |= needs
        if run:
            self._tell(run)
        self._trained_model = TrainedModel(ddp or model, loss, has_inner=inner is not None)
        self._wrapped_models += 1
        if run:
            self.reduce_last(run)
        self._life.observer.wrapped(loss, has_inner=inner is not None)

    def _needs_of(self, run: Run | None, model: torch.nn.Module, loss: Loss) -> Needs:
        """Returns how batches must be cut for a model.

        Raises:
            UnsupportedError: the run has started, and ranks of a worker may not agree any more.
        """
        needs = Needs(frozenset([loss]), avoids_singles=buffers.needs_two_samples(model))
        if self._life.options.mesh and run and not run.starts and run.needs | needs != run.needs:
            raise UnsupportedError(
                f"wrap({type(model).__name__}, loss={loss!r}) after the first batch was read would change how batches "
                "are cut, and with init(mesh=..) other ranks do not know it: wrap all models before the loop"
            )
        return needs

    def _check_workers(self, run: Run | None, weights: hook.GradientWeights | fsdp.GradientWeights) -> None:
        """Checks the ranks of a model now, or when the run knows the workers."""
        if run and self._life.options.mesh:
            weights.follow(run.workers)
        elif self._life.options.mesh:
            self._unchecked.append(weights)

    def count(self, items: float | torch.Tensor) -> None:
        """Tells the number of tokens in a batch; see :meth:`Job.count`."""
        if "tokens" not in self.needs.losses:
            raise SettingError('count: requires job.wrap(.., loss="tokens")')
        self._life.run.binding.count(items)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scales a loss; see :meth:`Job.scale`."""
        if self._trained_model:
            raise UnsupportedError(_TWICE)
        ranks.check_scale()
        run = self._life.run
        if run.passes:
            raise UnsupportedError(
                "job.scale with micro_batch: ranks have different numbers of passes, and wrappers may communicate in "
                "each: use job.wrap, or accumulate=N"
            )
        self._is_scaled = True
        self._life.observer.scaled()
        run.binding.forward()
        turn = run.binding.backward()
        step = turn.step
        if step.work is not None and len(step.passes) > 1:
            raise UnsupportedError(
                f"job.scale in an iteration with passes of {list(step.passes)} samples: the means of its passes have "
                'unequal weights; use job.wrap(.., loss="tokens") and job.count, or neither max_tokens nor accumulate'
            )
        # Before the exchange thread sees the iteration: it reads the GPU of the device.
        if "torch.distributed.fsdp" not in sys.modules or fsdp.measures(run):
            run.sensor.measure_from_arrival(loss.device)
        if loss.numel() == 1:
            run.losses.record(step.iteration, turn.samples, loss)
        run.binding.complete()
        factor = step.weight * turn.factor * run.world_size
        # 0 times NaN or infinity is not 0.
        return loss * factor if factor else torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0) * 0.0

    def reduce(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean over ranks; see :meth:`Job.reduce`."""
        run = self._life.run
        is_bound = self._trained_model or self._life.options.claims or run.world_size == 1
        if not (is_bound or run.binding.is_marked or run.current.begun):
            raise UnsupportedError(
                f"job.reduce: the batch of iteration {run.current.step.iteration} is not being computed yet: call it "
                "after the forward pass of the wrapped model, or after job.scale"
            )
        weight = (run.binding.computed or run.current.step).weight
        mean = value.detach() * 1.0
        # 0 times NaN is not 0.
        mean = mean * weight if weight else torch.zeros_like(mean)
        if run.world_size > 1:
            mesh = self._life.options.mesh
            with run.sensor.paused():
                for group in mesh.groups if mesh else (None,):
                    dist.all_reduce(mean, group=group)
        return mean

    def follow_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """Multiplies the learning rate in each step; see :meth:`Job.optimizer`."""
        life, kept = self._life, list[Any]()

        def restore(opt: torch.optim.Optimizer, *_: Any) -> None:
            for group, rate in zip(opt.param_groups, kept, strict=False):
                group["lr"] = rate
            kept.clear()

        def multiply(opt: torch.optim.Optimizer, *_: Any) -> None:
            # A step that raised an error has left the multiplied rate.
            restore(opt)
            multiplier = (life.run.binding.computed or life.run.current.step).lr_multiplier
            for group in opt.param_groups:
                kept.append(group["lr"])
                group["lr"] = group["lr"] * multiplier

        for handle in (optimizer.register_step_pre_hook(multiply), optimizer.register_step_post_hook(restore)):
            life.ends.callback(handle.remove)

    def trained(self, model: torch.nn.Module | None) -> TrainedModel:
        """Returns the model of hedged steps: the wrapped one, else the given one.

        Raises:
            SettingError: the job has no model, or both are different.
            UnsupportedError: several models are wrapped.
        """
        given, wrapped = None if model is None else TrainedModel(hook.ddp_of(model) or model), self._trained_model
        if self._wrapped_models > 1:
            raise UnsupportedError(
                f"job.steps with {self._wrapped_models} wrapped models: must be one, because ranks have different "
                "numbers of passes and only its gradients would be summed after them; put the models into one module "
                "and wrap that, or use job.loader"
            )
        if given and wrapped and given.model is not wrapped.model:
            raise SettingError("job.steps(model=..) and job.wrap(..) got different models: pass the same model")
        if trainee := wrapped or given:
            return trainee
        raise SettingError("job.steps has no model: pass model=, or call job.wrap before the first iteration")

    def reduce_last(self, run: Run) -> None:
        """Reduces the gradients of all models in the last pass of an iteration, if the rank has its own passes.

        Raises:
            UnsupportedError: passes of a model would wait for other ranks.
        """
        passes = run.passes
        for of_model, of_weights in self._weights[self._last_reduced :] if passes else ():
            model, weights = of_model(), of_weights()
            ddp = None if model is None else hook.ddp_of(model)
            if model is not None and ddp is not None and isinstance(weights, hook.GradientWeights):
                weights.last_pass = LastPass(ddp, model, self._run_later)
            elif passes and isinstance(weights, fsdp.GradientWeights):
                weights.reduce_last(passes)
                self._life.ends.callback(_reduce_all, of_weights)
            self._last_reduced += 1

    def attempt(self) -> oom.Attempt | None:
        """Begins a pass; returns its iteration if a rank can compute it again, else None."""
        run = self._life.started_run()
        turn = run.binding.next_pass if run and run.passes and run.passes.can_repeat else None
        if turn is None:
            self._attempt = None
        elif not turn.micro and not turn.forwarded:
            living = [(model, weights()) for of, weights in self._weights if (model := of()) is not None]
            self._attempt = oom.Attempt(turn.step, [model for model, _ in living], [at for _, at in living if at])
        return self._attempt

    def _tell(self, run: Run) -> None:
        """Tells the run how its batches may be cut."""
        # Whether a model is a stage shows in its first pass, when shares are known already.
        options = self._life.options
        sizes = {"allowed_sizes", "distinct_sizes"} & options.job.keys()
        may_fill = bool(options.mesh and run.starts and not sizes)
        run.needs |= self.needs | Needs(fills_all=may_fill and ranks.may_have_stages())

    def _is_weighted(self) -> bool:
        return self._trained_model is not None or not self._only_wraps()

    def _only_wraps(self) -> bool:
        return not (self._is_scaled or self._life.options.claims)


def _reduce_all(weights: "weakref.ref[fsdp.GradientWeights]") -> None:
    """Ends the job's own passes of a model that still lives."""
    if (living := weights()) is not None and living.own:
        living.own.end()
        living.own = None
