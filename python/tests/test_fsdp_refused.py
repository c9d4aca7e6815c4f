"""Uses of FSDP that would give wrong gradients: each is refused, with advice."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import evenstep
from evenstep.gradients import fsdp, fsdp_state
from evenstep.samples.order import Order
from ranks import preload, run_ranks
from test_fsdp import TOLERANCE, Parameters, epochs_of, parameters, sharded, weights
from training import GLOBAL_BATCH, PLANS, SAMPLES, Samples, difference, loss_of, network, one_process, sgd

preload("torch.distributed.tensor.parallel")


def in_two_passes(_rank: int) -> list[str]:
    """Checks two reductions over the same tokens, and returns the errors of gradients that would be wrong."""
    told = []

    def started(loss: Any, factor: float | None = None) -> tuple[Any, torch.Tensor, torch.Tensor]:
        job = evenstep.init(plan=PLANS["12/3/1"])
        x, y, _ = next(iter(job.loader(Samples())))
        model: Any = job.wrap(sharded("whole"), loss=loss)
        if loss == "tokens":
            job.count(y.numel())
        if factor:
            model.set_gradient_divide_factor(factor)
        return model.eval(), x, y

    model, x, y = started("tokens")
    for _ in range(2):
        (0.5 * (model(x) - y) ** 2).sum().backward()
    reference, at = network(), Order(SAMPLES, GLOBAL_BATCH).permutation(0)[:GLOBAL_BATCH]
    loss_of(reference, Samples().x[at], Samples().y[at]).backward()
    for parameter, alone in zip(fsdp.parameters(model), reference.parameters(), strict=True):
        gradient: Any = parameter.grad
        assert float((gradient.full_tensor() - alone.grad).abs().max()) <= TOLERANCE

    model, x, y = started("mean", 3.0)
    loss = loss_of(model, x, y)
    with pytest.raises(evenstep.UnsupportedError) as error:
        loss.backward()
    told.append(str(error.value))
    model, x, y = started("mean")
    model.set_requires_gradient_sync(False)
    with pytest.raises(evenstep.UnsupportedError) as error:
        model(x)
    return [*told, str(error.value)]


class Fails(torch.autograd.Function):
    """The identity, whose backward pass fails."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, __: torch.Tensor) -> None:
        raise ArithmeticError


def failed_backward(_rank: int, micro_batch: int | None) -> Parameters | None:
    """Trains a model in whose first backward pass, of an earlier job, FSDP stopped halfway."""
    model: Any = sharded(reshard_after_forward=micro_batch is None)
    job = evenstep.init(plan=PLANS["12/3/1"])
    x, y, _ = next(iter(job.loader(Samples(), micro_batch=micro_batch)))
    job.wrap(model)
    hook = model[1].register_forward_hook(lambda *at: Fails.apply(at[-1]))
    with pytest.raises(ArithmeticError):
        loss_of(model, x, y).backward()
    hook.remove()
    with pytest.raises(evenstep.UnsupportedError, match="reset_iter" if micro_batch is None else "create a new job"):
        model(x)
    job.close()
    job = evenstep.init(plan=PLANS["12/3/1"])
    loader = job.loader(Samples(), micro_batch=micro_batch)
    if not hasattr(FSDPModule, "reset_iter_state"):
        with pytest.raises(evenstep.UnsupportedError, match="ended with an error"):
            job.wrap(model)
        return None
    job.wrap(model)
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        loss_of(model, x, y).backward()
        if loader.is_last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


def unequal_remainder(_rank: int) -> list[str]:
    """Wraps a model before and after the data set of 205 samples is known."""
    before, after = evenstep.init(plan=[8, 8]), evenstep.init(plan=[8, 8])
    before.wrap(sharded())
    after.loader(Samples(), accumulate=4)
    told, calls = [], list[Callable[[], object]]()
    calls += [lambda: before.loader(Samples(), accumulate=4), lambda: after.wrap(sharded())]
    # An error changes nothing: the second call is refused, too.
    for refused in 2 * calls:
        with pytest.raises(evenstep.UnsupportedError) as error:
            refused()
        told.append(str(error.value))
    return told


