"""The compute time of ranks whose passes wait for each other (FSDP2), on a clock that only work and waits move."""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import evenstep
from evenstep.gradients import fsdp_state
from evenstep.measure.moment import HostTimer
from evenstep.measure.sensor import Sensor
from evenstep.samples.order import Order
from programs import fetch_json
from ranks import preload, run_ranks
from test_fsdp import Parameters, parameters, weights
from training import EPOCHS, GLOBAL_BATCH, Samples, difference, loss_of, network, sgd

preload("torch.distributed.fsdp", "torch._dynamo")

TOLERANCE = 1e-12
#: Seconds per sample of a layer's forward pass on each rank; its backward pass takes twice as long.
PACE_S = (0.25, 1.0, 0.5, 0.125)
#: Seconds of each wait for other ranks.
WAIT_S = 1024.0

#: The collective operations of FSDP, by version of PyTorch.
COLLECTIVES = (
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_reduce",
)

PLAN = [[6, 4, 6], [2, 12, 2], [12, 2, 2]]
OF_FOUR = [[6, 4, 4, 2], [2, 10, 2, 2], [4, 4, 4, 4]]


@dataclass
class Clock:
    """A clock that work and waits move; no load of this machine does."""

    pace_s: float = 0.0
    now_s: float = 0.0
    #: The number of waits, now and at the end of the last iteration.
    waits: int = 0
    ended: int = 0
    #: The compute time of each iteration.
    times: list[float] = field(default_factory=list)

    def work(self, samples: int) -> None:
        self.now_s += self.pace_s * samples

    def measures(self, sensor: Sensor) -> None:
        """Becomes the clock of a sensor, and keeps its times."""
        sensor._timer_of = lambda _: HostTimer(lambda: self.now_s)
        computed = sensor.computed

        def kept() -> Any:
            time_s, wait_s = computed()
            self.ended = self.waits
            self.times.append(time_s())
            return time_s, wait_s

        sensor.computed = kept  # type: ignore[method-assign]

    def waits_in_collectives(self) -> None:
        """Makes the collective operations of FSDP take time."""

        def slowed(collective: Callable[..., Any]) -> Callable[..., Any]:
            def slow(*args: Any, **kwargs: Any) -> Any:
                self.now_s += WAIT_S
                self.waits += 1
                return collective(*args, **kwargs)

            return slow

        for name in COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, slowed(getattr(dist, name)))
        # On a GPU, the stream waits here for the last reductions.
        group = _fsdp_param_group.FSDPParamGroup
        group.finalize_backward = slowed(group.finalize_backward)  # type: ignore[method-assign]


clock = Clock()


