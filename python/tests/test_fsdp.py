"""FSDP with uneven batches: the parameters of one process."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.utils.checkpoint import checkpoint

import documents
import evenstep
from evenstep.gradients import fsdp
from evenstep.run.losses import Loss
from evenstep.samples.order import Order
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

preload("torch.distributed.fsdp")

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
    return [getattr(shard, "full_tensor", lambda shard=shard: shard)().flatten().tolist() for shard in shards]


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


def descend(
    model: torch.nn.Module,
    loader: Any,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    clip: float | None = None,
) -> None:
    """Trains all epochs, one step for each batch."""
    optimizer = sgd(model)
    for x, y, _ in epochs_of(loader):
        optimizer.zero_grad()
        loss(x, y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def clipped(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(sharded())
    descend(model, loader, partial(loss_of, model), CLIP)
    return parameters(model)


def summed(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(sharded(), loss="sum")
    # The mean is over three outputs of each sample.
    descend(model, loader, lambda x, y: torch.nn.functional.mse_loss(model(x), y, reduction="sum") / 3)
    return parameters(model)


def scaled_loss(_rank: int, plan: str) -> Parameters:
    """FSDP2 without wrap."""
    job = evenstep.init(plan=PLANS[plan])
    loader, model = job.loader(Samples()), sharded()
    descend(model, loader, lambda x, y: job.scale(loss_of(model, x, y)))
    return parameters(model)


def fsdp1(_rank: int, plan: str) -> Parameters:
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    descend(model, loader, lambda x, y: job.scale(loss_of(model, x, y)))
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
            with job.step(x):
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

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            tokens = (y > 0).double()
            job.count(tokens.sum())
            total: torch.Tensor = (tokens * (getattr(model, forward)(x) - y) ** 2).sum()
            return total

        descend(model, loader, loss)
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


def hybrid(_rank: int, is_hedged: bool) -> Parameters:
    """Trains on a mesh of two replicas with two shards each."""
    job = evenstep.init(plan=lambda iteration: OF_FOUR[iteration % 3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = job.wrap(sharded(mesh=mesh, reshard_after_forward=False if is_hedged else None))
    if is_hedged:
        hedged_epochs(job, model, sgd(model), global_batch=GLOBAL_BATCH, tail=0.4)
    else:
        descend(model, job.loader(Samples(), global_batch=GLOBAL_BATCH), partial(loss_of, model))
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
def test_clipping_sees_the_whole_gradient() -> None:
    reference = one_process(clip=CLIP)
    assert difference(reference, one_process()) > 1e-3, "it clips"
    assert worst(run_ranks(3, clipped, "changing"), reference) <= TOLERANCE


@weights
@pytest.mark.parametrize("syncs_each", [False, True])
def test_accumulation(syncs_each: bool) -> None:
    reference = one_process(order=Order(208, GLOBAL_BATCH))
    assert worst(run_ranks(3, accumulated, syncs_each), reference) <= TOLERANCE


@weights
@pytest.mark.parametrize("is_hedged", [False, True])
def test_two_replicas_of_two_shards(is_hedged: bool) -> None:
    assert worst(run_ranks(4, hybrid, is_hedged), one_process()) <= TOLERANCE


@pytest.mark.parametrize(("loss", "accumulate"), [("mean", 1), ("mean", 2), ("sum", 2), ("tokens", 1), ("tokens", 2)])
def test_one_process_trains_as_without_fsdp(loss: Loss, accumulate: int) -> None:
    trained, iteration = run_ranks(1, alone, loss, accumulate)[0]
    assert difference(trained, one_process(order=Order(208, GLOBAL_BATCH))) <= TOLERANCE
    assert iteration == EPOCHS * 208 // GLOBAL_BATCH
