"""Ranks with their own numbers of passes: passes that do not fit into memory, and what is refused."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import fsdp
from evenstep.job import oom
from evenstep.run.passes import Passes
from evenstep.samples.order import Order
from ranks import preload, run_ranks
from training import EPOCHS, SAMPLES, Samples, difference, loss_of, network, one_process, sgd
from training import parameters as parameters_of

preload("torch.distributed.fsdp")

TOLERANCE = 1e-13

#: Only FSDP2 of newer versions can forget a pass that failed.
RESETS = hasattr(FSDPModule, "reset_iter_state")
resets = pytest.mark.skipif(not RESETS, reason="this PyTorch has no FSDPModule.reset_iter_state")

#: The units of memory of two devices.
UNITS = (12, 24)
#: Units that the state of the optimizer takes after its first step.
STATE = 2
#: The number of trainings in which passes do not fit.
RUNS = 20
#: The places at which the memory of a pass runs out.
PLACES = ("batch", "forward", "loss", "backward")

Parameters = list[list[float]]


class Memory:
    """A device that holds as many samples as it has units."""

    def __init__(self, units: int, place: str) -> None:
        self.units, self.place = units, place
        #: The number of passes that did not fit.
        self.failures = 0
        #: The samples of the first pass.
        self.first = 0

    def at(self, place: str, x: torch.Tensor) -> torch.Tensor:
        self.first = self.first or len(x)
        if place == self.place and len(x) > self.units:
            self.failures += 1
            raise torch.OutOfMemoryError(f"{len(x)} samples at {place}")
        return x


class Backward(torch.autograd.Function):
    """The identity, whose backward pass needs memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        ctx.memory = memory
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The layers above have added their gradients.
        return ctx.memory.at("backward", gradient), None


class Limited(torch.nn.Module):
    """The network on such a device, with statistics of its batches."""

    seen: torch.Tensor

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.net, self.memory = network(), memory
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen.add_(len(x))
        hidden = self.net[1](self.net[0](self.memory.at("forward", x)))  # type: ignore[index]  # A Sequential.
        return self.net[2](Backward.apply(hidden, self.memory))  # type: ignore[index]


def fit(job: Any, memory: Memory, micro_batch: Any, *, shards: bool, **options: Any) -> Parameters:
    """The script of a user, whose passes may not fit."""
    units, net = memory.units, Limited(memory)
    loader = job.loader(Samples(), micro_batch=micro_batch, global_batch=64, **options)
    for module in (net.net[0], net.net[2], net) if shards else ():  # type: ignore[index]  # A Sequential.
        fully_shard(module, reshard_after_forward=False)
    model = job.wrap(net if shards else DistributedDataParallel(net))
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            with job.on_oom():
                memory.at("batch", x)
                loss_of(model, memory.at("loss", x), y).backward()
            if loader.is_last:
                optimizer.step()
                optimizer.zero_grad()
                memory.units = units - STATE
    return whole(net) if shards else parameters_of(net.net)


def whole(model: Any) -> Parameters:
    shards: list[Any] = list(fsdp.parameters(model))
    return [shard.detach().full_tensor().flatten().tolist() for shard in shards]