class Worked(torch.autograd.Function):
    """The identity, which takes time in both directions."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        clock.work(len(x))
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        clock.work(2 * len(gradient))
        return gradient


class Layer(torch.nn.Module):
    """A layer of the network, whose passes take time."""

    def __init__(self, *inner: torch.nn.Module, keeps: bool | None = None) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(*inner)
        #: Whether the inner pass is repeated in the backward pass, and whether its checkpoint is reentrant.
        self.keeps = keeps

    def passes(self, x: torch.Tensor) -> Any:
        return self.inner(torch.compiler.disable(Worked.apply)(x))

    def forward(self, x: torch.Tensor) -> Any:
        return self.passes(x) if self.keeps is None else checkpoint(self.passes, x, use_reentrant=self.keeps)


class Net(torch.nn.Module):
    """The network of the other tests in two layers."""

    def __init__(self, inside: bool | None = None, outside: bool | None = None) -> None:
        super().__init__()
        net: Any = network()
        self.layers = torch.nn.ModuleList([Layer(net[0], net[1], keeps=inside), Layer(net[2], keeps=inside)])
        self.outside = outside

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x) if self.outside is None else checkpoint(layer, x, use_reentrant=self.outside)
        return x


def shard(net: Any, *, layers: bool = True, whole: bool = True, **options: Any) -> Any:
    for layer in net.layers if layers else []:
        fully_shard(layer, **options)
    return fully_shard(net, **options) if whole else net


def freeze(net: Any) -> Any:
    for parameter in net.layers[0].parameters():
        parameter.requires_grad_(False)
    return net


def compiled_layers() -> Any:
    net = Net()
    for layer in net.layers:
        layer.compile(backend="aot_eager", dynamic=True)
    return shard(net)


def grouped() -> Any:
    net = Net()
    fully_shard([*net.layers])
    return fully_shard(net)


def prefetching() -> Any:
    net = shard(Net())
    net.set_modules_to_forward_prefetch([*net.layers])
    net.layers[1].set_modules_to_backward_prefetch([net.layers[0]])
    return net


def twice(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return loss_of(model, x, y) + loss_of(model, x * 0.5, y)


def gathered_early(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    if isinstance(model, FSDPModule):
        handle: Any = model.unshard(async_op=True)
        handle.wait()
    return loss_of(model, x, y)


@dataclass
class Form:
    """A way to train, and the time of an iteration in forward passes of one layer."""

    make: Callable[[], Any] = lambda: shard(Net())
    passes: int = 6
    loss: Callable[[Any, torch.Tensor, torch.Tensor], Any] = loss_of
    alone: Callable[[], Any] = Net
    accumulate: int = 1
    syncs_each: bool = True
    inputs_need_gradients: bool = True
    evaluates: bool = False
    has_teacher: bool = False
    scales: bool = False
    tolerance: float = TOLERANCE


MIXED = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64, output_dtype=torch.float64)

FORMS = {
    "plain": Form(),
    "inputs without gradients": Form(passes=4, inputs_need_gradients=False),
    "only the layers": Form(lambda: shard(Net(), whole=False)),
    "only the layers, inputs without gradients": Form(
        lambda: shard(Net(), whole=False), 4, inputs_need_gradients=False
    ),
    "only the whole model": Form(lambda: shard(Net(), layers=False)),
    "parameters stay gathered": Form(lambda: shard(Net(), reshard_after_forward=False)),
    "checkpoint in layers": Form(lambda: shard(Net(inside=False)), 8),
    "reentrant checkpoint in layers": Form(lambda: shard(Net(inside=True)), 8),
    "checkpoint of layers": Form(lambda: shard(Net(outside=False)), 8),
    "reentrant checkpoint of layers": Form(lambda: shard(Net(outside=True)), 8),
    "compiled layers": Form(compiled_layers),
    "compiled model": Form(lambda: torch.compile(shard(Net()), backend="aot_eager", dynamic=True)),
    "mixed precision": Form(lambda: shard(Net(), mp_policy=MIXED), tolerance=1e-4),
    "frozen layer": Form(lambda: freeze(shard(Net())), alone=lambda: freeze(Net())),
    "two forward passes": Form(passes=12, loss=twice),
    "accumulation": Form(accumulate=2),
    "accumulation without communication": Form(accumulate=2, syncs_each=False),
    "a group of layers": Form(grouped),
    "explicit prefetching": Form(prefetching),
    "explicit gathering": Form(loss=gathered_early),
    "evaluation between steps": Form(evaluates=True),
    "a second model without training": Form(passes=8, has_teacher=True),
    # With DDP an iteration ends with the gradients of parameters, before the gradients of its inputs.
    "a second model with DDP": Form(lambda: DistributedDataParallel(Net()), passes=6, has_teacher=True),
    "scaled loss": Form(passes=2, scales=True),
    "scaled loss and a second model": Form(passes=4, scales=True, has_teacher=True),
}


def batches_of(form: Form, loader: Any) -> Iterator[Any]:
    for _ in range(EPOCHS):
        for x, y, _ in loader:
            yield x.requires_grad_(form.inputs_need_gradients), y


def train(rank: int, form: Form, plans: list[list[int]]) -> tuple[Parameters, list[tuple[float, float]]]:
    """Returns the parameters, and the measured and the expected time of each iteration."""
    clock.pace_s, clock.waits, clock.times = PACE_S[rank], 0, []
    torch._dynamo.reset()
    job = evenstep.init(plan=lambda iteration: plans[iteration % len(plans)])
    loader = job.loader(Samples(208), accumulate=form.accumulate)
    clock.measures(job._run.sensor)
    model: Any = form.make() if form.scales else job.wrap(form.make())
    teacher = shard(Net()) if form.has_teacher else None
    optimizer, samples = sgd(model), 0
    expected = []
    for count, (x, y) in enumerate(batches_of(form, loader)):
        is_last = (count + 1) % form.accumulate == 0
        if not form.syncs_each:
            model.set_requires_gradient_sync(is_last)
        loss = form.loss(model, x, y) / form.accumulate
        if teacher is not None:
            with torch.no_grad():
                zero = 0.0 * teacher(x).sum()
            loss = loss + zero
        (job.scale(loss) if form.scales else loss).backward()
        samples += len(x)
        if is_last:
            assert form.scales or clock.ended == clock.waits, "the last reduction is before the end of the iteration"
            expected.append(form.passes * clock.pace_s * samples)
            optimizer.step()
            optimizer.zero_grad()
            samples = 0
        if form.evaluates:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
    assert clock.waits >= 2 * len(expected)
    result = parameters(model), list(zip(clock.times, expected, strict=True))
    job.close()
    return result


def alone(form: Form) -> Parameters:
    """The same training in one process, with whole batches."""
    order, data, model = Order(208, GLOBAL_BATCH), Samples(208), form.alone()
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        for at in order.permutation(epoch).split(GLOBAL_BATCH):
            optimizer.zero_grad()
            form.loss(model, data.x[at], data.y[at]).backward()
            optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in model.parameters() if parameter.requires_grad]


def train_all(rank: int, names: list[str]) -> dict[str, Any]:
    clock.waits_in_collectives()
    return {name: tried(rank, FORMS[name]) for name in names}


def tried(rank: int, form: Form) -> Any:
    """Returns the traceback of an error, for the test of this form: others follow."""
    try:
        return train(rank, form, PLAN)
    except Exception:  # noqa: BLE001
        return traceback.format_exc()


@pytest.fixture(scope="module")
def trainings() -> list[dict[str, Any]]:
    """The results of all forms on each rank. One set of processes trains them all."""
    return run_ranks(3, train_all, [name for name, form in FORMS.items() if works(form)])


def works(form: Form) -> bool:
    return form.scales or not weights.args[0]


def check(ranks: list[Any], form: Form) -> None:
    reference = alone(form)
    for trained, times in ranks:
        assert difference(trained, reference) <= form.tolerance
        # The first iteration of a scaled loss is not measured.
        measured, expected = zip(*times[form.scales :], strict=True)
        assert measured == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if form.scales else weights) for name, form in FORMS.items()]
)
def test_waits_of_other_ranks_are_no_compute_time(name: str, trainings: list[dict[str, Any]]) -> None:
    for told in trainings:
        assert not isinstance(told[name], str), told[name]
    check([told[name] for told in trainings], FORMS[name])


def hybrid(rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    clock.waits_in_collectives()
    state = _fsdp_state.FSDPState
    cast = state._cast_forward_inputs

    def slow(*args: Any) -> Any:
        clock.now_s += WAIT_S
        return cast(*args)

    # FSDP's hooks do more than wait.
    state._cast_forward_inputs = slow  # type: ignore[assignment, method-assign]
    return train(rank, Form(lambda: shard(Net(), mesh=mesh)), OF_FOUR)


@weights
def test_replicas_of_shards() -> None:
    check(run_ranks(4, hybrid), FORMS["plain"])


def test_waits_in_other_threads_pause_nothing() -> None:
    sensor, is_paused = Sensor(), list[bool]()
    fsdp_state.leave_out_waits(sensor)
    waits = fsdp_state._pausing(lambda: is_paused.append(not sensor.pause()))
    sensor.forward_begins(torch.device("cpu"))
    waits()
    thread = threading.Thread(target=waits)
    thread.start()
    thread.join()
    assert is_paused == [True, False]


def served(rank: int, server: str, job_id: str, has_names: bool, scales: bool = False) -> tuple[list[str], list[int]]:
    """Trains with a predictor; returns what is logged about speeds, and the last batches of this rank."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep").addHandler(handler)
    if not has_names:
        fsdp_state._WAITS["_fsdp_state", "FSDPState"] = ("_of_the_future",)
    clock.waits_in_collectives()
    clock.pace_s = (0.001, 0.003)[rank]
    job = evenstep.init(server=server, job=job_id)
    loader = job.loader(Samples(16 * 60), global_batch=16)
    clock.measures(job._run.sensor)
    model: Any = shard(Net()) if scales else job.wrap(shard(Net()))
    optimizer, batches = sgd(model), []
    # The first plans of a busy machine may come late.
    for _ in range(100 if has_names else 1):
        for x, y, _ in loader:
            optimizer.zero_grad()
            loss = loss_of(model, x.requires_grad_(), y)
            (job.scale(loss) if scales else loss).backward()
            optimizer.step()
            batches.append(len(x))
        if batches[-8:] == [(12, 4)[rank]] * 8:
            break
    job.close()
    return [line for line in told if "speed of ranks" in line], batches[-8:]


