"""The job interface: arguments, the learning rate, running out of memory."""

import math
import multiprocessing
import os
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

import evenstep
from evenstep.job.lifecycle import Lifecycle
from evenstep.measure.moment import HostTimer
from evenstep.measure.sensor import Sensor
from evenstep.samples.order import Order
from evenstep.settings.options import RunOptions
from evenstep.settings.settings import Settings
from programs import fetch_json
from ranks import run_ranks
from training import Samples, difference, loss_of, network, parameters


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"quantum": 0}, "quantum=0: must be at least 1"),
        ({"max_local_batch": 0}, "max_local_batch=0: must be at least 1"),
        ({"job": "a b"}, 'job id "a b": must be 1 to 128 characters'),
        ({"job_options": {"mingain": 1}}, "job_options: unknown field `mingain`, expected .*`min_gain`"),
        ({"job_options": {"min_gain": "no"}}, "job_options: invalid type: string"),
        ({"job_options": {"min_gain": math.nan}}, "not JSON compliant"),
        ({"job_options": {"global_batch": 1}}, "job_options: 'global_batch'"),
        ({"job_options": {"accumulation": True}}, "accumulation=True: .* use job.loader\\(accumulate=N\\)"),
    ],
)
def test_init_refuses_what_breaks_a_rule(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(evenstep.SettingError, match=rule):
        evenstep.init(**arguments)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("plan", "arguments", "rule"),
    [
        ([16], {"batch_size": 4}, "batch_size: is set by the plan"),
        ([16], {"global_batch": 20}, "plan=.*sums to 16, but global_batch is 20"),
        ([8, 8], {}, "must have one batch for each of the 1 ranks"),
        ([17, -1][:1], {"global_batch": 17, "accumulate": 2}, "must be a multiple of accumulate=2"),
        (None, {}, "global_batch is missing"),
    ],
)
def test_the_loader_refuses_what_breaks_a_rule(plan: list[int] | None, arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(evenstep.SettingError, match=rule):
        evenstep.init(plan=plan).loader(Samples(), **arguments)


def test_data_sets_without_random_access_are_refused() -> None:
    with pytest.raises(
        evenstep.SettingError, match=("Stream: must be a map-style data set, with a length and random access")
    ):
        evenstep.init(plan=[16]).loader(Stream())


def test_a_loader_for_validation_is_refused_with_advice() -> None:
    job = evenstep.init(plan=[16])
    job.loader(Samples())
    with pytest.raises(
        evenstep.SettingError, match=r"samples=64.*: read a validation set with PyTorch's DataLoader, on"
    ):
        job.loader(Samples(64), shuffle=False)


def test_settings_are_what_torchrun_and_the_user_say() -> None:
    environ = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "run-7"}
    settings = Settings.read(environ, hostname="node-b")
    assert (settings.rank, settings.world_size, settings.worker) == (3, 4, "node-b/1")
    assert (settings.job, settings.server, settings.agent) == (None, None, None)
    assert Settings.read({**environ, "EVENSTEP_JOB": "mine"}).job == "mine"
    with pytest.raises(evenstep.SettingError, match="RANK='one': must be a whole number"):
        Settings.read({"RANK": "one"})


def test_a_forked_process_leaves_the_job_alone() -> None:
    job = evenstep.init(plan=[16])
    job.loader(Samples())
    if not (child := os.fork()):
        job.close()
        os._exit(0 if job._life.opened else 1)
    assert os.waitpid(child, 0)[1] == 0
    job.close()
    assert job._life.opened is None


def test_a_job_ends_once_what_it_has_begun_the_last_first() -> None:
    ended, life = list[str](), Lifecycle(RunOptions(Settings.read({}), [16], 1, None, {}, timeout_s=1.0))

    def breaks() -> None:
        ended.append("second")
        raise OSError("broken")

    with pytest.raises(evenstep.SettingError, match="has not started"):
        _ = life.run
    assert life.open(Order(64, 16), reads_ahead=0) is life.run
    life.ends.callback(ended.append, "first")
    life.ends.callback(breaks)
    with pytest.raises(OSError, match="broken"):
        life.close()
    life.close()
    assert ended == ["second", "first"], "an error keeps nothing else open"
    assert life.started_run() is None


def differing(rank: int, what: str) -> str:
    plan = [8 + rank, 8 - rank] if what == "plan" else [8, 8]
    job = evenstep.init(plan=plan)
    with pytest.raises(evenstep.DivergedError) as error:
        job.loader(Samples(), seed=rank if what == "seed" else 0)
    return str(error.value)


@pytest.mark.parametrize("what", ["seed", "plan", "worker"])
def test_ranks_that_differ_are_refused_on_all_ranks(what: str) -> None:
    environ = {"EVENSTEP_WORKER": "one"} if what == "worker" else {}
    told = run_ranks(2, differing, what, environ=environ)
    assert told[0] == told[1]
    rule = {
        "seed": "order: rank 0 has",
        "plan": "plan: rank 0 has [8, 8] but rank 1 has [9, 7]",
        "worker": ("have the same worker name 'one'"),
    }[what]
    assert rule in told[0]


