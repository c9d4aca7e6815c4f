"""The doctor with real services and ranks, and its checks alone."""

import email.utils
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.doctor.agent import check_agent
from evenstep.doctor.check import Check, Status
from evenstep.doctor.ranks import Facts, Place, compare, read_place
from evenstep.doctor.service import CLOCK_DIFFERENCE_MAX_S, check_clock, check_servers, clock_difference_s
from evenstep.doctor.versions import check_versions, major_minor
from programs import PATIENCE_S, ROOT, clean_environment, sampling
from scripted import Answers, Scripted, refuses, unused_address

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "python" / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**clean_environment(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=4 * PATIENCE_S,
        check=False,
    )


def statuses(output: str) -> dict[str, str]:
    told: dict[str, Any] = json.loads(output)
    return {check["name"]: check["status"] for check in told["checks"]}


def test_all_is_well_beside_real_services(predictor: str, agent: str) -> None:
    ran = run("-m", "evenstep", "doctor", "--json", EVENSTEP_JOB="job", EVENSTEP_SERVER=predictor, EVENSTEP_AGENT=agent)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = statuses(ran.stdout)
    # On a busy machine the reading may arrive too late to be fresh: the doctor reports a warning, not an error.
    assert found.pop(f"agent {agent} reading") in ("ok", "warning")
    assert found == dict.fromkeys(found, "ok")
    for name in (
        "versions",
        "devices",
        f"server {predictor}",
        f"server {predictor} clock",
        "job",
        f"agent {agent}",
    ):
        assert name in found


def test_a_predictor_that_is_away_fails_and_says_what_to_do() -> None:
    away = unused_address()
    ran = run("-m", "evenstep", "doctor", "--server", away, EVENSTEP_AGENT="")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("failed"))
    assert f"server {away}: Connection refused" in line
    assert "evenstep-predictor serve" in line


