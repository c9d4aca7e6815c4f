"""Ranks without samples: batches of length 0 if losses are sums, else samples for each rank."""

import logging
from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.gradients import fsdp
from evenstep.run.empty import emptied
from ranks import preload, run_ranks
from training import EPOCHS, SAMPLES, Samples, difference, network, one_process, sgd

preload("torch.distributed.fsdp")


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Rows:
    x: Any
    name: str = "rows"


def test_a_batch_of_any_structure_is_cut() -> None:
    x = torch.ones(2, 3)
    pair = Pair(x, {"y": x.numpy(), "texts": ["a", "b"], "names": ("a", "b")})
    first, second, third, rows, none = emptied([x, pair, UserDict(x=x), Rows(x), None], 2)
    assert first.shape == second.x.shape == second.y["y"].shape == third["x"].shape == rows.x.shape == (0, 3)
    assert (type(second), second.y["texts"], second.y["names"]) == (Pair, [], ())
    assert (type(third), rows.name, none) == (UserDict, "rows", None)
    assert len(pair.y["y"]) == 2, "the batch itself does not change"


@pytest.mark.parametrize(
    "batch",
    [torch.ones(7), torch.tensor(2), [torch.ones(2, 3), 7], {"rows": 2}, object(), [{"x": torch.ones(3)}] * 2, (2, 2)],
    ids=[
        "packed",
        "a number of a batch",
        "another number",
        "in a mapping",
        "an object",
        "samples that differ",
        "a size",
    ],
)
def test_a_batch_without_a_dimension_of_samples_is_not_cut(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        emptied(batch, 2)


def plan(iteration: int) -> list[int]:
    return [[13, 3, 0], [16, 0, 0], [0, 12, 4]][iteration % 3]


def train(loss: Any, *, is_sharded: bool, workers: int) -> tuple[list[list[float]], int]:
    """Returns the parameters, and the number of samples that the loop counts on all ranks."""
    job, net, counted = evenstep.init(plan=plan), network(), torch.zeros(())
    loader = job.loader(Samples(), num_workers=workers, multiprocessing_context="fork" if workers else None)
    model: Any = fully_shard(net) if is_sharded else DistributedDataParallel(net)
    job.wrap(model, loss=loss)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            size = torch.tensor(len(x))
            dist.all_reduce(size)
            counted += size
            total = mse_loss(model(x), y, reduction="sum") / 3
            if loss == "mean":
                total = total / len(x)
            if loss == "scaled":
                total = total / size * dist.get_world_size()
            if loss == "tokens":
                job.count(len(x))
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    job.close()
    whole: Any = [shard.detach() for shard in fsdp.parameters(model)]
    return [(shard.full_tensor() if is_sharded else shard).flatten().tolist() for shard in whole], int(counted)


def trained(_rank: int) -> tuple[dict[str, Any], list[str]]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]  # Of this object.
    logging.getLogger("evenstep").addHandler(handler)
    results: dict[str, Any] = {loss: train(loss, is_sharded=False, workers=0) for loss in ("sum", "tokens", "scaled")}
    results["prefetched"] = train("sum", is_sharded=False, workers=2)
    if hasattr(FSDPModule, "set_custom_reduce_scatter"):
        results["sharded"] = train("scaled", is_sharded=True, workers=0)
    assert len(told) == len(results), "once in each job"
    results["mean"] = train("mean", is_sharded=False, workers=0)
    return results, [told[0], *told[len(results) - 1 :]]


def test_the_training_loop_counts_each_sample_once() -> None:
    ranks = run_ranks(3, trained)
    reference = one_process()
    for results, _ in ranks:
        for parameters, counted in results.values():
            assert difference(parameters, reference) <= 1e-13
            assert counted == EPOCHS * SAMPLES
    (_, changed), (empty,), _ = (told for _, told in ranks)
    assert changed.startswith("plan=[13, 3, 0] of iteration 0 becomes [12, 3, 1]: unless losses are sums, a rank")
    assert empty.startswith("iteration 1: rank 1 has no samples for this batch, and gets one of length 0; if the")


def rows(samples: list[Any]) -> dict[str, int]:
    return {"rows": len(samples)}


def cannot_cut(rank: int) -> tuple[Any, Any]:
    batches = []
    losses: tuple[Any, ...] = ("sum", "scaled")
    for loss in losses:
        job = evenstep.init(plan=[16, 0])
        loader = job.loader(Samples(), collate_fn=rows)
        job.wrap(DistributedDataParallel(network()), loss=loss)
        if rank and loss == "scaled":
            with pytest.raises(evenstep.UnsupportedError) as error:
                next(iter(loader))
            batches.append(str(error.value))
        else:
            batches.append(next(iter(loader)))
    return batches[0], batches[1]


def test_a_batch_that_cannot_be_cut_is_refused_if_the_loop_would_count_it() -> None:
    first, (weightless, told) = run_ranks(2, cannot_cut)
    assert first == ({"rows": 16}, {"rows": 16})
    assert weightless == {"rows": 2}, "its gradient has the weight 0"
    assert told.startswith('iteration 0: rank 1 has no samples for this batch, and job.wrap(loss="scaled") requires')
    assert "collate_fn returned int 2" in told
