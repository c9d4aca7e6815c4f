"""Workers of several ranks (``init(mesh=..)``), which get the same samples: four ranks, as two workers of two."""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.exchange.report import SLOTS, Report, by_worker
from evenstep.run.losses import Loss
from evenstep.samples.order import Order
from evenstep.settings.workers import Workers
from programs import fetch_json
from ranks import preload, run_ranks
from training import EPOCHS, GLOBAL_BATCH, Samples, difference, loss_of, network, one_process, sgd

preload("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining")

TOLERANCE = 1e-12

Parameters = list[list[float]]

#: Whether ``wrap`` takes models of ``fully_shard``.
SHARDS = hasattr(FSDPModule, "set_custom_reduce_scatter")

#: Number of samples in the fewest micro-batches that GPipe takes; before PyTorch 2.9 one for each stage.
LEAST = 2 if SHARDS else 4

#: The last iteration of an epoch is smaller.
SAMPLES = 77
#: Number of samples without a remainder.
WHOLE_SAMPLES = 80


def plan(iteration: int) -> list[int]:
    return [[12, 4], [2, 14], [16, 0], [9, 7]][iteration % 4]


def of_pairs(iteration: int) -> list[int]:
    """Multiples of two, and at least two micro-batches of two."""
    return [[12, 4], [4, 12], [10, 6]][iteration % 3]


def of_gpipe(iteration: int) -> list[int]:
    """Also with as few micro-batches as GPipe takes, and without samples for a worker."""
    return [[GLOBAL_BATCH - LEAST, LEAST], [GLOBAL_BATCH, 0], [4, 12]][iteration % 3]


def parallel(mesh: DeviceMesh) -> Any:
    """Returns the network with tensor parallelism."""
    return parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded(net: Any, mesh: DeviceMesh) -> Any:
    for module in (net[0], net[2], net):
        fully_shard(module, mesh=mesh)
    return net


def ddp(net: torch.nn.Module, mesh: DeviceMesh) -> DistributedDataParallel:
    return DistributedDataParallel(net, process_group=mesh.get_group())


def whole(parameters: list[torch.nn.Parameter], mesh: DeviceMesh | None) -> Parameters:
    """Returns the whole parameters; DDP's local parts are gathered over the mesh of tensor parallelism."""
    found = []
    for number, parameter in enumerate(parameters):
        at: Any = parameter.detach()
        if mesh is not None and number < 3:
            parts = [torch.empty_like(at) for _ in range(mesh.size())]
            dist.all_gather(parts, at.contiguous(), group=mesh.get_group())
            at = torch.cat(parts, dim=1 if number == 2 else 0)
        found.append(getattr(at, "full_tensor", lambda at=at: at)().flatten().tolist())
    return found


def descend(job: Any, model: Any, loss: Loss | None = "mean", accumulate: int = 1) -> list[int]:
    """The script of a user; returns the samples of this rank. Without a loss, it scales instead of wrapping."""
    samples = Samples(SAMPLES if accumulate == 1 else WHOLE_SAMPLES)
    loader = job.loader(samples, global_batch=GLOBAL_BATCH, accumulate=accumulate)
    model = job.wrap(model, loss=loss) if loss else model
    optimizer, seen = sgd(model), list[int]()
    for _ in range(EPOCHS):
        for at, (x, y, index) in enumerate(loader):
            is_last = (at + 1) % accumulate == 0
            if accumulate > 1:
                model.set_requires_gradient_sync(is_last)
            if loss == "tokens":
                job.count(y.numel())
                torch.nn.functional.mse_loss(model(x), y, reduction="sum").backward()
            elif loss == "scaled":
                dist.all_reduce(tokens := torch.tensor(float(y.numel())), group=job._life.options.mesh.groups[0])
                with job.step():
                    (torch.nn.functional.mse_loss(model(x), y, reduction="sum") / tokens).backward()
            else:
                mean = loss_of(model, x, y)
                (mean if loss else job.scale(mean)).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            seen += index.tolist() if loader.latest.local_batch else []
    return seen


