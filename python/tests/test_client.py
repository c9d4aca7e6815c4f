"""The client with a real predictor, from the first join to the last leave."""

import json

import pytest

from evenstep.errors import RejectedError, SettingError
from evenstep.wire.client import Client
from evenstep.wire.errors import StaleError, UnknownError, UnreachableError
from evenstep.wire.messages import (
    AllocateRequest,
    AllocateResponse,
    JobSpec,
    JoinRequest,
    TailReport,
    WorkerReport,
)
from programs import fetch

SECONDS_PER_SAMPLE = {"node-a/0": 0.01, "node-b/0": 0.02}


@pytest.fixture
def client(predictor: str, job_id: str) -> Client:
    return Client(predictor, job_id, timeout_s=30.0)


def join_both(client: Client, spec: JobSpec | None = None) -> int:
    client.put_job(spec or JobSpec(12))
    return max(client.join(JoinRequest(worker)).generation for worker in SECONDS_PER_SAMPLE)


def reports_of(answer: AllocateResponse) -> tuple[WorkerReport, ...]:
    return tuple(
        WorkerReport(
            share.worker,
            answer.iteration,
            share.local_batch,
            share.local_batch * SECONDS_PER_SAMPLE[share.worker],
            barrier_wait_s=0.0,
            drivers={"own_cpu": 1.0},
        )
        for share in answer.allocations
    )


def test_shares_follow_what_was_reported(client: Client) -> None:
    generation = join_both(client)
    reports: tuple[WorkerReport, ...] = ()
    for iteration in range(6):
        request = AllocateRequest(client.job_id, generation, iteration, reports=reports)
        answer = client.allocate(request)
        assert answer.global_batch == sum(share.local_batch for share in answer.allocations) == 12
        assert [share.worker for share in answer.allocations] == list(SECONDS_PER_SAMPLE)
        reports = reports_of(answer)
    assert [share.local_batch for share in answer.allocations] == [8, 4]
    assert answer.decision.kind == "held"
    assert answer.optimizer.lr_multiplier == 1.0


def test_one_iteration_has_one_answer(client: Client, predictor: str) -> None:
    generation = join_both(client)
    request = AllocateRequest(client.job_id, generation, 0)
    first = client.allocate(request)
    assert client.allocate(request) == first
    status, body = fetch(f"{predictor}/allocate?job_id={client.job_id}&iteration=0")
    assert status == 200
    assert AllocateResponse.from_json(json.loads(body)) == first
    assert fetch(f"{predictor}/allocate", method="POST", body=request.to_json()) == (200, body)


def test_a_join_changes_the_generation_and_the_old_one_is_stale(client: Client) -> None:
    client.put_job(JobSpec(12))
    alone = client.join(JoinRequest("node-a/0", device="cpu", memory_bytes=1 << 34))
    assert (alone.generation, alone.workers, alone.next_iteration) == (1, ("node-a/0",), 0)
    both = client.join(JoinRequest("node-b/0", claims=True))
    assert (both.generation, both.workers) == (2, ("node-a/0", "node-b/0"))
    with pytest.raises(StaleError, match="Stale generation") as stale:
        client.allocate(AllocateRequest(client.job_id, 1, 0))
    assert stale.value.current_generation == 2
    left = client.leave("node-a/0")
    assert (left.worker, left.generation, left.workers) == ("node-a/0", 3, ("node-b/0",))


def test_a_job_or_worker_that_is_not_known_is_said_so(client: Client) -> None:
    with pytest.raises(UnknownError, match="unknown job or worker: 404"):
        client.join(JoinRequest("node-a/0"))
    client.put_job(JobSpec(12))
    with pytest.raises(UnknownError, match="node-a/0"):
        client.leave("node-a/0")


def test_what_breaks_a_rule_is_refused_with_the_numbers(client: Client) -> None:
    with pytest.raises(RejectedError, match="quantum"):
        client.put_job(JobSpec(12, quantum=5))
    generation = join_both(client, JobSpec(12, max_local_batch=5))
    with pytest.raises(RejectedError, match=r"422 .*10.*") as infeasible:
        client.allocate(AllocateRequest(client.job_id, generation, 0))
    assert "12" in str(infeasible.value)


def test_too_few_workers_pause_the_job(client: Client) -> None:
    client.put_job(JobSpec(12, min_workers=2))
    generation = client.join(JoinRequest("node-a/0")).generation
    with pytest.raises(UnreachableError, match="503"):
        client.allocate(AllocateRequest(client.job_id, generation, 0))


def test_out_of_memory_caps_the_worker_and_voids_the_iteration(client: Client) -> None:
    generation = join_both(client)
    before = client.allocate(AllocateRequest(client.job_id, generation, 0))
    assert before.allocations[1].local_batch == 6
    capped = client.report_oom("node-b/0", 0, 6)
    assert (capped.worker, capped.max_local_batch, capped.generation) == ("node-b/0", 5, generation + 1)
    assert client.report_oom("node-b/0", 0, 6) == capped
    with pytest.raises(StaleError):
        client.allocate(AllocateRequest(client.job_id, generation, 0))
    again = client.allocate(AllocateRequest(client.job_id, capped.generation, 0))
    assert [share.local_batch for share in again.allocations] == [7, 5]


def test_everything_that_can_be_said_is_understood(client: Client) -> None:
    client.put_job(
        JobSpec(
            64,
            quantum=4,
            min_local_batch=4,
            accumulation=True,
            overlap_begins=0.5,
            memory_headroom=0.2,
            rule="linear",
            hedge="off",
            min_chunk=4,
            min_workers=1,
            lease_s=60.0,
            min_gain=0.05,
            flap_cooldown_s=10.0,
            keep_s=3600,
            distinct_sizes=3,
        )
    )
    generation = client.join(JoinRequest("node-a/0", max_local_batch=32, claims=True)).generation
    client.allocate(AllocateRequest(client.job_id, generation, 0))
    report = WorkerReport(
        "node-a/0",
        0,
        64,
        0.5,
        micro_batches=3,
        tail=TailReport(2, 8, 0.1, 0.01),
        barrier_wait_s=0.1,
        loader_wait_s=0.1,
        peak_memory_bytes=1 << 30,
        communication_s=0.01,
        overlapped_communication_s=0.02,
        gradient_sqr=1.0,
        global_gradient_sqr=0.5,
        drivers={"own_cpu": 0.9},
    )
    request = AllocateRequest(client.job_id, generation, 1, global_batch=40, reports=(report,))
    answer = client.allocate(request)
    assert (answer.global_batch, answer.allocations[0].micro_batch) == (40, 32)


def test_settings_that_break_a_rule_are_refused_before_anything_is_sent(predictor: str) -> None:
    with pytest.raises(SettingError, match="job id 'a/b'"):
        Client(predictor, "a/b")
    for timeout_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SettingError, match="timeout_s"):
            Client(predictor, "job", timeout_s)
    with pytest.raises(SettingError, match="worker id"):
        Client(predictor, "job").leave("../x")
