"""FSDP with uneven batches: the parameters of one process, or an error."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import documents
import evenstep
from evenstep.gradients import fsdp, fsdp_state
from evenstep.run.losses import Loss
from evenstep.samples.order import Order
from programs import fetch_json
from ranks import preload, run_ranks
from training import (
    EPOCHS,
    GLOBAL_BATCH,
    PLANS,
    SAMPLES,
    Samples,
    Trained,
    difference,
    loss_of,
    network,
    one_process,
    sgd,
)

IS_OLD = not hasattr(FSDPModule, "set_custom_reduce_scatter")
#: ``wrap`` weights the gradients of several ranks there.
weights = pytest.mark.skipif(IS_OLD, reason="this PyTorch has no FSDPModule.set_custom_reduce_scatter")
clips = pytest.mark.skipif(IS_OLD, reason="this PyTorch clips sharded gradients with the precision of float32")

preload("torch.distributed.fsdp", "torch.distributed.tensor.parallel")

TOLERANCE = 1e-13
CLIP = 0.05

#: Plans of four ranks.
OF_FOUR = [[6, 5, 4, 1], [1, 2, 13, 0], [4, 4, 4, 4]]

Parameters = list[list[float]]


def sharded(layout: str = "layers", mesh: Any = None, **options: Any) -> torch.nn.Module:
    """Returns the network, with ``fully_shard`` on its layers, on the whole, or on both."""
    net = network()
    if layout != "whole":
        for layer in (net[0], net[2]):  # type: ignore[index]  # A Sequential.
            fully_shard(layer, mesh=mesh, **options)
    if layout != "only layers":
        fully_shard(net, mesh=mesh, **options)
    return net


def parameters(model: torch.nn.Module) -> Parameters:
    shards: list[Any] = [parameter.detach() for parameter in fsdp.parameters(model)]
    return [shard.full_tensor().flatten().tolist() for shard in shards]


def epochs_of(loader: Any) -> Any:
    for _ in range(EPOCHS):
        yield from loader


def train(_rank: int, plan: str, layout: str = "layers", **options: Any) -> Trained:
    """The script of a user."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(sharded(layout, **options))
    optimizer, trained = sgd(model), Trained([])
    for x, y, index in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if job._run.current.step.local_batch:
            trained.seen += index.tolist()
    assert job.state_dict()["iteration"] == EPOCHS * len(loader)
    trained.parameters = parameters(model)
    return trained