class Seen(torch.nn.Module):
    """Keeps the first row of its last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first: torch.Tensor
        self.register_buffer("first", torch.zeros(16, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.copy_(x.detach()[0, :16])
        return x.clone()


def pipelined(
    job: Any, mesh: DeviceMesh, loss: Loss = "sum", kind: Any = Schedule1F1B, accumulate: int = 1
) -> tuple[Parameters, list[int]]:
    """Trains the stages of a pipeline; each worker has as many micro-batches of two samples as the plan gives it.

    GPipe takes a single micro-batch, too. The stages have buffers then, and the first worker makes new ones in each
    iteration.
    """
    stage, net, is_gpipe = mesh.get_local_rank("pp"), network(), kind is ScheduleGPipe
    loader = job.loader(Samples(WHOLE_SAMPLES), global_batch=GLOBAL_BATCH, accumulate=accumulate)
    part = [net[:2], net[2:]][stage]  # type: ignore[index]  # A Sequential.
    if is_gpipe and stage == 0:
        part.append(Seen())
    group = mesh.get_group("dp")
    model = DistributedDataParallel(part, process_group=group)
    sensor = job._run.sensor
    hooks = {} if is_gpipe else {"inner": averaged, "inner_state": (sensor, group)}
    model = job.wrap(model, loss=loss, **hooks)

    def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert sensor._begun is None, "between its passes, a stage waits for other stages"
        total = mean_of_outputs(outputs, targets)
        return total * targets.shape[1] if loss == "tokens" else total

    optimizer, seen, schedules = sgd(model), list[int](), dict[int, Any]()
    for _ in range(EPOCHS):
        for at, (x, y, index) in enumerate(loader):
            number = len(x) // 2
            if number not in schedules or (is_gpipe and mesh.get_local_rank("dp") == 0):
                piped = PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("pp"))
                schedules[number] = kind(piped, number, summed, scale_grads=False)
            if loss == "tokens":
                job.count(y.numel())
            with job.step():
                schedules[number].step(x) if stage == 0 else schedules[number].step(target=y)
            if (at + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            seen += index.tolist()
    for buffer in part.buffers():
        firsts = [torch.empty_like(buffer) for _ in range(2)]
        dist.all_gather(firsts, buffer, group=group)
        assert torch.equal(*firsts), "the same buffers on all workers"
    parts: list[Any] = [None, None]
    dist.all_gather_object(parts, whole(list(part.parameters()), None), group=mesh.get_group("pp"))
    return [*parts[0], *parts[1]], seen


def averaged(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    sensor, group = state
    assert sensor._begun is None, "the wait for the other worker is not compute time"
    gradient = bucket.buffer()
    done: Any = dist.all_reduce(gradient.div_(2), group=group, async_op=True)
    future: torch.futures.Future[Any] = done.get_future()
    return future.then(lambda sums: sums.value()[0])


def mean_of_outputs(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the sum over samples."""
    return torch.nn.functional.mse_loss(outputs, targets, reduction="sum") / targets.shape[1]