def test_ranks_meet_under_torchrun(predictor: str) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = run(
        *torchrun, "-m", "evenstep", "doctor", "--json", "--server", predictor, EVENSTEP_AGENT="", EVENSTEP_JOB="new"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(told) == 1, "only rank 0 prints"
    found = statuses(told[0])
    for name in (
        "torchrun",
        "ranks",
        "ranks' versions",
        "ranks' settings",
        "ranks' workers",
        "ranks' clocks",
        "job",
    ):
        assert found[name] == "ok", name


def test_without_a_server_the_programs_that_runs_start_are_checked(predictor_binary: Path, tmp_path: Path) -> None:
    path = f"{predictor_binary.parent}{os.pathsep}{os.environ['PATH']}"
    ran = run("-m", "evenstep", "doctor", "--json", PATH=path, EVENSTEP_HOME=str(tmp_path))
    found = statuses(ran.stdout)
    for name in ("local folder", "local predictor", "local agent"):
        assert found[name] == "ok", ran.stdout
    ran = run("-m", "evenstep", "doctor", "--json", PATH="/nowhere", EVENSTEP_HOME="/proc/none")
    assert ran.returncode == 1
    assert statuses(ran.stdout)["local folder"] == "failed"
    ran = run("-m", "evenstep", "doctor", "--json", EVENSTEP_SERVER="off")
    assert statuses(ran.stdout)["server"] == "ok"
    assert "local folder" not in statuses(ran.stdout)


def test_a_server_that_is_none_of_ours_fails() -> None:
    (bad,) = check_servers("localhost:1", own_version="0.1.0", timeout_s=PATIENCE_S)
    assert (bad.status, "http://host:port" in bad.found) == ("failed", True)
    other = Scripted([refuses(503, "unavailable"), Answers(body=b"<html>")])
    ready, version, clock = check_servers(other.url, own_version="0.1.0", timeout_s=PATIENCE_S)
    assert [check.status for check in (ready, version, clock)] == ["failed", "failed", "warning"]
    assert ready.found == "not ready: d"


def test_another_minor_version_is_worth_a_look(predictor: str) -> None:
    for own, status in (("0.1.9", "ok"), ("0.2.0", "warning"), (None, "ok")):
        checks = check_servers(predictor, own_version=own, timeout_s=PATIENCE_S)
        assert [check.status for check in checks if check.name.endswith("version")] == [status]


def test_an_agent_that_makes_readings_up_is_worth_a_look(agent_binary: Path, tmp_path: Path) -> None:
    with sampling(agent_binary, tmp_path, unused_address(), "--demo-seed=7") as url:
        found = {check.name: check for check in check_agent(url, timeout_s=PATIENCE_S)}
    assert found[f"agent {url}"].status == "warning"
    assert "simulated" in found[f"agent {url}"].found


def test_an_agent_that_is_away_or_none_is_only_worth_a_look() -> None:
    assert [check.status for check in check_agent(unused_address(), timeout_s=PATIENCE_S)] == ["warning"]
    assert [check.status for check in check_agent(Scripted().url, timeout_s=PATIENCE_S)] != ["ok"]
    assert [check.status for check in check_agent("nonsense", timeout_s=PATIENCE_S)] == ["failed"]


@pytest.mark.parametrize(
    ("versions", "python", "status"),
    [
        ({"torch": "2.8.0+cpu"}, (3, 10), "ok"),
        ({"torch": "2.7.1"}, (3, 11), "failed"),
        ({"torch": "3.0.0a0"}, (3, 11), "ok"),
        ({"torch": "2.15.0"}, (3, 9), "failed"),
        ({}, (3, 11), "failed"),
    ],
)
def test_old_versions_fail(versions: dict[str, str], python: tuple[int, int], status: Status) -> None:
    assert check_versions(versions, python).status == status


def test_versions_are_read() -> None:
    assert [major_minor(text) for text in ("2.8.0+cpu", "2.15", "3", "dev")] == [
        (2, 8),
        (2, 15),
        (3, 0),
        (0, 0),
    ]


@given(
    sent=st.floats(1.7e9, 1.8e9),
    waited_s=st.floats(0, 5),
    part=st.floats(0, 1),
    apart_s=st.floats(-1e5, 1e5),
)
def test_clocks_are_never_said_to_be_further_apart_than_they_are(
    sent: float, waited_s: float, part: float, apart_s: float
) -> None:
    written = math.floor(sent + part * waited_s + apart_s)
    least, most = clock_difference_s(written, sent, sent + waited_s)
    assert least - 1e-5 <= apart_s <= most + 1e-5
    assert most - least == pytest.approx(waited_s + 1, abs=1e-5)
    check = check_clock("server", email.utils.formatdate(written, usegmt=True), sent, sent + waited_s)
    if abs(apart_s) <= CLOCK_DIFFERENCE_MAX_S:
        assert check.status == "ok"
    elif abs(apart_s) > CLOCK_DIFFERENCE_MAX_S + waited_s + 1.001:
        assert check.status == "warning"


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Nov 2026 25:00:00 GMT"])
def test_a_server_without_a_clock_is_worth_a_look(date: str | None) -> None:
    assert check_clock("server", date, 0.0, 1.0).status == "warning"


def test_torchruns_environment_is_read() -> None:
    assert read_place(TORCHRUN)[0] == Place(1, 4, 1)
    nowhere, check = read_place({})
    assert (nowhere, check.status) == (None, "ok")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"RANK": ""}, "RANK not set, although"),
        ({"RANK": "4"}, "RANK=4: must be below WORLD_SIZE=4"),
        ({"RANK": "x"}, "RANK=x: must be a whole number"),
        ({"RANK": "-1"}, "RANK=-1: must be a whole number"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2: must be at most RANK=1"),
        ({"LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK=1: must be below 1"),
        ({"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8: must be at most WORLD_SIZE"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000"),
    ],
)
def test_an_environment_that_contradicts_itself_fails(changes: dict[str, str], told: str) -> None:
    place, check = read_place({**TORCHRUN, **changes})
    assert (place, check.status) == (None, "failed")
    assert told in check.found


def facts(rank: int, **other: Any) -> Facts:
    told: dict[str, Any] = {
        "host": "a",
        "worker": f"a/{rank}",
        "versions": {"torch": "2.8.0"},
        "settings": {"EVENSTEP_JOB": "job"},
        "unix_s": 100.0,
        "checks": (),
    }
    return Facts(Place(rank, 2, rank), **{**told, **other})


@pytest.mark.parametrize(
    ("other", "name", "status"),
    [
        ({}, None, "ok"),
        ({"versions": {"torch": "2.5.0"}}, "ranks' versions", "failed"),
        ({"settings": {}}, "ranks' settings", "failed"),
        ({"worker": "a/0"}, "ranks' workers", "failed"),
        ({"unix_s": 102.0}, "ranks' clocks", "warning"),
        ({"checks": (Check("server x", "failed", "away"),)}, "rank 1 (a): server x", "failed"),
    ],
)
def test_ranks_that_differ_are_named(other: dict[str, Any], name: str | None, status: Status) -> None:
    checks = compare([facts(0), facts(1, **other)])
    assert {check.name: check.status for check in checks if check.status != "ok"} == ({name: status} if name else {})