def refusals(_rank: int) -> list[str]:
    """Returns the messages of what is refused before the first step, on a rank of four."""
    told = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    job = evenstep.init(plan=[4, 4, 4, 4])
    mesh: Any = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    refused(lambda: job.wrap(sharded(mesh=mesh["data"])))
    parallel = parallelize_module(network(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(parallel, mesh=mesh["data"])
    refused(lambda: job.wrap(parallel))
    partly: Any = network()
    fully_shard(partly[0])
    refused(lambda: job.wrap(partly))
    refused(lambda: job.wrap(sharded(), inner=allreduce_hook))
    for model in (
        sharded(),
        sharded("whole", reshard_after_forward=True),
        sharded(mesh=mesh["data"], reshard_after_forward=False),
    ):
        refused(partial(next, iter(job.steps(Samples(), model=model))))
    scaled = evenstep.init(plan=[4, 4, 4, 4])
    scaled.wrap(sharded(reshard_after_forward=False), loss="scaled")
    refused(partial(next, iter(scaled.steps(Samples()))))
    unsynced: Any = job.wrap(sharded())
    unsynced.set_requires_gradient_sync(False)
    x, _, _ = next(iter(job.loader(Samples())))
    refused(lambda: unsynced(x))
    return told


def with_older_pytorch(_rank: int) -> list[str]:
    """Returns the messages of PyTorch 2.8, and of a version with other private names."""
    if hasattr(FSDPModule, "set_custom_reduce_scatter"):
        del FSDPModule.set_custom_reduce_scatter
    job = evenstep.init(plan=[1, 1])
    with pytest.raises(evenstep.UnsupportedError) as older:
        job.wrap(sharded())
    del FSDPModule._get_fsdp_state
    with pytest.raises(evenstep.UnsupportedError) as other:
        fsdp_state.groups(sharded("whole"))
    return [str(older.value), str(other.value)]


@weights
def test_gradients_are_checked_in_evaluation_mode() -> None:
    for factor, unsynced in run_ranks(3, in_two_passes):
        assert factor.startswith("set_gradient_divide_factor after job.wrap")
        assert "by [3.0]: must be 1.0" in factor
        assert unsynced.startswith("set_requires_gradient_sync(False) with one weight for several batches")


@weights
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_a_backward_pass_that_failed_does_not_disturb_later_jobs(micro_batch: int | None) -> None:
    for trained in run_ranks(3, failed_backward, micro_batch):
        assert trained is None or difference(trained, one_process()) <= TOLERANCE


@weights
def test_an_unequal_remainder_is_refused() -> None:
    for told in run_ranks(2, unequal_remainder):
        assert all("the remainder of an epoch has unequal ones: pass drop_last=True" in error for error in told)


@weights
def test_what_would_be_wrong_is_refused_before_the_first_step() -> None:
    told = run_ranks(4, refusals)
    assert all(messages == told[0] for messages in told)
    part, tensor, outside, inner, default, root, hedged_part, scaled, unsynced = told[0]
    assert "on a mesh of shape (2,): must be sharded over all 4 ranks" in part
    assert "on a mesh of shape (2, 2): must be sharded over all 4 ranks" in tensor
    assert outside.startswith("parameter 2.weight is in no module of fully_shard")
    assert "inner=.." in inner
    assert "module '0' frees its parameters" in default
    assert "reshard_after_forward=False" in default
    assert "module 'FSDPSequential' frees its parameters" in root
    assert "must be sharded over all 4 ranks" in hedged_part
    assert 'cannot use wrap(loss="scaled")' in scaled
    assert "accumulate=N" in unsynced


def test_versions_of_pytorch_without_what_is_needed_are_refused() -> None:
    older, other = run_ranks(2, with_older_pytorch)[0]
    assert "wrap with fully_shard requires PyTorch 2.9 or newer" in older
    assert "use job.scale(loss).backward()" in older
    assert "has no _get_fsdp_state, which evenstep needs for fully_shard" in other