def ends_of(rank: int, *, shards: bool) -> list[Parameters]:
    """Trains several times with passes that do not fit."""
    ends, failures = [], 0
    for seed in range(RUNS // 2 if shards else RUNS):
        draw = Random(seed)  # noqa: S311  # No secret.
        plans = [[(part := draw.randrange(65)), 64 - part] for _ in range(5)]
        place, workers = draw.choice(PLACES), draw.randrange(2)
        job = evenstep.init(plan=lambda at, plans=plans: plans[at % 5])
        memory = Memory(UNITS[rank], place)
        options = {"num_workers": 1, "multiprocessing_context": "fork"} if workers else {}
        ends.append(fit(job, memory, draw.choice([32, "auto"]), shards=shards, **options))
        job.close()
        failures += memory.failures
    assert failures > len(ends)
    return ends


@pytest.mark.parametrize("shards", [False, pytest.param(True, marks=resets)])
def test_a_pass_that_does_not_fit_costs_no_sample_and_no_restart(*, shards: bool) -> None:
    reference = one_process(order=Order(SAMPLES, 64))
    for ends in run_ranks(2, partial(ends_of, shards=shards)):
        assert max(difference(end, reference) for end in ends) <= TOLERANCE


def resumes(rank: int) -> tuple[list[Any], int]:
    """Returns the limits in the checkpoint of each job, and the samples in the first pass of the second one."""
    states, memory = list[Any]([{}]), Memory(UNITS[rank], "forward")
    for _ in range(2):
        job, units = evenstep.init(), memory.units
        if states[-1]:
            states[-1]["passes"]["another"] = [3, 4]
            job.load_state_dict(states[-1])
        memory.first = 0
        fit(job, memory, "auto", shards=False)
        states.append(job.state_dict())
        memory.units = units
        job.close()
    return [state["passes"] for state in states[1:]], memory.first


def test_a_resumed_run_starts_with_the_sizes_of_its_device(predictor: str, job_id: str) -> None:
    environ = {"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id}
    for (before, after), first in run_ranks(2, resumes, environ=environ):
        fits, fails = before["cpu"]
        assert fits <= UNITS[0] - STATE < fails <= UNITS[0] + STATE
        assert 1 < first <= fits
        assert after["another"] == [3, 4]
        assert after["cpu"][0] <= UNITS[0] - STATE < after["cpu"][1]


def test_a_search_finds_the_largest_size_that_fits() -> None:
    for limit in range(1, 200):
        for least in (1, 2):
            passes, failures = Passes("auto"), 0
            for _ in range(24):
                sizes = passes.cut(1000, least)
                while (too_large := next((size for size in sizes if size > max(limit, least)), None)) is not None:
                    assert passes.failed(too_large, least)
                    sizes, failures = passes.cut(1000, least), failures + 1
                assert sum(sizes) == 1000
                assert min(sizes[:-1], default=least) >= least
                passes.trained(max(sizes))
            assert passes.size <= max(limit, least), limit
            assert passes.size >= min(limit, 1000) * 8 // 9, (limit, passes.size)
            assert failures <= 10, (limit, failures)
            assert not passes.failed(least, least), "there is no smaller one"


@pytest.mark.parametrize(("size", "least"), [(1, 1), (4, 1), (3, 2), (2, 2), (7, 2)])
def test_passes_have_all_samples_and_at_most_one_other_size(size: int, least: int) -> None:
    for samples in range(1, 40):
        passes = Passes(size)
        sizes = passes.cut(samples, least)
        assert sizes[-1] == 0, "no size is known to fit"
        passes.trained(max(sizes))
        assert passes.cut(samples, least) == sizes[:-1]
        assert sum(sizes) == samples
        assert all(at >= min(least, samples) for at in sizes[:-1])
        assert max(sizes) <= max(size, least) + (size == least > 1)
        assert len({at for at in sizes[:-1] if at != size}) <= 1 + (least > 1)


def zero_2(replicas: int = 0, *, keeps: bool = True) -> Any:
    net: Any = network()
    mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("replicas", "shards")) if replicas else None
    for module in (net[0], net[2], net):
        fully_shard(module, mesh=mesh, reshard_after_forward=not keeps)
    return net


def hybrid(rank: int) -> Parameters:
    plans = [[6, 5, 4, 1], [1, 2, 13, 0], [4, 4, 4, 4]]
    job = evenstep.init(plan=lambda at: plans[at % 3])
    loader = job.loader(Samples(), micro_batch=(3, 4, 3, 2)[rank])
    model = job.wrap(zero_2(replicas=2))
    model[2].set_reshard_after_backward(False)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            loss_of(model, x, y).backward()
            if loader.is_last:
                is_whole = [not hasattr(layer.weight, "device_mesh") for layer in (model[0], model[2])]
                assert is_whole == [False, True], "FSDP2 frees all layers but the one that the script keeps"
                model[2].reshard()
                optimizer.step()
                optimizer.zero_grad()
    return whole(model)


@pytest.mark.skipif(not hasattr(FSDPModule, "set_custom_reduce_scatter"), reason="this PyTorch cannot wrap FSDP2")
def test_replicas_of_shards_have_own_numbers_of_passes() -> None:
    for trained in run_ranks(4, hybrid):
        assert difference(trained, one_process()) <= TOLERANCE


def steps_early(_job: Any, batches: Any, model: Any) -> None:
    optimizer = sgd(model)
    for x, y, _ in batches:
        loss_of(model, x, y).backward()
        optimizer.step()


def clears_gradients(_job: Any, batches: Any, model: Any) -> None:
    for x, y, _ in batches:
        model.zero_grad()
        loss_of(model, x, y).backward()


def zeroes_gradients(_job: Any, batches: Any, model: Any) -> None:
    for x, y, _ in batches:
        model.zero_grad(set_to_none=False)
        loss_of(model, x, y).backward()


def adds_losses(_job: Any, batches: Any, model: Any) -> None:
    torch.stack([loss_of(model, x, y) for x, y, _ in islice(batches, 2)]).sum().backward()


def runs_twice(_job: Any, batches: Any, model: Any) -> None:
    for x, y, _ in batches:
        (loss_of(model, x, y) + loss_of(model, x, y)).backward()


def scales(job: Any, batches: Any, model: Any) -> None:
    for x, y, _ in batches:
        job.scale(loss_of(model, x, y)).backward()


#: Loops that are refused, by a part of the error, with a model and whether it is wrapped.
REFUSED: dict[str, tuple[Any, Callable[[], Any], bool]] = {
    "step `if loader.is_last`": (steps_early, lambda: DistributedDataParallel(network()), True),
    "needs the gradients of all passes": (zeroes_gradients, lambda: DistributedDataParallel(network()), True),
    "call zero_grad after the step": (clears_gradients, lambda: DistributedDataParallel(network()), True),
    "call backward\\(\\) for each micro-batch": (adds_losses, lambda: DistributedDataParallel(network()), True),
    "call backward\\(\\) for each batch": (adds_losses, zero_2, True),
    "gradients are not reduced": (steps_early, zero_2, True),
    "runs twice before a backward": (runs_twice, zero_2, True),
    "micro_batch without job.wrap": (steps_early, network, False),
    "job.scale with micro_batch": (scales, network, False),
    "remove static_graph": (steps_early, lambda: DistributedDataParallel(network(), static_graph=True), True),
    "frees its parameters after the forward pass": (steps_early, partial(zero_2, keeps=False), True),
}


def refusals(_rank: int) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    for told, (loop, model_of, wraps) in REFUSED.items():
        job = evenstep.init(plan=[16])
        batches = iter(job.loader(Samples(), micro_batch=6))
        model = model_of()
        with pytest.raises(UnsupportedError, match=told):
            loop(job, batches, job.wrap(model) if wraps else model)
        job.close()
    with nullcontext() if RESETS else pytest.raises(UnsupportedError, match="requires a PyTorch with"):
        (job := evenstep.init(plan=[16])).loader(Samples(), micro_batch="auto"), job.wrap(zero_2())
    wrong: list[tuple[Any, int]] = [(0, 1), (2.5, 1), (True, 1), ("all", 1), (4, 2)]
    for size, accumulate in wrong:
        with pytest.raises(SettingError, match="micro_batch"):
            evenstep.init(plan=[16]).loader(Samples(), micro_batch=size, accumulate=accumulate)
    job = evenstep.init(plan=[16])
    job.wrap(zero_2(keeps=False))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="frees its parameters"):
            job.loader(Samples(), micro_batch=6)
    job = evenstep.init(plan=[16])
    job.loader(Samples(), micro_batch=8)
    with pytest.raises(SettingError, match="began with micro_batch=8"):
        job.loader(Samples(), micro_batch=2)
    resumes_with_numbers()
    masks(job)
    reports(job)
    keeps_ready_batches()
    frees_models()


