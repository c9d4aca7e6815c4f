"""Loops that give their batches to ``job.step``: each batch keeps its weight, or the loop gets an error."""

import gc
import itertools
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

import evenstep
from ranks import preload, run_ranks
from training import GLOBAL_BATCH, Samples, difference, loss_of, network, parameters, sgd
from worlds import Alone, Ranks, World

preload("worlds", "training")

TOLERANCE = 1e-13

#: Number of iterations in an epoch.
STEPS = 13

#: Whether this PyTorch can weight sharded gradients.
SHARDS = hasattr(FSDPModule, "set_custom_reduce_scatter")


def train(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()


def far_ahead(world: World, model: Any) -> None:
    """Reads more than an epoch ahead."""
    optimizer, batches = sgd(model), world.batches()
    held = deque(islice(batches, STEPS + 5))
    while held:
        batch = held.popleft()
        with world.step(batch):
            held.extend(islice(batches, 1))
            train(model, optimizer, *batch[:2])


def epochs(world: World) -> Iterator[Iterator[Any]]:
    if isinstance(world, Ranks):
        loader = world.job.loader(Samples(), global_batch=GLOBAL_BATCH)
        yield from (iter(loader) for _ in range(2))
    else:
        whole = list(world.batches())
        yield from (iter(whole[:STEPS]), iter(whole[STEPS:]))


def left_early(world: World, model: Any, *, stop: int, depths: tuple[int, int]) -> None:
    """Leaves the first epoch, whose other batches it has read, and reads another number of them ahead in the second."""
    optimizer = sgd(model)
    for batches, depth, left in zip(epochs(world), depths, (stop, STEPS), strict=True):
        held = deque(next(batches, None) for _ in range(depth + 1))
        for _ in range(left):
            batch: Any = held.popleft()
            with world.step(batch[0]):
                train(model, optimizer, *batch[:2])
            held.append(next(batches, None))


def first_round(world: World, model: Any) -> None:
    optimizer, batches = sgd(model), world.batches()
    if isinstance(world, Ranks):
        batches = itertools.cycle(world.job.loader(Samples()))
    for batch in islice(batches, STEPS):
        with world.step(batch):
            train(model, optimizer, *batch[:2])
    if isinstance(world, Ranks):
        with pytest.raises(evenstep.SettingError, match=r"itertools\.cycle repeats trained ones"):
            world.step(next(batches)).__enter__()


def generator_every_second(world: World, model: Any) -> None:
    """Two models in one, as in a GAN; the next batch is read between their passes."""
    optimizer, batches = sgd(model), world.batches()
    batch = next(batches, None)
    for at in itertools.count():
        if batch is None:
            break
        x, y, *_ = batch
        with world.step(batch):
            train(model, optimizer, x, y)
            batch = next(batches, None)
            if at % 2:
                train(model, optimizer, x * 0.5, y)


def penalty_every_fourth(world: World, model: Any) -> None:
    """A regularisation that first comes with the second batch, before its other pass."""
    optimizer, batches = sgd(model), world.batches()
    batch = next(batches, None)
    for at in itertools.count(15):
        if batch is None:
            break
        x, y, *_ = batch
        with world.step({"x": x, "y": [y]}):
            train(model, optimizer, x, y)
        batch = next(batches, None)
        if at % 16 == 0 or at % 4 == 0:
            train(model, optimizer, x * 0.5, y)


def with_workers(world: World, model: Any) -> None:
    optimizer = sgd(model)
    batches = list(world.batches(num_workers=2, multiprocessing_context="fork"))
    for batch in batches:
        with world.step(batch):
            train(model, optimizer, *batch[:2])


LOOPS: dict[str, Callable[[World, Any], None]] = {
    "far ahead": far_ahead,
    "left early, shallower": partial(left_early, stop=11, depths=(5, 0)),
    "left early, one ahead": partial(left_early, stop=12, depths=(1, 0)),
    "left early, deeper": partial(left_early, stop=12, depths=(1, 4)),
    "first round": first_round,
    "generator": generator_every_second,
    "penalty": penalty_every_fourth,
    "workers": with_workers,
}


def loops(_rank: int) -> dict[str, list[list[float]]]:
    trained = {}
    for name, loop in LOOPS.items():
        for is_sharded in (False, True)[: 1 + SHARDS]:
            world = Ranks()
            model = world.fsdp(network()) if is_sharded else world.ddp(network())
            loop(world, model)
            whole = [getattr(at, "full_tensor", lambda at=at: at)() for at in model.parameters()]
            trained[f"{name}, {is_sharded}"] = [at.detach().flatten().tolist() for at in whole]
            world.job.close()
    return trained


def test_each_batch_keeps_its_weight() -> None:
    references = {}
    for name, loop in LOOPS.items():
        loop(Alone(), model := network())
        references[name] = parameters(model)
    for trained in run_ranks(3, loops):
        found = {name: difference(one, references[name.rpartition(",")[0]]) for name, one in trained.items()}
        assert max(found.values()) <= TOLERANCE, found


def attacked(_rank: int, is_sharded: bool) -> list[tuple[list[list[float]], str]]:
    """Changes inputs by their gradients, to validate between two epochs."""
    found = []
    for work in ("none", "inputs", "backward" if is_sharded else "module", "backward"):
        world = Ranks()
        model = world.fsdp(network()) if is_sharded else world.ddp(network())
        optimizer, told = sgd(model), ""
        for batches in epochs(world):
            for x, y, _ in batches:
                train(model, optimizer, x, y)
            x, y = Samples(16).x, Samples(16).y
            x.requires_grad_()
            if work == "inputs":
                [slopes] = torch.autograd.grad(loss_of(model, x, y), x)
                assert slopes.abs().max() > 0
            elif work == "module":
                loss_of(model.module, x, y).backward()
            elif work == "backward":
                with pytest.raises(evenstep.UnsupportedError) as error:
                    loss_of(model, x, y).backward()
                told = str(error.value)
                break
        whole = [getattr(at, "full_tensor", lambda at=at: at)() for at in model.parameters()]
        found.append(([at.detach().flatten().tolist() for at in whole], told))
        world.job.close()
    return found


@pytest.mark.parametrize("is_sharded", [False, True][: 1 + SHARDS])
def test_gradients_of_inputs_between_epochs(is_sharded: bool) -> None:
    for (plain, _), *others in run_ranks(3, attacked, is_sharded):
        for trained, told in others:
            if told:
                assert "torch.autograd.grad(loss, inputs)" in told
            else:
                assert difference(trained, plain) == 0


def alone(collate: Any = None, samples: int = 64, **options: Any) -> tuple[evenstep.Job, Iterator[Any]]:
    job = evenstep.init(plan=[16])
    return job, iter(job.loader(Samples(samples), collate_fn=collate, **options))


def begun(job: evenstep.Job, given: Any) -> int:
    with job.step(given) as step:
        return step.iteration


class Rows:
    """An object that hides its tensors."""

    def __init__(self, samples: list[Any]) -> None:
        """Stores the samples."""
        self.samples = samples


class Named(dict[str, Any]):
    """A dictionary whose keys are its attributes."""

    def __init__(self, **items: Any) -> None:
        """Stores the items."""
        super().__init__(**items)
        self.__dict__ = self


@dataclass
class Part:
    """A part of a batch, whose own class allows no weak references."""

    __slots__ = ("x", "y")

    x: torch.Tensor
    y: torch.Tensor


class Columns(list[Any]):
    """A list with another index."""

    def __getitem__(self, name: Any) -> Any:
        return [getattr(row, name) for row in self]


@pytest.mark.parametrize(
    ("collate", "given"),
    [
        (None, lambda batch: batch),
        (None, lambda batch: batch[1]),
        (None, lambda batch: {"inputs": batch[0], "rest": [batch[2], 7, None]}),
        (lambda samples: {"x": [x for x, _, _ in samples], "name": "text"}, lambda batch: batch),
        (lambda samples: {"x": [x for x, _, _ in samples], "name": "text"}, lambda batch: batch["x"][3:5]),
        (lambda samples: torch.stack([x for x, _, _ in samples]).numpy(), lambda batch: batch),
        (lambda samples: UserDict(x=samples[0][0]), lambda batch: batch.update(x=torch.ones(1)) or batch),
        (Rows, lambda batch: batch),
        (lambda samples: Named(values=samples[0][0], rest=7), lambda batch: batch),
        (lambda samples: Columns([samples[0][0], samples[1][0]]), lambda batch: batch),
        (lambda samples: 3 * [({"x": x}, "text", 7) for x, *_ in samples], lambda batch: batch),
        (lambda samples: UserDict(x=samples[0][0], y=[samples[1][0]]), lambda batch: batch["y"]),
        (lambda samples: Part(samples[0][0], samples[1][0]), lambda batch: batch),
        (lambda samples: [Part(samples[0][0], samples[1][0])], lambda batch: batch[0].y),
    ],
)
def test_a_batch_is_known_by_itself_or_by_its_parts(collate: Any, given: Callable[[Any], Any]) -> None:
    job, batches = alone(collate)
    assert [begun(job, given(batch)) for batch in list(batches)] == [0, 1, 2, 3]


def test_what_the_loader_did_not_yield_is_refused() -> None:
    job, batches = alone()
    first, second, third = islice(batches, 3)
    others: tuple[Any, ...] = (first[0].clone(), (first[0].float(), first[1]), [], "text", first[0][:3])
    for other in others:
        with pytest.raises(evenstep.SettingError, match=r"as job\.loader yielded them, before \.to\(device\)"):
            begun(job, other)
    with pytest.raises(evenstep.SettingError, match="is no batch that waits"):
        begun(job, [first[0], second[0]])
    with pytest.raises(evenstep.UnsupportedError, match=r"iteration 2 .* begins, but iteration 1 was read before"):
        begun(job, third)
    assert job.state_dict()["iteration"] == 0, "an error changes nothing"
    assert [begun(job, first), begun(job, second[0])] == [0, 1]
    with pytest.raises(evenstep.SettingError, match="iteration 1 of epoch 0 is already trained"):
        begun(job, second)
    with pytest.raises(evenstep.SettingError, match="must be one of them"):
        job.step(third, global_batch=16).__enter__()
    job, batches = alone()
    dropped = next(batches)
    batches = iter(job.loader(Samples(64)))
    first = next(batches)
    with pytest.raises(evenstep.SettingError, match="is no batch that waits"):
        begun(job, dropped)
    assert begun(job, first) == 0


def test_parts_of_several_batches_tell_nothing_alone() -> None:
    """A constant in each batch, and samples that a data set stores, in each epoch."""
    stored = [torch.ones(2) for _ in range(16)]
    job = evenstep.init(plan=[4])
    loader = job.loader(stored, collate_fn=lambda samples: [*samples, stored[0]])
    for epoch in range(3):
        held = list(loader)
        with pytest.raises(evenstep.SettingError, match="is in 4 batches"):
            begun(job, stored[0])
        assert [begun(job, batch) for batch in held[:3]] == [4 * epoch + at for at in range(3)]
        assert begun(job, stored[0]) == 4 * epoch + 3, "the others are trained"


def test_no_batch_lives_longer() -> None:
    job, batches = alone()
    held = [next(batches) for _ in range(3)]
    dies = [weakref.ref(batch[0]) for batch in held]
    with job.step(held[0]):
        held.clear()
        gc.collect()
        assert [at() is None for at in dies] == [True, True, False], "the loader holds the batch that it read last"
    next(batches)
    assert dies[2]() is None


def unequally_far(rank: int) -> str:
    """Leaves an epoch early that only rank 0 has read to its end."""
    job = evenstep.init(plan=lambda iteration: [[10, 6], [3, 13], [8, 8]][iteration % 3])
    loader = job.loader(Samples(64))
    for told in range(2):
        batches = iter(loader)
        held = [next(batches, None) for _ in range(5 if rank == 0 else 2)]
        try:
            begun(job, held[0])
        except evenstep.DivergedError as error:
            return f"{told} {error}"
    return ""


def test_ranks_that_drop_different_numbers_of_iterations_are_refused() -> None:
    told = [said for said in run_ranks(2, unequally_far) if said]
    assert len(told) == 1
    assert told[0].startswith("1 epoch 1 begins with iteration ")


class Served(Ranks):
    """A rank with a predictor."""

    def __init__(self) -> None:
        """Creates a job."""
        self.job = evenstep.init()


def served(_rank: int) -> list[list[float]]:
    world = Served()
    model = world.ddp(network())
    left_early(world, model, stop=11, depths=(5, 1))
    assert world.job.state_dict()["iteration"] == 2 * STEPS, "dropped iterations have numbers"
    world.job.close()
    return parameters(model)


def test_ranks_exchange_plans_after_iterations_that_were_dropped(predictor: str, job_id: str) -> None:
    left_early(Alone(), model := network(), stop=11, depths=(5, 1))
    for trained in run_ranks(3, served, environ={"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id}):
        assert difference(trained, parameters(model)) <= TOLERANCE
