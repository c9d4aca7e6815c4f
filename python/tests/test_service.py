"""Training with a real predictor: uneven plans, and outages of the predictor."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.samples.order import Order
from programs import PATIENCE_S, fetch_json, serving
from ranks import run_ranks
from scripted import SLEEPS, Scripted
from training import SAMPLES, Samples, difference, loss_of, network, one_process, parameters, sgd

TOLERANCE = 1e-14
GLOBAL_BATCH = 16
#: Makes the shares of unequal workers differ within few iterations.
PACE_S = 0.001


@dataclass
class RankResult:
    """The result of a rank's training, and its samples."""

    parameters: list[list[float]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)


class Paced(torch.nn.Module):
    """Takes a given time per sample."""

    def __init__(self, model: torch.nn.Module, pace_s: float) -> None:
        super().__init__()
        self.model = model
        self.pace_s = pace_s

    def forward(self, x: torch.Tensor) -> Any:
        time.sleep(self.pace_s * len(x))
        return self.model(x)


def train(
    rank: int,
    epochs: int,
    paces: list[float],
    at: dict[int, Callable[[], None]] | None = None,
    samples: int = SAMPLES,
    **options: Any,
) -> RankResult:
    job = evenstep.init(timeout_s=1.0)
    loader = job.loader(Samples(samples), global_batch=GLOBAL_BATCH, **options)
    model = job.wrap(DistributedDataParallel(Paced(network(), PACE_S * paces[rank])))
    optimizer = sgd(model)
    told = RankResult()
    for _ in range(epochs):
        for x, y, index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            step = job._run.current.step
            told.steps.append((step.iteration, step.offset, step.local_batch))
            told.seen += index.tolist()
            if rank == 0 and at and step.iteration in at:
                at[step.iteration]()
    told.parameters = parameters(model)
    job.close()
    return told


def check(ranks: list[RankResult], epochs: int, order: Order | None = None) -> None:
    """Checks the conditions that hold regardless of the predictor."""
    reference, samples = one_process(epochs, order), order.samples if order else SAMPLES
    for told in ranks:
        assert difference(told.parameters, reference) <= TOLERANCE
    assert sorted(sample for told in ranks for sample in told.seen) == sorted(list(range(samples)) * epochs)
    for shares in zip(*(told.steps for told in ranks), strict=True):
        assert len({iteration for iteration, _, _ in shares}) == 1, "ranks are in one iteration"
        reached = 0
        for _, offset, local_batch in shares:
            assert offset == reached, f"{shares}: ranks have the same plan"
            reached += local_batch


