"""The numbers of a job for loggers, and the log lines about changed shares."""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep._native import Plan
from evenstep.exchange.share_log import INTERVAL_S, ShareLog
from evenstep.job.metrics import Metrics
from evenstep.start.opening import Place
from ranks import run_ranks
from scripted import Answers, Scripted, refuses
from test_service import GLOBAL_BATCH, PACE_S, Paced, environ
from training import Samples, loss_of, network, sgd


@dataclass
class Writer:
    """The part of TensorBoard's ``SummaryWriter`` that the recipe in the documents uses."""

    scalars: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        assert type(scalar_value) is float, tag
        self.scalars.setdefault(tag, []).append((global_step, scalar_value))


def logged(rank: int) -> tuple[dict[str, Any], list[str]]:
    """Trains on ranks with unequal speeds, with the recipe of the documents."""
    writer, lines = Writer(), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep").addHandler(handler)
    logging.getLogger("evenstep").setLevel(logging.INFO)
    job = evenstep.init()
    loader = job.loader(Samples(), global_batch=GLOBAL_BATCH)
    model = job.wrap(DistributedDataParallel(Paced(network(), PACE_S * (1 + 3 * rank))))
    optimizer = sgd(model)
    iteration = 0
    for _ in range(4):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            if rank == 0 and iteration % 10 == 0:
                for name, value in job.metrics().items():
                    writer.add_scalar(name, value, iteration)
            iteration += 1
    job.close()
    return writer.scalars, lines


def test_rank_0_has_the_numbers_of_all_ranks(predictor: str, job_id: str) -> None:
    (scalars, lines), (_, others) = run_ranks(2, logged, environ=environ(predictor, job_id))
    newest = {name: values[-1][1] for name, values in scalars.items()}
    fast, slow = (newest[f"evenstep/local_batch/rank_{rank}"] for rank in range(2))
    assert fast > slow > 0
    assert fast + slow == GLOBAL_BATCH
    times = [newest[f"evenstep/compute_time_s/rank_{rank}"] for rank in range(2)]
    waits = [newest[f"evenstep/wait_s/rank_{rank}"] for rank in range(2)]
    step_s = newest["evenstep/step_time_s"]
    # The step time is a forecast, so it may be shorter than a compute time.
    assert min(step_s, *times) > 0
    assert waits == [max(0.0, step_s - time) for time in times]
    assert newest["evenstep/gain"] > 1
    changes = [line for line in lines if "local batches by rank" in line]
    assert len(changes) == 1, "one line per minute"
    assert changes[0].endswith("before: 8, 8")
    assert not [line for line in others if "local batches by rank" in line]


def without_predictor(_rank: int) -> dict[str, float]:
    job = evenstep.init(plan=lambda iteration: [[12, 4], [6, 10]][iteration % 2])
    loader = job.loader(Samples())
    with pytest.raises(evenstep.SettingError, match="has not started"):
        evenstep.init(plan=[12, 4]).metrics()
    assert len(loader)
    return job.metrics()


def test_a_given_plan_has_local_batches_only() -> None:
    for told in run_ranks(2, without_predictor):
        assert told == {"evenstep/local_batch/rank_0": 12.0, "evenstep/local_batch/rank_1": 4.0}


def test_numbers_without_a_value_are_absent() -> None:
    """Before workers are measured, the predictor forecasts nothing."""
    share = {"rank": 0, "local_batch": 3, "predicted_compute_time_s": None}
    newest = {"allocations": [share], "decision": {"predicted_step_time_s": None, "even_step_time_s": None}}
    first, second = Answers(body=json.dumps([newest]).encode()), Answers(body=b'{"job_id": "job"}')
    server = Scripted([first, second])
    assert Metrics().read(Place(server.url, "job"), [8, 8]) == {
        "evenstep/local_batch/rank_0": 3.0,
        "evenstep/local_batch/rank_1": 8.0,
    }


def test_the_gain_is_that_of_the_job() -> None:
    """The gain is measured, so it may differ from the forecasts of the newest plan."""
    newest = {"allocations": [], "decision": {"predicted_step_time_s": 1.0, "even_step_time_s": 3.0}}
    gain = {"gain": {"ratio": 1.5, "lower": 1.4, "upper": 1.6, "iterations": 9}}
    server = Scripted([Answers(body=json.dumps([newest]).encode()), Answers(body=json.dumps(gain).encode())])
    told = Metrics().read(Place(server.url, "job"), [])
    assert told == {"evenstep/step_time_s": 1.0, "evenstep/gain": 1.5}
    assert [line.split()[1] for line in server.heard()] == ["/v1/jobs/job/allocations?limit=1", "/v1/jobs/job"]


def test_after_a_failed_request_there_is_none_for_a_while() -> None:
    now = [0.0]
    server = Scripted([refuses(404, "unknown-job")])
    metrics, place = Metrics(lambda: now[0]), Place(server.url, "job")
    for now[0] in (0.0, 29.0, 31.0):
        assert metrics.read(place, [8]) == {"evenstep/local_batch/rank_0": 8.0}
    assert len(server.heard()) == 2


def test_changed_shares_are_logged_at_most_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenstep")
    now = [0.0]
    told = ShareLog(Plan.of([8, 8]), lambda: now[0])

    def lines(iteration: int, batches: list[int]) -> list[str]:
        caplog.clear()
        told.see(iteration, Plan.of(batches))
        return caplog.messages

    assert lines(1, [8, 8]) == []
    assert lines(2, [10, 6]) == ["iteration 2: local batches by rank: 10, 6; before: 8, 8"]
    assert lines(3, [11, 5]) == []
    now[0] = INTERVAL_S
    assert lines(3, [11, 5]) == ["iteration 3: local batches by rank: 11, 5; before: 10, 6"]
    now[0] += INTERVAL_S
    assert lines(4, [11, 5]) == []


def test_many_ranks_are_logged_as_a_range(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenstep")
    ShareLog(Plan.of([4] * 100)).see(7, Plan.of([3] + [4] * 98 + [5]))
    said = "iteration 7: local batches by rank: 3 (rank 0) to 5 (rank 99), 100 ranks; before: "
    assert caplog.messages == [f"{said}4 (rank 0) to 4 (rank 0), 100 ranks"]
