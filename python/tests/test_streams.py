"""Streams with loader workers, read by the functions of the documentation."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate, get_worker_info

import evenstep
from programs import ROOT
from ranks import run_ranks
from training import GLOBAL_BATCH, PLANS, Samples, difference, loss_of, network, parameters, sgd

#: The required accuracy, in float64.
TOLERANCE = 1e-13

#: Shards of 205 samples. Workers get different numbers of shards and samples.
SHARDS = [range(70), range(70, 75), range(75, 160), range(160, 161), range(161, 205)]


class Sharded(IterableDataset[Any]):
    """A stream as WebDataset and others make it: each worker reads some of the shards."""

    def __init__(self, shards: Iterable[Iterable[int]] = SHARDS) -> None:
        self.shards = list(shards)
        self.data = Samples()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        return (self.data[index] for shard in mine for index in shard)


def documented(name: str) -> Any:
    """Returns a function of the documentation."""
    blocks = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / "how-to" / "streams.md").read_text())
    [block] = [block for block in blocks if f"def {name}(" in block]
    names: dict[str, Any] = {"islice": itertools.islice, "default_collate": default_collate}
    exec(compile(block.split("\n\n\n")[0], "streams.md", "exec"), names)  # noqa: S102  # Of this repository.
    return names[name]


def train(
    job: evenstep.Job,
    batches: Iterable[Any],
    before: dict[str, Any] | None,
    stop: int | None,
    reads_early: bool = False,
) -> dict[str, Any]:
    net = network()
    model = job.wrap(DistributedDataParallel(net))
    optimizer = sgd(model)
    if before:
        net.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
    seen = []
    source = iter(batches)
    batch = next(source)
    while batch is not None:
        x, y, index = batch
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        batch = next(source) if reads_early else None
        loss.backward()
        optimizer.step()
        computed = job._run.binding.computed
        seen.append(index.tolist() if computed and computed.local_batch else [])
        if job.state_dict()["iteration"] == stop:
            break
        batch = batch or next(source, None)
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
    return {**state, "seen": seen, "parameters": parameters(model)}


def part(_rank: int, plan: str | list[int], stop: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
    """Trains on one epoch of a stream that all ranks read."""
    job = evenstep.init(plan=PLANS[plan] if isinstance(plan, str) else plan)
    done = 0
    if before:
        job.load_state_dict(before["job"])
        done = before["job"]["iteration"]
    stream = DataLoader(Sharded(), batch_size=None, num_workers=2)
    batches = documented("batches_of")(job, stream, GLOBAL_BATCH, skip=done * GLOBAL_BATCH)
    return train(job, batches, before, stop)


def one_process(iterations: Iterable[list[int]]) -> list[list[float]]:
    """Returns the parameters after these iterations of whole batches, with plain PyTorch."""
    data, model = Samples(), network()
    optimizer = sgd(model)
    for indices in iterations:
        optimizer.zero_grad()
        loss_of(model, data.x[indices], data.y[indices]).backward()
        optimizer.step()
    return parameters(model)


@pytest.mark.parametrize(("plan", "stop"), [("13/3/0", 7), ("changing", 12)])
def test_a_stream_is_one_process_also_after_a_resume_with_other_ranks(plan: str, stop: int) -> None:
    first = run_ranks(3, part, plan, stop, None)
    # After 12 iterations only the remainder of 13 samples is left.
    second = run_ranks(2, part, [5, 11], None, first[0])
    order = [int(index) for _, _, index in DataLoader(Sharded(), batch_size=None, num_workers=2)]
    whole = [order[at : at + GLOBAL_BATCH] for at in range(0, len(order), GLOBAL_BATCH)]
    for rank in second:
        assert difference(rank["parameters"], one_process(whole)) <= TOLERANCE
    times = Counter(index for rank in (*first, *second) for seen in rank["seen"] for index in seen)
    assert times == dict.fromkeys(range(205), 1)


def endless(rank: int) -> dict[str, Any]:
    """Trains for 20 iterations; each rank reads its part of a stream without an end, and the next batch early."""
    job = evenstep.init(plan=PLANS["changing"])
    mine = [range(rank, 205, 3)] * 50
    stream = DataLoader(Sharded(mine), batch_size=None, num_workers=2)
    return train(job, documented("batches_of_part")(job, stream, GLOBAL_BATCH), None, 20, reads_early=True)


def test_parts_of_an_endless_stream_give_the_mean_over_each_iteration() -> None:
    ranks = run_ranks(3, endless)
    by_iteration = zip(*(rank["seen"] for rank in ranks), strict=True)
    iterations = [[index for seen in shares for index in seen] for shares in by_iteration]
    assert [len(indices) for indices in iterations] == [GLOBAL_BATCH] * 20
    for rank in ranks:
        assert difference(rank["parameters"], one_process(iterations)) <= TOLERANCE


class RandomAccess(Sharded):
    """A stream with a length and random access, such as those of MosaicML and LitData."""

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def test_a_stream_is_refused_with_advice() -> None:
    job = evenstep.init(plan=[16])
    with pytest.raises(evenstep.SettingError, match=r"Sharded: .* read streams with `job\.step\(global_batch=\.\.\)`"):
        job.loader(Sharded())
    dataset = RandomAccess()
    with pytest.raises(evenstep.SettingError, match=r"wrap it: Subset\(dataset, range\(len\(dataset\)\)\)"):
        job.loader(dataset)
    seen = [int(index) for _, _, indices in job.loader(Subset(dataset, range(len(dataset)))) for index in indices]
    assert sorted(seen) == list(range(205))
    assert torch.is_tensor(dataset[0][0])
