"""Epochs and runs with an unusual end: left early, unmeasured, or restarted."""

import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep._native import Plan
from evenstep.exchange.exchange import Exchange
from evenstep.exchange.predictor import Predictor
from evenstep.measure.moment import HostTimer
from evenstep.settings.budget import WARM_UP
from programs import fetch, fetch_json
from ranks import run_ranks
from test_service import check, train, until
from training import Samples, loss_of, network, sgd

GLOBAL_BATCH = 16


def environ(server: str, job_id: str, **more: str) -> dict[str, str]:
    return {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": job_id, **more}


def iterations_reported(predictor: str, job_id: str) -> set[int]:
    return {told["iteration"] for told in fetch_json(f"{predictor}/v1/jobs/{job_id}/speeds?limit=1000")["speeds"]}


@dataclass
class Script:
    """A user's script; each test changes one part of it."""

    job: evenstep.Job = field(default_factory=evenstep.init)
    batches: list[int] = field(default_factory=list)
    read: int = 0

    def __post_init__(self) -> None:
        self.loader = self.job.loader(Samples(), global_batch=GLOBAL_BATCH)
        self.model = self.job.wrap(DistributedDataParallel(network()))
        self.optimizer = sgd(self.model)

    def epoch(self, stop: int | None = None, skip: int | None = None) -> None:
        for at, (x, y, _) in enumerate(self.loader):
            if at == stop:
                break
            self.read += 1
            loss = loss_of(self.model, x, y)
            if at == skip:
                continue
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.batches.append(self.job._run.current.step.local_batch)


def is_planned(iteration: int) -> bool:
    query = f"job_id={os.environ['EVENSTEP_JOB']}&iteration={iteration}"
    return fetch(f"{os.environ['EVENSTEP_SERVER']}/allocate?{query}")[0] == 200


def leaves_epochs(_rank: int) -> list[int]:
    script = Script()
    # All positions of an epoch, including those whose plan was requested for its end.
    for stop in range(1, 13):
        script.epoch(stop)
        opened = script.job._life.opened
        if opened and opened.plans and opened.plans.predictor:
            next_one = opened.run.binding.trained.iteration + opened.run.ahead
            until(partial(is_planned, next_one), "the plan of an iteration ahead")
    script.job.close()
    return script.batches


def test_epochs_that_are_left_midway_end_nobody(predictor: str, job_id: str) -> None:
    """The plan of an iteration was requested when it seemed to be the last one of an epoch, with fewer samples."""
    ranks = run_ranks(2, leaves_epochs, environ=environ(predictor, job_id))
    assert all(sum(batches) == GLOBAL_BATCH for batches in zip(*ranks, strict=True))
    assert iterations_reported(predictor, job_id) == set(range(sum(range(1, 13))))


def exchange_of(script: Script) -> Exchange:
    assert script.job._life.opened is not None
    script.job._life.opened.run.start()
    assert script.job._life.opened.plans is not None
    return script.job._life.opened.plans.exchange


def fails_to_measure(rank: int) -> list[int]:
    script = Script()
    if rank == 1:

        def broken() -> dict[str, float]:
            raise OSError("no readings")

        exchange_of(script)._drivers = broken  # simulates a device error.
    script.epoch()
    script.job.close()
    return script.batches


def test_a_rank_that_cannot_be_measured_keeps_nobody_waiting(predictor: str, job_id: str) -> None:
    ranks = run_ranks(2, fails_to_measure, environ=environ(predictor, job_id))
    assert [len(batches) for batches in ranks] == [13, 13]
    told = fetch_json(f"{predictor}/v1/jobs/{job_id}/speeds?limit=1000")["speeds"]
    assert {speed["worker"].rsplit("/")[-1] for speed in told} == {"0"}


def measured_slowly(rank: int) -> None:
    script = Script()
    read = exchange_of(script)._drivers
    if rank == 0:

        def slow() -> dict[str, float]:
            # Reports arrive later than the training advances.
            time.sleep(0.05)
            return read()

        exchange_of(script)._drivers = slow  # simulates a slow machine.
    script.epoch()
    dist.destroy_process_group()
    script.job.close()


def test_groups_that_end_before_the_job_lose_no_report(predictor: str, job_id: str) -> None:
    """As in many scripts: the loop, then destroy_process_group; the end of the process closes the job."""
    run_ranks(2, measured_slowly, environ=environ(predictor, job_id))
    assert iterations_reported(predictor, job_id) == set(range(13))


def skips(_rank: int) -> tuple[float, float]:
    """Returns the compute time of the first iteration and of one after a skipped one; the clock counts batches."""
    script, told = Script(evenstep.init(plan=[8, 8])), []
    sensor = script.job._run.sensor
    sensor._timer_of = lambda _: HostTimer(lambda: float(script.read))
    computed = sensor.computed

    def heard() -> Any:
        result = computed()
        told.append(result[0]())
        return result

    sensor.computed = heard  # type: ignore[method-assign]  # records its results.
    script.epoch(stop=4, skip=2)
    return told[0], told[-1]


def test_an_iteration_that_is_skipped_is_no_time_of_the_next() -> None:
    for plain, after in run_ranks(2, skips):
        assert plain == after == 0.0


def plans_that_go_wrong(_rank: int, plan: list[int], accumulate: int) -> str:
    job = evenstep.init(plan=lambda iteration: [8, 8] if iteration < 2 else plan)
    loader = job.loader(Samples(), accumulate=accumulate, drop_last=True)
    with pytest.raises(evenstep.SettingError) as error:
        for _ in loader:
            pass
    return str(error.value)


@pytest.mark.parametrize(
    ("plan", "accumulate", "rule"),
    [
        ([8, 4, 4], 1, "must have one batch for each of the 2 ranks"),
        ([9, 7], 2, "must be multiples of accumulate=2"),
    ],
)
def test_functions_of_the_iteration_are_held_to_the_rules_later_too(
    plan: list[int], accumulate: int, rule: str
) -> None:
    """Otherwise some samples would belong to no rank."""
    for told in run_ranks(2, plans_that_go_wrong, plan, accumulate):
        assert rule in told
        assert "iteration 2" in told


def test_ranks_that_exchange_seldom_are_still_one(predictor: str, job_id: str) -> None:
    """At the start, and at the end of each epoch; the plan between exchanges is the same for all."""
    seldom = environ(predictor, job_id, EVENSTEP_OVERHEAD="1e-9")
    ranks = run_ranks(2, train, 4, [1.0, 4.0], environ=seldom)
    check(ranks, 4)
    fast, slow = (told.steps[-2][2] for told in ranks)
    assert fast > slow
    assert iterations_reported(predictor, job_id) == {*range(WARM_UP), 25, 38, 51}


def test_a_run_that_torchrun_begins_again_is_the_same_run(predictor: str, job_id: str) -> None:
    """The run may have died before its first checkpoint; another run with this name is still rejected."""
    run_ranks(2, train, 1, [0.0, 0.0], environ=environ(predictor, job_id))
    again = environ(predictor, job_id, TORCHELASTIC_RESTART_COUNT="1")
    check(run_ranks(2, train, 2, [0.0, 0.0], environ=again), 2)
    assert iterations_reported(predictor, job_id) == set(range(26))


def test_who_died_is_not_waited_for(predictor: str, job_id: str) -> None:
    """Its lease continues when torchrun restarts the others: they train, and retry until the lease has expired."""
    job = f"{predictor}/v1/jobs/{job_id}"
    assert fetch(job, method="PUT", body={"global_batch": GLOBAL_BATCH})[0] < 300
    assert fetch(f"{job}/workers", method="POST", body={"worker": "another-node/0"})[0] < 300
    with pytest.raises(AssertionError, match="another live worker, another-node/0"):
        run_ranks(2, train, 1, [0.0, 0.0], environ=environ(predictor, job_id))
    again = environ(predictor, job_id, TORCHELASTIC_RESTART_COUNT="1")
    check(run_ranks(2, train, 1, [0.0, 0.0], environ=again), 1)


def test_a_plan_that_comes_late_is_taken_up_late(predictor: str, job_id: str) -> None:
    """If responses take longer than iterations, every plan is late."""
    workers = [{"worker": "node-a/0"}, {"worker": "node-a/1"}]
    planner = Predictor(predictor, job_id, {"global_batch": GLOBAL_BATCH}, workers)
    planner.open([0], Plan.even(GLOBAL_BATCH, 2))
    try:
        plans: list[Any] = []

        def taken(iteration: int) -> bool:
            plans.extend(plan for plan in [planner.take(iteration)] if plan)
            return bool(plans)

        planner.learn(0, [], 4)
        until(lambda: planner.cpu_s > 0, "a response")
        assert not taken(2)
        until(partial(taken, 9), "a plan")
        assert plans[0].size == GLOBAL_BATCH
        assert planner.take(9) is None, "an older plan never follows a newer one"
    finally:
        planner.close(10.0)