def resumes_with_numbers() -> None:
    """A number of the script counts, unless the checkpoint has the same one; a search may find more than before."""
    wanted: list[tuple[Any, int]] = [(8, 3), (6, 6), ("auto", 3)]
    for setting, size in wanted:
        job: Any = evenstep.init(plan=[16])
        job.loader(Samples(), micro_batch=8)
        state = job.state_dict()
        assert (state["passes"], state["micro_batch"]) == ({"cpu": [0, 0]}, 8)
        state["passes"]["cpu"] = [3, 4]
        job = evenstep.init(plan=[16])
        job.load_state_dict(state)
        job.loader(Samples(), micro_batch=setting)
        assert job._run.passes.size == size
        assert job.state_dict()["passes"] == {"cpu": [0, 4] if setting == 8 else [3, 4]}


def keeps_ready_batches() -> None:
    """Batch norm needs two samples in a pass, which a ready-made batch has."""
    sizes: list[int] = []
    job = evenstep.init(plan=[4])
    loader = job.loader(Samples(), micro_batch=1, collate_fn=lambda items: sizes.append(len(items)))
    job.wrap(DistributedDataParallel(torch.nn.BatchNorm1d(8)))
    assert next(iter(loader)) is None
    assert sizes == [1]


def frees_models() -> None:
    """As loops over parts of the data do, which make a model for each."""
    job, models = evenstep.init(plan=[16]), list[Any]()
    loader = job.loader(Samples(), micro_batch=8)
    for _ in range(3):
        model = job.wrap(DistributedDataParallel(network()))
        models.append(weakref.ref(model.module))
        for x, y, _index in loader:
            loss_of(model, x, y).backward()
        del model
    gc.collect()
    assert [of() is None for of in models[:2]] == [True, True]