def environ(server: str, job_id: str) -> dict[str, str]:
    return {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": job_id}


def until(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def test_slow_workers_get_fewer_samples(predictor: str, job_id: str) -> None:
    epochs = 4
    ranks = run_ranks(3, train, epochs, [1.0, 2.0, 4.0], environ=environ(predictor, job_id))
    check(ranks, epochs)
    fast, _, slow = (told.steps[-2][2] for told in ranks)
    assert fast > slow, "the predictor has learned the speeds by then"
    iterations = len(ranks[0].steps)
    speeds = fetch_json(f"{predictor}/v1/jobs/{job_id}/speeds?limit=1000")["speeds"]
    assert {speed["iteration"] for speed in speeds} == set(range(iterations)), (
        "all iterations are reported, including the last one"
    )
    assert {speed["worker"].rsplit("/")[-1] for speed in speeds} == {"0", "1", "2"}
    workers = fetch_json(f"{predictor}/v1/jobs/{job_id}/workers")["workers"]
    assert {worker["state"] for worker in workers} == {"left"}, "the workers left the job"


def test_workers_may_read_further_ahead_than_the_predictor_plans(predictor: str, job_id: str) -> None:
    far = partial(train, samples=3205, num_workers=4, prefetch_factor=20)
    ranks = run_ranks(2, far, 1, [1.0, 4.0], environ=environ(predictor, job_id))
    check(ranks, 1, Order(3205, GLOBAL_BATCH))
    fast, slow = (told.steps[-2][2] for told in ranks)
    assert fast > slow


def test_a_job_is_one_run(predictor: str, job_id: str) -> None:
    run_ranks(2, train, 1, [0.0, 0.0], environ=environ(predictor, job_id))
    with pytest.raises(AssertionError, match="a job id identifies one run; resume that run, or use a new"):
        run_ranks(2, train, 1, [0.0, 0.0], environ=environ(predictor, job_id))


def test_what_the_predictor_refuses_ends_all_ranks(predictor: str, job_id: str) -> None:
    with pytest.raises(AssertionError, match=r"RejectedError: .*min_gain: 7"):
        run_ranks(2, refused, environ=environ(predictor, job_id))


def refused(_rank: int) -> None:
    next(iter(evenstep.init(job_options={"min_gain": 7.0}).loader(Samples(), global_batch=GLOBAL_BATCH)))


def test_nobody_there_is_an_even_training(job_id: str) -> None:
    ranks = run_ranks(2, train, 1, [0.0, 0.0], environ=environ(Scripted([SLEEPS]).url, job_id))
    check(ranks, 1)
    assert all(local_batch in (6, 7, 8) for told in ranks for _, _, local_batch in told.steps)


@dataclass
class Signal:
    """A signal between two processes, sent by a file."""

    path: Path

    def give(self) -> None:
        self.path.touch()

    def wait(self) -> None:
        until(self.path.exists, str(self.path))


@dataclass
class ConfirmedSignal:
    """A signal with a confirmation: the sender waits until the action is done."""

    asked: Signal
    done: Signal

    def __call__(self) -> None:
        self.asked.give()
        self.done.wait()


@contextmanager
def doing(asks: list[tuple[ConfirmedSignal, Callable[[], None]]]) -> Iterator[None]:
    """Performs the ranks' requests in order, in parallel with them."""

    def work() -> None:
        for ask, does in asks:
            ask.asked.wait()
            does()
            ask.done.give()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    yield
    worker.join(PATIENCE_S)


def comes_back(predictor: AbstractContextManager[str]) -> None:
    predictor.__enter__()


def goes(predictor: AbstractContextManager[str]) -> None:
    predictor.__exit__(None, None, None)


def test_a_predictor_that_dies_and_comes_back(predictor_binary: Path, tmp_path: Path, job_id: str) -> None:
    epochs = 5
    dies, comes, heard = (
        ConfirmedSignal(Signal(tmp_path / f"{name}?"), Signal(tmp_path / name)) for name in ("dies", "comes", "heard")
    )
    first = serving(predictor_binary, tmp_path)
    url = first.__enter__()
    second = serving(predictor_binary, tmp_path, listen=url.removeprefix("http://"))

    def knows_all() -> bool:
        speeds = fetch_json(f"{url}/v1/jobs/{job_id}/speeds?limit=1000")["speeds"]
        return {speed["iteration"] for speed in speeds} >= set(range(40))

    asks = [
        (dies, lambda: goes(first)),
        (comes, lambda: comes_back(second)),
        (heard, lambda: until(knows_all, "all iterations of the outage are reported")),
    ]
    try:
        with doing(asks):
            ranks = run_ranks(
                3, train, epochs, [1.0, 2.0, 4.0], {12: dies, 30: comes, 45: heard}, environ=environ(url, job_id)
            )
        check(ranks, epochs)
    finally:
        goes(second)


def capped(rank: int) -> list[int]:
    """Returns the local batches of epochs of 17 whole iterations and a remainder of 5 samples."""
    job = evenstep.init(max_local_batch=9)
    loader = job.loader(Samples(17 * 24 + 5), global_batch=24)
    model = job.wrap(DistributedDataParallel(Paced(network(), PACE_S * (1 + rank))))
    batches = []
    for _ in range(4):
        for x, y, _index in loader:
            loss_of(model, x, y).backward()
            batches.append(job._run.current.step.local_batch)
    job.close()
    return batches


def test_the_plan_of_a_remainder_is_no_plan_of_whole_iterations(predictor: str, job_id: str) -> None:
    """Ranks exchange seldom after the start, so a plan stays in force for many iterations."""
    seldom = {**environ(predictor, job_id), "EVENSTEP_OVERHEAD": "1e-9"}
    for batches in run_ranks(3, capped, environ=seldom):
        assert max(batches) <= 9, batches


def runs_out(rank: int) -> int:
    job = evenstep.init()
    next(iter(job.loader(Samples(512), global_batch=256, accumulate=4)))
    if rank == 1:
        with pytest.raises(torch.OutOfMemoryError), job.on_oom():
            raise torch.OutOfMemoryError("tried to allocate")
    dist.barrier()
    return job._run.current.step.batch_size


def test_a_micro_batch_that_does_not_fit_caps_the_local_batch(predictor: str, job_id: str) -> None:
    """The service caps all samples of an iteration: 32 of 128 did not fit, so about nine tenths of 128 may."""
    assert run_ranks(2, runs_out, environ=environ(predictor, job_id)) == [32, 32]
    workers = fetch_json(f"{predictor}/v1/jobs/{job_id}/workers")["workers"]
    assert [worker["cap"]["max_local_batch"] for worker in workers if worker["cap"]] == [112]


def runs_out_in_a_pass(rank: int) -> None:
    job = evenstep.init()
    job.wrap(DistributedDataParallel(network()))
    iteration = next(iter(job.steps(Samples(512), global_batch=256, micro_batch=32)))
    assert iteration.step.local_batch == 128
    next(iter(iteration))
    if rank == 1:
        with pytest.raises(torch.OutOfMemoryError), job.on_oom():
            raise torch.OutOfMemoryError("tried to allocate")
    dist.barrier()


def test_a_pass_of_a_hedged_step_that_does_not_fit_caps_the_passes(predictor: str, job_id: str) -> None:
    """Nine tenths of the whole base would change nothing, because passes would have as many samples as before."""
    run_ranks(2, runs_out_in_a_pass, environ=environ(predictor, job_id))
    workers = fetch_json(f"{predictor}/v1/jobs/{job_id}/workers")["workers"]
    assert [worker["cap"]["max_local_batch"] for worker in workers if worker["cap"]] == [28]