def served_in_passes(rank: int, server: str, job_id: str) -> tuple[list[int], int]:
    """Trains with a predictor; the memory of rank 1 holds a quarter of the other's passes."""
    clock.pace_s = (0.001, 0.003)[rank]
    job = evenstep.init(server=server, job=job_id)
    loader = job.loader(Samples(64 * 30), global_batch=64, micro_batch=(24, 6)[rank])
    clock.measures(job._run.sensor)
    model = job.wrap(DistributedDataParallel(Net()))
    optimizer, shares, largest = sgd(model), [], 0
    # The first plans of a busy machine may come late.
    for _ in range(100):
        for x, y, _ in loader:
            loss_of(model, x, y).backward()
            largest = max(largest, len(x))
            if loader.is_last:
                optimizer.step()
                optimizer.zero_grad()
                shares.append(loader.latest.local_batch)
        if all(reached(share, rank) for share in shares[-8:]):
            break
    job.close()
    return shares[-8:], largest


def reached(share: int, rank: int) -> bool:
    """Returns whether both ranks take at most 1 / 0.9 of the ideal time, which they take with 48 and 16 samples."""
    fast, slow = (64 - share, share) if rank else (share, 64 - share)
    return max(fast, 3 * slow) <= 48 / 0.9


def test_memory_bounds_passes_and_speed_decides_their_number(predictor: str, job_id: str) -> None:
    ranks = run_ranks(2, served_in_passes, predictor, job_id)
    for rank, (shares, largest) in enumerate(ranks):
        assert largest == (24, 6)[rank]
        assert all(reached(share, rank) for share in shares), shares


@weights
def test_a_predictor_plans_by_the_measured_speeds(predictor: str, job_id: str) -> None:
    ranks = run_ranks(2, served, predictor, job_id, True)
    assert [told for told, _ in ranks] == [[], []]
    assert all(sizes == (12, 4) for sizes in zip(*(batches for _, batches in ranks), strict=True))


@pytest.mark.parametrize("scales", [pytest.param(False, marks=weights), True])
def test_shares_stay_even_with_a_pytorch_of_other_names(predictor: str, job_id: str, scales: bool) -> None:
    (first, _), *others = ranks = run_ranks(2, served, predictor, job_id, False, scales)
    assert len(first) == 1
    assert "init(plan=..)" in first[0]
    assert [told for told, _ in others] == [[]]
    assert all(set(batches) == {8} for _, batches in ranks)
    assert not any(fetch_json(f"{predictor}/v1/jobs/{job_id}/history")["step_time_s"])