def masks(job: Any) -> None:
    """A first pass whose gradients are 0 is none whose gradients were cleared."""
    model = job.wrap(DistributedDataParallel(network()))
    for x, y, _ in job.loader(Samples(), micro_batch=8):
        (loss_of(model, x, y) * job._run.current.micro).backward()
        if job._run.current.is_last:
            model.zero_grad()


def reports(job: Any) -> None:
    """Copies of gradients need memory, too."""

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError

    reported: list[Any] = []
    batches = iter(job.loader(Samples(), micro_batch=8))
    next(batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oom, "report", lambda *at: reported.append(at))
        patch.setattr(oom, "Attempt", fails)
        with pytest.raises(torch.OutOfMemoryError), job.on_oom():
            next(batches)
    assert reported


def test_what_would_be_wrong_is_refused() -> None:
    run_ranks(1, refusals)


def ready(_rank: int) -> Parameters:
    """A data set of batches with 16 samples each, of which an iteration has four."""
    data = Samples(192)
    batches = [(data.x[at : at + 16], data.y[at : at + 16]) for at in range(0, 192, 16)]
    plans = [[3, 1], [1, 3]]
    job = evenstep.init(plan=lambda at: plans[at % 2])
    loader = job.loader(batches, micro_batch=1, shuffle=False, collate_fn=lambda items: items[0])
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss_of(model, x, y).backward()
            if loader.is_last:
                optimizer.step()
                optimizer.zero_grad()
    return parameters_of(model)


def test_the_unit_may_be_a_ready_batch() -> None:
    for trained in run_ranks(2, ready):
        assert difference(trained, one_process(order=Order(192, 64, shuffle=False))) <= TOLERANCE


class Batches(Samples):
    """A data set that reads all samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[indices], self.y[indices]


class Counting(Limited):
    """More statistics: buffers that a pass replaces."""

    replaced: torch.Tensor
    last: torch.Tensor | None

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.register_buffer("replaced", torch.zeros((), dtype=torch.float64))
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> Any:
        self.replaced = self.replaced + len(x)
        self.last = torch.as_tensor(len(x))
        return super().forward(x)


def counted(rank: int) -> tuple[Parameters, list[float]]:
    """Two backward passes per batch; the memory of rank 0 runs out between them."""
    memory = Memory((3, 24)[rank], "between")
    job = evenstep.init(plan=[6, 10])
    loader = job.loader(Batches(), micro_batch=8, collate_fn=lambda batch: batch)
    net = Counting(memory)
    model = job.wrap(DistributedDataParallel(net, broadcast_buffers=False))
    optimizer, own = sgd(model), 0
    for _ in range(EPOCHS):
        for x, y in loader:
            with job.on_oom():
                (loss_of(model, x, y) / 2).backward()
                (loss_of(model, memory.at("between", x), y) / 2).backward()
            if loader.is_last:
                optimizer.step()
                optimizer.zero_grad()
                own += loader.latest.local_batch
    assert memory.failures == (1 - rank)
    assert net.last is not None
    return parameters_of(net.net), [2.0 * own, float(net.seen), float(net.replaced)]


def test_passes_that_do_not_count_change_no_statistics() -> None:
    for trained, (own, *seen) in run_ranks(2, counted):
        assert seen == [own, own]
        assert difference(trained, one_process()) <= TOLERANCE


def evaluated(rank: int) -> Parameters:
    """Evaluates after steps, steps another optimizer in each pass, and leaves iterations before their last pass."""
    probe, data, model = network(), Samples(), zero_2()
    plans = [[6, 10], [2, 14], [12, 4]]
    trained: Parameters = []
    for leaves in (True, False, True):
        job = evenstep.init(plan=lambda at: plans[at % 3])
        loader = job.loader(data, micro_batch=(2, 4)[rank])
        optimizer, other = sgd(job.wrap(model)), sgd(probe)
        for epoch in range(EPOCHS + 1):
            for x, y, _index in loader:
                loss_of(model, x, y).backward()
                loss_of(probe, x, y).backward()
                other.step()
                if epoch == 0:
                    break
                if loader.is_last:
                    optimizer.step()
                    optimizer.zero_grad()
                    with torch.no_grad():
                        model(data.x[:8])
            if leaves:
                break
        job.close()
        trained = trained if leaves else whole(model)
    with pytest.raises(SettingError, match="before the run has started"):
        loss_of(model, data.x[:4], data.y[:4]).backward()
    return trained


@pytest.mark.skipif(not hasattr(FSDPModule, "set_custom_reduce_scatter"), reason="this PyTorch cannot wrap FSDP2")
def test_evaluations_and_iterations_that_are_left_do_not_disturb_shards() -> None:
    for trained in run_ranks(2, evaluated):
        assert difference(trained, one_process()) <= TOLERANCE
