"""FSDP2 models with own numbers of passes, of which one does not run in each iteration."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard

import evenstep
from evenstep.samples.order import Order
from ranks import preload, run_ranks
from test_own_passes import TOLERANCE, Memory, Parameters, resets, whole, zero_2
from training import EPOCHS, SAMPLES, Samples, difference, loss_of, network
from training import parameters as parameters_of

preload("torch.distributed.fsdp")


def alternate(models: Any, batches: Any, catches: Any = nullcontext, memory: Memory | None = None) -> None:
    """Trains two models with a momentum that moves both; the second one runs in every other iteration only."""
    optimizer, steps = torch.optim.SGD([at for model in models for at in model.parameters()], 0.05, momentum=0.9), 0
    for x, y, is_last in batches:
        with catches():
            loss_of(models[0], x, y).backward()
            for model in models[1:] if steps % 2 else ():
                loss_of(model, memory.at("between", x) if memory else x, y).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            steps += 1


def alternating(rank: int) -> Parameters:
    """One rank catches errors; the second model is wrapped first, and is two roots in a plain module."""
    job, memory = evenstep.init(plan=[6, 10]), Memory((3, 24)[rank], "between")
    loader = job.loader(Samples(), micro_batch=4)
    plain, keeping = network(), zero_2()
    for layer in (plain[0], plain[2]):  # type: ignore[index]  # A Sequential.
        fully_shard(layer, reshard_after_forward=False)
    keeping.set_reshard_after_backward(False)
    models = [job.wrap(plain), job.wrap(keeping)][::-1]
    batches = ((x, y, loader.is_last) for _ in range(EPOCHS) for x, y, _index in loader)
    alternate(models, batches, nullcontext if rank else job.on_oom, memory)
    assert memory.failures == 1 - rank
    return whole(keeping) + whole(plain)


@resets
def test_a_model_that_does_not_run_in_each_iteration() -> None:
    models, data, order = [network(), network()], Samples(), Order(SAMPLES, 16)
    places = [(epoch, at) for epoch in range(EPOCHS) for at in range(order.steps)]
    cuts = (order.permutation(epoch)[16 * at :][: order.size(at)] for epoch, at in places)
    alternate(models, ((data.x[at], data.y[at], True) for at in cuts))
    for trained in run_ranks(2, alternating):
        assert difference(trained, [*parameters_of(models[0]), *parameters_of(models[1])]) <= TOLERANCE