def clipped(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(sharded())
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return parameters(model)


def summed(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(sharded(), loss="sum")
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        # The mean is over three outputs of each sample.
        (torch.nn.functional.mse_loss(model(x), y, reduction="sum") / 3).backward()
        optimizer.step()
    return parameters(model)


def scaled_loss(_rank: int, plan: str) -> Parameters:
    """FSDP2 without wrap."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = sharded()
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        job.scale(loss_of(model, x, y)).backward()
        optimizer.step()
    return parameters(model)


def fsdp1(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        job.scale(loss_of(model, x, y)).backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def divided_by_global_tokens(_rank: int, plan: str) -> Parameters:
    """A loop like torchtitan's: FSDP sums, and the loss is the sum over tokens, divided by the tokens of all ranks.

    Each output of a sample is a token.
    """
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    net = sharded()
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    model = job.wrap(net, loss="scaled")
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        with job.step():
            optimizer.zero_grad()
            tokens = torch.tensor(y.numel())
            dist.all_reduce(tokens)
            (((model(x) - y) ** 2).sum() / tokens).backward()
            optimizer.step()
    return parameters(model)


def divided_by_tokens_of_micro_batches(_rank: int) -> Parameters:
    """A loop like torchtitan's with gradient accumulation; the numbers of tokens differ between samples."""
    job = evenstep.init(plan=lambda iteration: [[8, 4, 4], [4, 12, 0], [2, 0, 14]][iteration % 3])
    loader = job.loader(Samples(208), accumulate=2)
    net = sharded()
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    model = job.wrap(net, loss="scaled")
    optimizer = sgd(model)
    batches = epochs_of(loader)
    while first := next(batches, None):
        micro_batches = [first] + [next(batches) for _ in range(loader.accumulate - 1)]
        counts = [(y > 0).double() for _, y, _ in micro_batches]
        tokens = torch.stack([count.sum() for count in counts]).sum().double()
        dist.all_reduce(tokens)
        for (x, y, _), count in zip(micro_batches, counts, strict=True):
            with job.step():
                ((count * (model(x) - y) ** 2).sum() / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


class Named(torch.nn.Module):
    """A model with another method for forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        predicted: torch.Tensor = self.net(x)
        return predicted


def counted_tokens(_rank: int, plan: str) -> list[Parameters]:
    """A mean over tokens, whose number differs between samples; each output of a sample is one, or none.

    Returns the parameters of a usual training, of one in evaluation mode, and of one with another forward method.
    """

    def train(net: Any, forward: str) -> Parameters:
        job = evenstep.init(plan=PLANS[plan])
        loader = job.loader(Samples())
        model: Any = job.wrap(net, loss="tokens")
        optimizer = sgd(model)
        for x, y, _ in epochs_of(loader):
            optimizer.zero_grad()
            tokens = (y > 0).double()
            job.count(tokens.sum())
            (tokens * (getattr(model, forward)(x) - y) ** 2).sum().backward()
            optimizer.step()
        return parameters(model)

    named: Any = Named()
    fully_shard(named)
    register_fsdp_forward_method(named, "predict")
    return [train(sharded(), "__call__"), train(sharded().eval(), "__call__"), train(named, "predict")]


def counted_tokens_alone(samples: int = SAMPLES) -> Parameters:
    order, data, model = Order(samples, GLOBAL_BATCH), Samples(samples), network()
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        for at in order.permutation(epoch).split(GLOBAL_BATCH):
            x, y = data.x[at], data.y[at]
            optimizer.zero_grad()
            tokens = (y > 0).double()
            ((tokens * (model(x) - y) ** 2).sum() / tokens.sum()).backward()
            optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def counted_in_micro_batches(_rank: int, syncs_each: bool) -> Parameters | str:
    job = evenstep.init(plan=lambda iteration: [[8, 4, 4], [4, 12, 0]][iteration % 2])
    loader = job.loader(Samples(208), accumulate=4)
    model: Any = job.wrap(sharded(), loss="tokens")
    # Modules that keep whole parameters have no gradients of shards.
    model.set_reshard_after_backward(not syncs_each)
    optimizer = sgd(model)
    for count, (x, y, _) in enumerate(epochs_of(loader)):
        is_last = count % 4 == 3
        model.set_requires_gradient_sync(is_last or syncs_each)
        job.count(y.numel())
        loss = ((model(x) - y) ** 2).sum()
        try:
            loss.backward()
        except evenstep.UnsupportedError as error:
            return str(error)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


def of_costs(_rank: int) -> Parameters:
    """Passes are cut by tokens; all ranks have the same number of them, because each gathers parameters."""
    job = evenstep.init(plan=lambda iteration: [[5, 3, 2], [1, 1, 2], [3, 0, 1]][iteration % 3])
    loader = job.loader(
        documents.Documents(),
        cost=documents.LENGTHS,
        global_tokens=500,
        max_tokens=60,
        collate_fn=documents.packed,
    )
    net = documents.Net()
    fully_shard(net)
    model: Any = job.wrap(net, loss="tokens")
    optimizer = sgd(model)
    for batch in epochs_of(loader):
        model.set_requires_gradient_sync(loader.is_last)
        job.count(documents.counted(batch))
        documents.loss_of(model, batch).backward()
        if loader.is_last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


def recomputed(_rank: int, plan: str) -> Parameters:
    """Repeats the forward pass of the whole model in the backward pass, after the next batch was read."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(sharded())
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        batches = iter(loader)
        batch = next(batches, None)
        while batch:
            x, y, _ = batch
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(checkpoint(model, x, use_reentrant=False), y)
            batch = next(batches, None)
            loss.backward()
            optimizer.step()
    return parameters(model)


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


def accumulated(_rank: int, syncs_each: bool) -> Parameters:
    job = evenstep.init(plan=lambda iteration: [[8, 4, 4], [4, 12, 0]][iteration % 2])
    loader = job.loader(Samples(208), accumulate=4)
    model: Any = job.wrap(sharded())
    optimizer = sgd(model)
    for count, (x, y, _) in enumerate(epochs_of(loader)):
        is_last = count % 4 == 3
        model.set_requires_gradient_sync(is_last or syncs_each)
        (loss_of(model, x, y) / 4).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


def unequal_remainder(_rank: int) -> list[str]:
    """Wraps a model before and after the data set of 205 samples is known."""
    before, after = evenstep.init(plan=[8, 8]), evenstep.init(plan=[8, 8])
    before.wrap(sharded())
    after.loader(Samples(), accumulate=4)
    told = []
    for refused in (lambda: before.loader(Samples(), accumulate=4), lambda: after.wrap(sharded())):
        with pytest.raises(evenstep.UnsupportedError) as error:
            refused()
        told.append(str(error.value))
    return told


def hybrid(_rank: int, is_hedged: bool) -> Parameters:
    """Trains on a mesh of two replicas with two shards each."""
    job = evenstep.init(plan=lambda iteration: OF_FOUR[iteration % 3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = job.wrap(sharded(mesh=mesh, reshard_after_forward=False if is_hedged else None))
    optimizer = sgd(model)
    if is_hedged:
        hedged_epochs(job, model, optimizer, global_batch=GLOBAL_BATCH, tail=0.4)
    else:
        for x, y, _ in epochs_of(job.loader(Samples(), global_batch=GLOBAL_BATCH)):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
    return parameters(model)


def hedged_epochs(
    job: evenstep.Job,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    clip: float | None = None,
    **options: Any,
) -> list[list[int]]:
    """Returns the samples of this rank's passes."""
    passes = []
    for _ in range(EPOCHS):
        for step in job.steps(Samples(), model=model, **options):
            optimizer.zero_grad()
            for x, y, index in step:
                loss_of(model, x, y).backward()
                passes.append(index.tolist())
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        with torch.no_grad():
            # An evaluation leaves modules with whole parameters.
            model(Samples().x[:4])
    return passes


def hedged(_rank: int, plan: str | None, options: dict[str, Any]) -> Trained:
    job = evenstep.init(plan=PLANS[plan] if plan else None)
    model: Any = sharded(reshard_after_forward=False)
    model.set_reshard_after_backward(False)
    passes = hedged_epochs(job, model, sgd(model), **options)
    assert not any(group.reshard_after_backward for group in fsdp_state.groups(model[0])), (
        "the script's setting is kept"
    )
    return Trained(parameters(model), [sample for batch in passes for sample in batch])


def with_mixed_precision(_rank: int, is_hedged: bool) -> tuple[Parameters, str]:
    """Returns the gradient of the first iteration, of passes in bfloat16, and its type."""
    job = evenstep.init(plan=[12, 3, 1])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = network().float()
    fully_shard(net, mp_policy=policy, reshard_after_forward=not is_hedged)
    model = job.wrap(net)
    if is_hedged:
        for x, y, _ in next(iter(job.steps(Samples(), model=model))):
            loss_of(model, x, y).backward()
    else:
        x, y, _ = next(iter(job.loader(Samples())))
        loss_of(model, x, y).backward()
    gradients: list[Any] = [parameter.grad for parameter in fsdp.parameters(model)]
    return [gradient.full_tensor().flatten().tolist() for gradient in gradients], str(gradients[0].dtype)


def alone(_rank: int, loss: Loss, accumulate: int) -> tuple[Parameters, int]:
    """One process with a process group, as when a script is tried; returns the iteration of its checkpoint, too."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    job = evenstep.init()
    loader = job.loader(Samples(208), global_batch=GLOBAL_BATCH, accumulate=accumulate)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "shards"))
    model: Any = job.wrap(sharded(mesh=mesh), loss=loss)
    optimizer = sgd(model)
    for count, (x, y, _) in enumerate(epochs_of(loader)):
        is_last = count % accumulate == accumulate - 1
        model.set_requires_gradient_sync(is_last or loss != "tokens")
        if loss == "tokens":
            job.count(y.numel())
        value = torch.nn.functional.mse_loss(model(x), y, reduction="mean" if loss == "mean" else "sum")
        # The sum over samples is over three outputs of each.
        (value / {"mean": accumulate, "sum": 3}.get(loss, 1)).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model), job.state_dict()["iteration"]


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


def warns(_rank: int, server: str, job_id: str) -> list[str]:
    """Returns what a run with a predictor logs about speeds."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep").addHandler(handler)
    job = evenstep.init(server=server, job=job_id)
    model = job.wrap(sharded(reshard_after_forward=False))
    hedged_epochs(job, model, sgd(model), global_batch=GLOBAL_BATCH)
    job.close()
    return [line for line in told if "speed of ranks" in line]


@weights
@pytest.mark.parametrize(
    ("plan", "layout"), [*((plan, "layers") for plan in PLANS), ("changing", "whole"), ("changing", "only layers")]
)
def test_uneven_batches_train_as_one_process_does(plan: str, layout: str) -> None:
    check(run_ranks(3, train, plan, layout))


def check(ranks: Sequence[Trained], clip: float | None = None) -> None:
    assert worst([trained.parameters for trained in ranks], one_process(clip=clip)) <= TOLERANCE
    times = Counter(sample for trained in ranks for sample in trained.seen)
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)


@pytest.mark.parametrize("plan", ["changing", "13/3/0"])
@pytest.mark.parametrize(
    "work",
    [pytest.param(summed, marks=weights), scaled_loss, fsdp1, pytest.param(divided_by_global_tokens, marks=weights)],
    ids=lambda work: work.__name__,
)
def test_it_is_the_gradient_of_one_process(work: Callable[..., Parameters], plan: str) -> None:
    assert worst(run_ranks(3, work, plan), one_process()) <= TOLERANCE


def worst(ranks: Sequence[Parameters], reference: Parameters) -> float:
    """Returns the largest difference of a rank's parameters to the reference, and prints it."""
    found = max(difference(trained, reference) for trained in ranks)
    print(f"difference {found:.1e}")
    return found


@weights
@pytest.mark.parametrize("plan", ["changing", "13/3/0"])
def test_a_mean_over_tokens(plan: str) -> None:
    reference = counted_tokens_alone()
    assert difference(reference, one_process()) > 1e-3, "it is no mean over samples"
    for trained in zip(*run_ranks(3, counted_tokens, plan), strict=True):
        assert worst(trained, reference) <= TOLERANCE


@weights
def test_a_mean_over_the_tokens_of_ranks_and_micro_batches() -> None:
    trained = run_ranks(3, divided_by_tokens_of_micro_batches)
    assert worst(trained, counted_tokens_alone(208)) <= TOLERANCE


@weights
def test_tokens_of_micro_batches() -> None:
    reference = one_process(order=Order(208, GLOBAL_BATCH))
    assert worst(run_ranks(3, counted_in_micro_batches, False), reference) <= TOLERANCE
    assert all(
        "call set_requires_gradient_sync(False)" in told for told in run_ranks(3, counted_in_micro_batches, True)
    )


@weights
def test_passes_that_are_cut_by_tokens() -> None:
    reference = documents.one_process(documents.order_of(global_tokens=500))
    assert worst(run_ranks(3, of_costs), reference) <= TOLERANCE


@weights
@pytest.mark.parametrize("plan", ["changing", "12/3/1"])
def test_a_recomputed_forward_pass_keeps_its_batch(plan: str) -> None:
    assert worst(run_ranks(3, recomputed, plan), one_process()) <= TOLERANCE


@weights
def test_gradients_are_checked_in_evaluation_mode() -> None:
    for factor, unsynced in run_ranks(3, in_two_passes):
        assert factor.startswith("set_gradient_divide_factor after job.wrap")
        assert "by [3.0]: must be 1.0" in factor
        assert unsynced.startswith("set_requires_gradient_sync(False) with one weight for several batches")


@weights
def test_clipping_sees_the_whole_gradient() -> None:
    reference = one_process(clip=CLIP)
    assert difference(reference, one_process()) > 1e-3, "it clips"
    assert worst(run_ranks(3, clipped, "changing"), reference) <= TOLERANCE


@weights
def test_an_unequal_remainder_is_refused() -> None:
    for told in run_ranks(2, unequal_remainder):
        assert all("the remainder of an epoch has unequal ones: pass drop_last=True" in error for error in told)


@weights
@pytest.mark.parametrize("syncs_each", [False, True])
def test_accumulation(syncs_each: bool) -> None:
    reference = one_process(order=Order(208, GLOBAL_BATCH))
    assert worst(run_ranks(3, accumulated, syncs_each), reference) <= TOLERANCE


@weights
@pytest.mark.parametrize("is_hedged", [False, True])
def test_two_replicas_of_two_shards(is_hedged: bool) -> None:
    assert worst(run_ranks(4, hybrid, is_hedged), one_process()) <= TOLERANCE


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("6/5/5", {"tail": 0.4}),
        ("13/3/0", {}),
        (None, {"global_batch": 16, "tail": 1.0}),
        ("changing", {"tail": 0.3, "micro_batch": 2}),
        pytest.param("12/3/1", {"tail": 0.3, "clip": CLIP}, marks=clips),
    ],
    ids=["a tail", "a rank without passes", "only a tail", "small passes", "clipped"],
)
def test_hedged_steps_train_as_one_process_does(plan: str | None, options: dict[str, Any]) -> None:
    check(run_ranks(3, hedged, plan, options), options.get("clip"))


@weights
def test_hedged_gradients_of_bfloat16_passes_are_summed_in_float32() -> None:
    (reference, kind), (trained, hedged_kind) = (
        run_ranks(3, with_mixed_precision, is_hedged)[0] for is_hedged in (False, True)
    )
    assert kind == hedged_kind == "torch.float32"
    assert difference(trained, reference) <= 1e-6, "both reduce in float32"


@pytest.mark.parametrize(("loss", "accumulate"), [("mean", 1), ("mean", 2), ("sum", 2), ("tokens", 1), ("tokens", 2)])
def test_one_process_trains_as_without_fsdp(loss: Loss, accumulate: int) -> None:
    trained, iteration = run_ranks(1, alone, loss, accumulate)[0]
    assert difference(trained, one_process(order=Order(208, GLOBAL_BATCH))) <= TOLERANCE
    assert iteration == EPOCHS * 208 // GLOBAL_BATCH


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


@weights
def test_hedged_steps_measure_speeds(predictor: str, job_id: str) -> None:
    assert run_ranks(2, warns, predictor, job_id) == [[], []]
    times = fetch_json(f"{predictor}/v1/jobs/{job_id}/history")["step_time_s"]
    assert sum(time_s is not None for time_s in times) > len(times) / 2
