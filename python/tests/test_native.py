"""The native client: settings, requests, outages, and a predictor that moves."""

import json
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from evenstep import _native
from evenstep._native import DRIVER_NAMES, REPORT_NAMES, Http, Plan, parse_servers, report_oom
from evenstep.errors import EvenstepError, RejectedError, SettingError
from evenstep.exchange.predictor import Predictor
from evenstep.exchange.report import SLOTS, Report, TailWork
from programs import PATIENCE_S, fetch, fetch_json, stoppable
from scripted import HANGS, SLEEPS, Answers, Scripted, points_to, refuses, unused_address
from test_service import until

WORKERS = [{"worker": "node-a/0"}, {"worker": "node-a/1"}]
SPEC = {"global_batch": 16}


#: The plan without a predictor, in tests in which it responds.
NO_JOB = refuses(404, "unknown-job")
UNUSED = Plan.of([16, 0])


def test_the_module_is_of_the_same_version_as_the_package() -> None:
    assert _native.version().count(".") == 2


def test_lists_of_servers_are_read() -> None:
    assert parse_servers("http://a:1/, http://b/base/ ,http://[::1]:7117") == [
        "http://a:1",
        "http://b/base",
        "http://[::1]:7117",
    ]
    for text, rule in [("a:1", 'server "a:1": must be like http://host:port'), ("http://a,http://a", "occurs twice")]:
        with pytest.raises(SettingError, match=rule):
            parse_servers(text)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"job_id": "a/b/c"}, 'job id "a/b/c"'),
        ({"servers": "nowhere"}, 'server "nowhere"'),
        ({"spec": {"global_batch": "many"}}, "invalid type"),
        ({"workers": [{"worker": "../x"}]}, "worker id"),
        ({"timeout_s": math.nan}, "timeout_s NaN: must be finite and above 0"),
        ({"timeout_s": 0.0}, "timeout_s 0: must be finite and above 0"),
    ],
)
def test_settings_that_break_a_rule_are_refused_before_anything_is_sent(changed: dict[str, Any], rule: str) -> None:
    settings = {"servers": "http://a", "job_id": "job", "spec": SPEC, "workers": WORKERS, **changed}
    with pytest.raises(SettingError, match=rule):
        Predictor(**settings)


def test_a_resource_is_read_whole_over_one_connection() -> None:
    server = Scripted([Answers(418, "x-Kind: tea\r\n", b"\x00\xff")])
    http = Http(server.url)
    for _ in range(3):
        told = http.get("/pot?size=2", 5.0)
        assert (told.status, told.headers["x-kind"], told.body) == (418, "tea", b"\x00\xff")
    assert server.heard() == ["GET /pot?size=2 "] * 3
    assert server.connections == 1
    for silent in (Scripted([HANGS]).url, unused_address()):
        with pytest.raises(EvenstepError):
            Http(silent).get("/", 5.0)
    with pytest.raises(EvenstepError, match="timeout"):
        Http(Scripted([SLEEPS]).url).get("/", 0.05)


def test_other_threads_run_while_a_request_waits() -> None:
    """The native code releases the interpreter's lock: the server of the test runs in this process."""
    answered = threading.Event()

    def asks() -> None:
        Http(Scripted([Answers()]).url).get("/", 30.0)
        answered.set()

    threading.Thread(target=asks, daemon=True).start()
    assert answered.wait(30.0)


def test_out_of_memory_is_reported(predictor: str, job_id: str) -> None:
    planner = Predictor(predictor, job_id, SPEC, WORKERS)
    planner.open([0], UNUSED)
    assert report_oom(predictor, job_id, "node-a/1", 0, 8, 30.0) == 7
    with pytest.raises(RejectedError, match="local_batch: 1 must be 2 to"):
        report_oom(predictor, job_id, "node-a/1", 0, 1, 30.0)
    with pytest.raises(EvenstepError, match="unreachable"):
        report_oom(unused_address(), job_id, "node-a/1", 0, 8, 30.0)
    planner.close(30.0)


def test_rows_are_reports(predictor: str, job_id: str) -> None:
    """Every value of a row arrives; a rank without a row or without samples has no report."""
    assert 1 + len(REPORT_NAMES) + len(DRIVER_NAMES) == SLOTS
    planner = Predictor(predictor, job_id, SPEC, [*WORKERS, {"worker": "node-a/2"}])
    planner.open([0], UNUSED)
    first = Report(0, 6, 0.5, 0.1, 2, 1 << 30, TailWork(1, 2, 0.125, 0.1), loss=-1.5, drivers={"own_cpu": 0.5})
    without_tail = Report(0, 10, 1.0).to_row()
    # A rank of an earlier version writes 0 for no tail.
    tail = slice(1 + REPORT_NAMES.index("tail_chunks"), 1 + REPORT_NAMES.index("tail_claim_time_s") + 1)
    without_tail[tail] = [0.0] * 4
    rows = [*first.to_row(), *without_tail, *[0.0] * SLOTS]
    planner.learn(0, rows, 1)
    planner.close(30.0)
    workers = {told["worker"]: told for told in fetch_json(f"{predictor}/v1/jobs/{job_id}/speeds?limit=9")["speeds"]}
    assert set(workers) == {"node-a/0", "node-a/1"}
    assert (workers["node-a/0"]["local_batch"], workers["node-a/0"]["compute_time_s"]) == (6, 0.5)
    assert workers["node-a/1"]["local_batch"] == 10
    losses = fetch_json(f"{predictor}/v1/jobs/{job_id}/history?from_unix_ms=0")["loss"]
    assert losses[0] == -1.5, "one rank has a loss"