def trained(_rank: int) -> dict[str, tuple[Parameters, list[int]]]:
    """Trains with all kinds of parallelism, one after the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    dp, tp, replicate = mesh["dp"], mesh["tp"], hybrid["replicate"]
    # The workers are the ranks 0 and 3, and 1 and 2.
    crossed = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("dp", "tp"))["dp"]
    done = {}

    def case(name: str, over: Any, model: Any, of_parts: DeviceMesh | None = None, **options: Any) -> None:
        with evenstep.init(plan=of_pairs if options.get("accumulate") else plan, mesh=over) as job:
            # With tensor parallelism, the module has DDP's parameters only until its first forward pass.
            parameters = list(model.parameters())
            seen = descend(job, model, **options)
            done[name] = whole(parameters, of_parts), seen

    case("DDP over a process group", dp.get_group(), ddp(network(), dp))
    case("DDP over a mesh in another order", crossed, ddp(network(), crossed))
    case("DDP over all ranks, tokens", dp, DistributedDataParallel(network()), loss="tokens")
    case("DDP and TP", dp, DistributedDataParallel(parallel(tp), device_mesh=dp), tp)
    case("FSDP2 and TP, job.scale", dp, sharded(parallel(tp), dp), loss=None)
    if SHARDS:
        case("FSDP2 and TP", dp, sharded(parallel(tp), dp))
        case("FSDP2 and TP, tokens, accumulate", dp, sharded(parallel(tp), dp), loss="tokens", accumulate=2)
        titan = sharded(parallel(tp), dp)
        for module in (titan[0], titan[2], titan):
            module.set_gradient_divide_factor(1.0)
        case("FSDP2 and TP, scaled", dp, titan, loss="scaled")
        case("HSDP, replicas", replicate, sharded(network(), hybrid))
        case("HSDP, replicas, tokens", replicate, sharded(network(), hybrid), loss="tokens")
    pipeline = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    with evenstep.init(plan=of_pairs, mesh=pipeline["dp"]) as job:
        done["pipeline of two stages"] = pipelined(job, pipeline)
    # The worker without samples in the plan gets a quantum.
    with evenstep.init(plan=of_gpipe, quantum=LEAST, mesh=pipeline["dp"]) as job:
        done["pipeline, GPipe, tokens"] = pipelined(job, pipeline, "tokens", ScheduleGPipe)
    with evenstep.init(plan=[12, 4] if SHARDS else [8, 8], quantum=2, mesh=pipeline["dp"]) as job:
        done["pipeline, GPipe, accumulate"] = pipelined(job, pipeline, kind=ScheduleGPipe, accumulate=2)
    done["resumed with other workers"] = resumed([dp, None, crossed])
    return done


def resumed(meshes: list[DeviceMesh | None]) -> tuple[Parameters, list[int]]:
    """Trains a model in successive jobs with other workers, each from the state of the one before."""
    net, state, seen = network(), dict[str, Any](), list[int]()
    optimizer, iterations = sgd(net), -(-SAMPLES // GLOBAL_BATCH) * EPOCHS
    for number, over in enumerate(meshes):
        shares = [12, 4] if over else [5, 3, 8, 0]
        with evenstep.init(plan=shares, mesh=over) as job:
            loader = job.loader(Samples(SAMPLES), global_batch=GLOBAL_BATCH)
            if state:
                job.load_state_dict(state)
            model = job.wrap(DistributedDataParallel(net, process_group=over and over.get_group()))
            done, last = state.get("iteration", 0), iterations if over is meshes[-1] else 3 * number + 3
            while done < last:
                for x, y, index in loader:
                    loss_of(model, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    done += 1
                    # Every sample once: of the first rank of each worker.
                    is_source = over is None or dist.get_rank() == min(job._run.workers.members[job._run.rank])
                    seen += index.tolist() if is_source and loader.latest.local_batch else []
                    if done == last:
                        break
            state = job.state_dict()
    return [at.detach().flatten().tolist() for at in net.parameters()], seen


def test_groups_of_ranks_train_as_one_process_does() -> None:
    everyone, references = run_ranks(4, trained), dict[int, Parameters]()
    for name in everyone[0]:
        samples = WHOLE_SAMPLES if "accumulate" in name or "pipeline" in name else SAMPLES
        if samples not in references:
            references[samples] = one_process(order=Order(samples, GLOBAL_BATCH))
        reference = references[samples]
        worst = max(difference(parameters, reference) for parameters, _ in (done[name] for done in everyone))
        print(f"{name}: {worst:.1e}")
        assert worst <= TOLERANCE, name
        seen = [done[name][1] for done in everyone]
        pairs = [(0, 3), (1, 2)] if "another order" in name else [(0, 1), (2, 3)]
        if "resumed" in name:
            pairs = [(rank, rank) for rank in range(4)]
        assert all(seen[one] == seen[other] for one, other in pairs), f"{name}: samples and order"
        times = Counter(sample for one, _ in pairs for sample in seen[one])
        assert times == dict.fromkeys(range(samples), EPOCHS), name


class Marked(torch.nn.Module):
    """A network whose buffers follow its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8, momentum=1.0).double()
        self.net = network()
        self.first: torch.Tensor
        self.register_buffer("first", torch.zeros(8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Any:
        self.first.copy_(x[0])
        return self.net(self.norm(x))


def with_buffers(_rank: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Returns the buffers after an iteration, and the reduced mean of the inputs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    found = []
    for over in (mesh.get_group(), None):
        with evenstep.init(plan=[4, 12], mesh=mesh) as job:
            loader = job.loader(Samples(GLOBAL_BATCH), shuffle=False)
            model = job.wrap(DistributedDataParallel(Marked(), process_group=over))
            for x, y, _ in loader:
                loss_of(model, x, y).backward()
                found.append(
                    (model.module.norm.running_mean.clone(), model.module.first.clone(), job.reduce(x.mean(0)))
                )
    return found


def test_buffers_and_reduced_values_count_each_worker_once() -> None:
    x = Samples(GLOBAL_BATCH).x
    for found in run_ranks(4, with_buffers):
        for running_mean, first, mean in found:
            assert torch.allclose(running_mean, x.mean(0), rtol=0, atol=TOLERANCE)
            assert torch.equal(first, x[4]), "the buffer of the worker with most samples"
            assert torch.allclose(mean, x.mean(0), rtol=0, atol=TOLERANCE)


def refused(rank: int) -> dict[str, str]:
    """Returns the errors by the phrase that each must have."""
    told = {}

    def refuses(phrase: str, work: Callable[[], object]) -> None:
        with pytest.raises(RuntimeError) as error:
            work()
        told[phrase] = str(error.value)

    def job_of(mesh: DeviceMesh | None, *shares: int) -> Any:
        job = evenstep.init(plan=shares, mesh=mesh)
        job.loader(Samples())
        return job

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    foreign = DeviceMesh("cpu", [1, 2] if rank in (0, 3) else [0, 3])
    others: Any = [dist.new_group([1, 2, 3]), dist.new_group([0])][rank > 0]
    three: Any = dist.new_group([0, 1, 2])
    alone: Any = [dist.new_group([at]) for at in range(4)][rank]

    refuses("mesh=DeviceMesh(", lambda: evenstep.init(mesh=foreign))
    refuses("mesh=a process group of other ranks: must", lambda: evenstep.init(mesh=others))
    refuses("mesh=dp: must be a DeviceMesh", lambda: evenstep.init(mesh="dp"))  # type: ignore[call-overload]  # The error.
    unequal = alone if rank == 3 else three
    refuses("rank 0 has 3 ranks but rank 3 has 1", lambda: job_of(unequal, 8, 8))
    refuses("mesh: rank 0 has None but rank 1 has", lambda: job_of(dp if rank else None, 8, 8))
    refuses("must have one batch for each of the 2", lambda: job_of(dp, 8, 8, 8, 8))
    refuses("over the ranks [", lambda: job_of(dp, 8, 8).wrap(ddp(network(), tp)))
    refuses(
        "micro_batch with workers", lambda: evenstep.init(mesh=dp).loader(Samples(), micro_batch=4, global_batch=16)
    )
    losses: list[Loss] = ["sum", "scaled"]
    for loss in losses:
        wrap = partial(job_of(dp, 8, 8).wrap, DistributedDataParallel(network()), loss=loss)
        refuses(f'wrap(loss="{loss}")', wrap)
    refuses("job.steps with init(mesh=..)", lambda: evenstep.init(plan=[8, 8], mesh=dp).steps(Samples()))
    refuses(
        "inner_state=model.process_group", lambda: job_of(dp, 8, 8).wrap(ddp(network(), dp), inner=fp16_compress_hook)
    )
    # The workers of this mesh have the ranks 0 and 2, and 1 and 3.
    odd = DeviceMesh("cpu", [[0, 2], [3, 1]], mesh_dim_names=("dp", "tp"))
    tensors = DistributedDataParallel(parallel(tp), device_mesh=odd["dp"])
    refuses("have parts of parameter 0.weight", lambda: job_of(odd["dp"], 8, 8).wrap(tensors))
    if not SHARDS:
        return told
    refuses("have the ranks [[0], [1], [2], [3]]", lambda: job_of(mesh, 4, 4, 4, 4).wrap(sharded(parallel(tp), dp)))
    # Before the loader knows the ranks.
    early = evenstep.init(plan=[8, 8], mesh=dp)
    early.wrap(sharded(network(), tp))
    for _ in range(2):
        refuses("have the ranks [[0, 1], [2, 3]]", lambda: early.loader(Samples()))
    partly: Any = parallel(tp)
    fully_shard(partly[0], mesh=dp)
    refuses("is in no module of fully_shard", lambda: job_of(dp, 8, 8).wrap(partly))
    refuses("belong to several", lambda: job_of(dp, 8, 8).wrap(sharded(parallel(odd["tp"]), odd["dp"])))
    return told


def test_what_would_be_wrong_is_refused_with_advice() -> None:
    for told in run_ranks(4, refused):
        for phrase, message in told.items():
            assert phrase in message


def test_workers_are_the_ranks_at_one_place_of_all_meshes() -> None:
    assert Workers.of_meshes([None] * 3).members == [[0], [1], [2]]
    assert Workers.of_meshes([(0, 2), (3, 1), (0, 2), (3, 1)]).members == [[0, 3], [1, 2]]
    with pytest.raises(evenstep.DivergedError, match="must be the same on all of them"):
        Workers.of_meshes([(0, 2), (1, 2), (0, 2), (3, 1)])


def test_a_worker_reports_its_slowest_rank() -> None:
    rows = [
        Report(7, 6, 0.2, 0.01, peak_memory_bytes=50, drivers={"other_cpu": 1.0}),
        Report(7, 4, 0.5, 0.02, peak_memory_bytes=10),
        Report(7, 6, 0.3, 0.04, peak_memory_bytes=20, loss=2.0, drivers={"other_cpu": 3.0}),
        Report(7, 4, 0.4, 0.03),
    ]
    flat = [number for row in rows for number in row.to_row()]
    merged = by_worker(flat, [[0, 2], [1, 3]])
    slowest = Report(7, 6, 0.3, 0.04, peak_memory_bytes=50, loss=2.0, drivers={"other_cpu": 3.0})
    other = Report(7, 4, 0.5, 0.03, peak_memory_bytes=10)
    assert merged == pytest.approx([*slowest.to_row(), *other.to_row()], rel=0, abs=0, nan_ok=True)
    flat[2 * SLOTS : 3 * SLOTS] = [0.0] * SLOTS
    flat[3 * SLOTS : 4 * SLOTS] = Report(7, 4, 0.0, 0.03).to_row()
    assert by_worker(flat, [[0, 2], [1, 3]])[SLOTS + 2] == 0, "a rank did not measure its speed"
    assert by_worker(flat, [[0, 2], [1, 3]])[:SLOTS] == [0.0] * SLOTS, "without a report of one of its ranks"


class Paced(torch.nn.Module):
    """Takes a given time per sample."""

    def __init__(self, pace_s: float) -> None:
        super().__init__()
        self.net, self.pace_s = network(), pace_s

    def forward(self, x: torch.Tensor) -> Any:
        time.sleep(self.pace_s * len(x))
        return self.net(x)


def forecast(rank: int) -> tuple[list[int], str]:
    """Trains with plans of a predictor; only one rank of the second worker is slow.

    Returns the local batches, and the worker for which this rank reports that its memory is exhausted.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    job = evenstep.init(mesh=mesh)
    loader = job.loader(Samples(), global_batch=GLOBAL_BATCH)
    model = job.wrap(ddp(Paced([0.001, 0.001, 0.001, 0.004][rank]), mesh))
    optimizer, batches = sgd(model), []
    for _ in range(3):
        for x, y, _ in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            batches.append(loader.latest.local_batch)
    job.close()
    return batches, job._life.options.settings.worker


def test_a_predictor_plans_for_workers(predictor: str, job_id: str) -> None:
    fast, other, slow, last = run_ranks(4, forecast, environ={"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id})
    assert fast == other
    assert slow == last
    assert fast[0][-2] > slow[0][-2], "a worker is as slow as its slowest rank"
    workers = fetch_json(f"{predictor}/v1/jobs/{job_id}/workers")["workers"]
    assert {worker["worker"]: worker["device"] for worker in workers} == dict.fromkeys(
        [fast[1], slow[1]], "cpu, 2 ranks"
    )