def follows_the_rate(_rank: int) -> list[tuple[float, float, float]]:
    """Returns by iteration: the multiplier, the length of a gradient-descent step, and a schedule's rate."""
    job = evenstep.init(job_options={"rule": "legw", "learning_rate": {"warmup_epochs": 1.0, "dataset_samples": 205}})
    loader = job.loader(Samples(), global_batch=16)
    model = job.wrap(DistributedDataParallel(network()))
    weight = next(model.parameters())
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    told = []
    for x, y, _ in loader:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        before = weight.detach().clone()
        optimizer.step()
        assert weight.grad is not None
        moved = ((before - weight.detach()).norm() / weight.grad.norm()).item()
        told.append((job.lr_multiplier, moved, optimizer.param_groups[0]["lr"]))
    job.close()
    return told


def test_the_optimizer_follows_the_learning_rate_instruction(predictor: str, job_id: str) -> None:
    ranks = run_ranks(2, follows_the_rate, environ={"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id})
    assert ranks[0] == ranks[1]
    multipliers = [multiplier for multiplier, _, _ in ranks[0]]
    assert multipliers == sorted(multipliers)
    assert multipliers[0] < multipliers[-1] <= 1.0, "LEGW warms up"
    for multiplier, moved, rate in ranks[0]:
        assert moved == pytest.approx(0.5 * multiplier, rel=1e-9)
        assert rate == 0.5, "schedulers see the unscaled rate"


def runs_out(rank: int) -> int:
    job = evenstep.init()
    loader = job.loader(Samples(), global_batch=16)
    job.wrap(DistributedDataParallel(network()))
    batches = iter(loader)
    next(batches)
    if rank == 1:
        with pytest.raises(torch.OutOfMemoryError), job.on_oom():
            raise torch.OutOfMemoryError("tried to allocate")
    torch.distributed.barrier()
    return job._run.current.step.local_batch


def test_a_batch_that_does_not_fit_is_never_given_again(predictor: str, job_id: str) -> None:
    environ = {"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id}
    batches = run_ranks(2, runs_out, environ=environ)
    workers = fetch_json(f"{predictor}/v1/jobs/{job_id}/workers")["workers"]
    caps = {worker["worker"].rsplit("/")[-1]: worker["cap"] for worker in workers}
    assert caps["1"]["max_local_batch"] < batches[1], caps
    assert caps["0"] is None or caps["0"]["max_local_batch"] >= batches[0], caps


def closes(_rank: int) -> None:
    """The progress of a job is known after its end, and the job does not begin again."""
    with evenstep.init() as job:
        loader = job.loader(Samples(), global_batch=41)
        model = job.wrap(DistributedDataParallel(network()))
        for x, y, _ in loader:
            loss_of(model, x, y).backward()
    job.close()
    state = job.state_dict()
    assert (state["iteration"], state["epoch"]) == (5, 1), state
    for again in (lambda: next(iter(loader)), lambda: job.load_state_dict(state)):
        with pytest.raises(evenstep.SettingError, match="the job was closed"):
            again()


def test_a_closed_job_stays_closed(predictor: str, job_id: str) -> None:
    run_ranks(2, closes, environ={"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_job_ends_with_its_process(method: str) -> None:
    """As in torch.multiprocessing, whose forked processes call no functions of atexit."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=opens, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == "closed"
    process.join()


def opens(said: Any) -> None:
    job = evenstep.init(plan=[16])
    next(iter(job.loader(Samples())))
    job._life.ends.callback(said.send, "closed")


def streams(_rank: int) -> tuple[list[tuple[int, int]], list[list[float]]]:
    """Trains on a stream; the last iteration has fewer samples."""
    job, data = evenstep.init(plan=[12, 3, 1]), Samples()
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    taken = []
    for begin in range(0, len(data), 16):
        with job.step(global_batch=min(16, len(data) - begin)) as step:
            at = slice(begin + step.offset, begin + step.offset + step.local_batch)
            optimizer.zero_grad()
            loss_of(model, data.x[at], data.y[at]).backward()
            optimizer.step()
        taken.append((at.start, at.stop))
    with pytest.raises(evenstep.SettingError, match="must be between 1 and 16"), job.step(global_batch=17):
        pass
    assert job.state_dict()["iteration"] == 13
    return taken, parameters(model)


def test_streams_are_shared_too() -> None:
    ranks = run_ranks(3, streams)
    reached = 0
    for spans in zip(*(taken for taken, _ in ranks), strict=True):
        for start, stop in spans:
            assert start == reached
            reached = stop
    assert reached == 205
    data, model = Samples(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for begin in range(0, len(data), 16):
        optimizer.zero_grad()
        loss_of(model, data.x[begin : begin + 16], data.y[begin : begin + 16]).backward()
        optimizer.step()
    for _, trained in ranks:
        assert difference(trained, parameters(model)) <= 1e-14


def test_waits_for_other_ranks_are_not_compute_time() -> None:
    times = iter([1.0, 2.0, 5.0, 6.0])
    sensor = Sensor(lambda _: HostTimer(lambda: next(times)))
    sensor.forward_begins(torch.device("cpu"))
    with sensor.paused():
        pass
    compute_time_s, _ = sensor.computed()
    assert compute_time_s() == 2.0