def test_a_loss_that_is_not_finite_on_one_rank_is_a_gap(predictor: str, job_id: str) -> None:
    planner = Predictor(predictor, job_id, SPEC, WORKERS)
    planner.open([0], UNUSED)
    for iteration, loss in enumerate((1.0, math.nan, -math.inf)):
        rows = [*Report(iteration, 8, 0.5, loss=2.0).to_row(), *Report(iteration, 8, 0.5, loss=loss).to_row()]
        planner.learn(iteration, rows, iteration + 1)
    planner.close(30.0)
    history = fetch_json(f"{predictor}/v1/jobs/{job_id}/history?from_unix_ms=0")
    assert dict(zip(history["iterations"], history["loss"], strict=True)) == {0: 1.5, 1: None, 2: None, 3: None}


def joined(*workers: str) -> Answers:
    body = {"job_id": "job", "worker": workers[0], "generation": 1, "workers": workers, "next_iteration": 0}
    return Answers(body=json.dumps(body).encode())


def allocation(iteration: int) -> Answers:
    body = {
        "job_id": "job",
        "generation": 1,
        "iteration": iteration,
        "global_batch": 16,
        "allocations": [
            {"worker": f"node-a/{rank}", "rank": rank, "local_batch": 8, "offset": 8 * rank, "gradient_weight": 0.5}
            for rank in range(2)
        ],
        "optimizer": {"rule": "none", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0},
        "decision": {"kind": "held", "reason": "r"},
    }
    return Answers(body=json.dumps(body).encode())


def test_a_long_outage_loses_no_report_and_a_moved_predictor_is_found(predictor: str, job_id: str) -> None:
    """With 8 workers a request has the reports of at most 32 iterations, and the outage has 100."""
    workers = [{"worker": f"node-a/{rank}"} for rank in range(8)]
    told: list[str | None] = [None]
    planner = Predictor(unused_address(), job_id, SPEC, workers, timeout_s=30.0, find_server=lambda: told[0])
    plans = planner.open([0], Plan.even(16, 8))
    assert plans[0][1].batches == [2] * 8

    def train(iteration: int) -> None:
        planner.learn(iteration, 8 * Report(iteration, 2, 0.1).to_row(), iteration + 1)

    def reported() -> set[int]:
        speeds = fetch_json(f"{predictor}/v1/jobs/{job_id}/speeds?limit=1000")["speeds"]
        return {speed["iteration"] for speed in speeds}

    for iteration in range(100):
        train(iteration)
    told[0] = predictor
    until(lambda: fetch(f"{predictor}/v1/jobs/{job_id}")[0] == 200, "the job")
    until(lambda: reported() >= set(range(99)), "the reports of the outage")
    train(100)
    planner.close(30.0)
    assert reported() == set(range(101))


def test_no_report_waits_for_a_request_that_hangs(predictor_binary: Path, job_id: str, tmp_path: Path) -> None:
    """Training submits reports with the interpreter's lock, so it would wait too."""
    with stoppable(predictor_binary, tmp_path) as (url, process):
        planner = Predictor(url, job_id, SPEC, WORKERS, timeout_s=2 * PATIENCE_S)
        planner.open([0], UNUSED)
        os.kill(process, signal.SIGSTOP)
        done = threading.Event()

        def submit() -> None:
            for iteration in range(100):
                planner.learn(iteration, 2 * Report(iteration, 8, 0.1).to_row(), iteration + 1)
                planner.take(iteration)
                # Gives the thread of requests time to begin one.
                done.wait(0.005)
            done.set()

        threading.Thread(target=submit, daemon=True).start()
        assert done.wait(PATIENCE_S), "a report waited for the request"
        os.kill(process, signal.SIGCONT)
        planner.close(PATIENCE_S)


def test_proxies_of_the_environment_are_not_used(predictor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, unused_address())
    assert Http(predictor).get("/healthz", PATIENCE_S).status == 200


def test_an_error_of_the_callback_keeps_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> str:
        raise OSError("no lock file")

    planner = Predictor(unused_address(), "job", SPEC, WORKERS, timeout_s=5.0, find_server=fails)
    planner.open([], UNUSED)

    def logged() -> bool:
        assert planner.take(0) is None
        return "looking for the predictor failed: OSError: no lock file" in caplog.text

    until(logged, "the error in the log")
    planner.close(5.0)


def test_the_next_server_is_asked_and_the_owner_is_followed() -> None:
    owner = Scripted([NO_JOB, Answers(), joined("node-a/0"), joined("node-a/0", "node-a/1"), allocation(0)])
    draining = Scripted([refuses(503, "draining")])
    # Every request but the first goes to the owner at once.
    pointing = Scripted([points_to(owner.url)])
    planner = Predictor(f"{draining.url},{pointing.url}", "job", SPEC, WORKERS, timeout_s=30.0)
    assert planner.open([0], UNUSED)[0][1].batches == [8, 8]
    assert (len(draining.heard()), len(pointing.heard()), len(owner.heard())) == (1, 1, 5)


def test_what_the_predictor_rejects_ends_the_run() -> None:
    joins = joined("node-a/0"), joined("node-a/0", "node-a/1")
    server = Scripted([NO_JOB, Answers(), *joins, refuses(422, "infeasible")])
    with pytest.raises(RejectedError, match="422 infeasible: d"):
        Predictor(server.url, "job", SPEC, WORKERS).open([0], UNUSED)


def test_a_fork_does_not_wait_for_the_parents_connection(predictor: str, job_id: str) -> None:
    """Data loaders fork the process; their exit must not touch the connection."""
    planner = Predictor(predictor, job_id, SPEC, WORKERS)
    planner.open([0], UNUSED)
    child = os.fork()
    if child == 0:
        del planner
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    planner.close(30.0)
    assert fetch(f"{predictor}/v1/jobs/{job_id}")[0] == 200
