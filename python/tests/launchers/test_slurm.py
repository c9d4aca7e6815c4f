"""The examples for Slurm, on a real cluster of two nodes on this machine."""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import elastic_runs
import records
from programs import ROOT, fetch_json, serving
from slurm import JOB_S, Cluster, Submitted, cluster, processes

EXAMPLES = ROOT / "python" / "examples"
PACED = Path(__file__).parent / "paced.py"
ELASTIC = EXAMPLES / "elastic.py"

#: Seconds per sample: node n2 is three times as fast.
PACES = {"n1": 6e-4, "n2": 2e-4, "default": 0.0}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.fixture
def environ(predictor_binary: Path, agent_binary: Path, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a user: the package and its programs are in the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "evenstep-predictor").symlink_to(predictor_binary)
    (programs / "evenstep-agent").symlink_to(agent_binary)
    for folder in ("records", "checkpoints", "home"):
        (tmp_path / folder).mkdir()
    return {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "python" / "src"),
        "PACES": json.dumps(PACES),
        "RECORDS": str(tmp_path / "records"),
        "EVENSTEP_HOME": str(tmp_path / "home"),
        # Iterations are short: ranks exchange after each one, so that the gain is known at the end.
        "EVENSTEP_OVERHEAD": "1000",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def script(folder: Path) -> list[str]:
    """Returns the example with imposed speeds, and the folder of its checkpoints."""
    return [str(PACED), str(ELASTIC), str(folder / "checkpoints")]


def gain(url: str, identity: str) -> float:
    """Returns how many times as fast the job was as with even shares."""
    [line, *_] = fetch_json(f"{url}/v1/jobs/{identity}/summary")["lines"]
    [found] = re.findall(r"iterations, gain ([\d.]+)x ", line)
    return float(found)


def embedded_gain(environ: dict[str, str], predictor_binary: Path, identity: str) -> float:
    """Returns the gain of a run whose predictor has ended."""
    [store] = Path(environ["EVENSTEP_HOME"]).rglob("evenstep.db")
    with serving(predictor_binary, store.parent) as url:
        return gain(url, identity)


def checkpointed(job: Submitted) -> int:
    """Returns the newest iteration with a checkpoint."""
    return max(records.losses(job.said()), default=0)


def until_checkpoint(job: Submitted, iteration: int) -> None:
    deadline = time.monotonic() + JOB_S
    while checkpointed(job) < iteration:
        assert job.state() in {"PENDING", "RUNNING"}, job.said()
        assert time.monotonic() < deadline, f"no checkpoint of iteration {iteration}: {job.said()}"
        time.sleep(0.1)


def until_nothing_runs(environ: dict[str, str]) -> None:
    """Waits until no process of a job is left."""
    deadline = time.monotonic() + JOB_S
    while left := processes(f"RECORDS={environ['RECORDS']}"):
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        time.sleep(0.2)


def test_two_nodes_with_an_embedded_predictor(
    slurm: Cluster, environ: dict[str, str], predictor_binary: Path, tmp_path: Path
) -> None:
    job = slurm.submit(str(EXAMPLES / "slurm" / "train.sbatch"), *script(tmp_path), environ=environ)
    job.wait()
    until_nothing_runs(environ)
    computed = records.read(tmp_path / "records")
    records.check_samples(computed)
    [identity] = {record.job for record in computed}
    assert re.fullmatch(rf"elastic-{job.number}-[0-9a-f]{{10}}", str(identity))
    assert embedded_gain(environ, predictor_binary, str(identity)) > 1.2


def test_a_preempted_job_continues(
    slurm: Cluster, environ: dict[str, str], predictor_binary: Path, tmp_path: Path
) -> None:
    """The site has a shared predictor, and the ranks start the agents."""
    with serving(predictor_binary, tmp_path) as url:
        # The ranks wait at iteration 45 until the job is preempted.
        allowed = tmp_path / "allowed"
        records.allow(allowed, 45)
        shared = {**environ, "EVENSTEP_SERVER": url, "EVENSTEP_AGENT": "auto", "ALLOWED": str(allowed)}
        job = slurm.submit(str(EXAMPLES / "slurm" / "train.sbatch"), *script(tmp_path), environ=shared)
        until_checkpoint(job, 40)
        both = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
        slurm.submit("--partition=urgent", *both, "--wrap=true").wait()
        records.allow(allowed, records.ITERATIONS)
        said = job.wait()
        [identity] = [one["job_id"] for one in fetch_json(f"{url}/v1/jobs")["jobs"]]
        assert fetch_json(f"{url}/v1/jobs/{identity}")["next_iteration"] >= records.ITERATIONS
        assert gain(url, identity) > 1.2
        nodes = {node["node"] for node in fetch_json(f"{url}/v1/nodes")["nodes"]}
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job.number), said
    assert len(re.findall(r"iteration 10: ", said)) == 1, "the requeued job did not resume"
    assert nodes == {"n1", "n2"}
    computed = records.read(tmp_path / "records")
    records.check_samples(computed)
    assert {record.job for record in computed} == {identity}
    assert len({record.group for record in computed}) == 2
    # An undisturbed run has the same losses.
    alone = {**environ, "EVENSTEP_SERVER": "off", "PACES": '{"default": 0}', "RECORDS": str(tmp_path / "home")}
    (tmp_path / "alone").mkdir()
    launch = ["--nodes=1", "--ntasks=1", str(EXAMPLES / "slurm" / "train.sbatch"), str(PACED), str(ELASTIC)]
    records.check_losses(said, slurm.submit(*launch, str(tmp_path / "alone"), environ=alone).wait())
    until_nothing_runs(environ)


def test_nodes_of_two_kinds(slurm: Cluster, environ: dict[str, str], predictor_binary: Path, tmp_path: Path) -> None:
    slurm.submit(str(EXAMPLES / "slurm" / "mixed.sbatch"), *script(tmp_path), environ=environ).wait()
    until_nothing_runs(environ)
    computed = records.read(tmp_path / "records")
    records.check_samples(computed)
    assert {record.ranks for record in computed} == {2}
    assert embedded_gain(environ, predictor_binary, str(computed[0].job)) > 1.2


def test_the_tasks_of_an_array_are_separate_jobs(
    slurm: Cluster, environ: dict[str, str], predictor_binary: Path, tmp_path: Path
) -> None:
    with serving(predictor_binary, tmp_path) as url:
        shared = {**environ, "EVENSTEP_SERVER": url, "PACES": '{"0": 3e-4, "1": 1e-4}'}
        # The batch script has one argument for the script.
        run = tmp_path / "run.py"
        source = f"sys.argv[1:1] = [{str(ELASTIC)!r}]\nrunpy.run_path({str(PACED)!r}, run_name='__main__')\n"
        run.write_text(f"import runpy, sys\n{source}")
        arguments = [str(run), str(tmp_path / "checkpoints")]
        job = slurm.submit(str(EXAMPLES / "slurm" / "array.sbatch"), *arguments, environ=shared)
        job.wait()
        identities = {one["job_id"] for one in fetch_json(f"{url}/v1/jobs")["jobs"]}
    assert {re.sub(r"-[0-9a-f]{10}$", "", identity) for identity in identities} == {
        f"elastic-{job.number}_{task}" for task in (0, 1)
    }


def test_an_elastic_job_continues_when_a_task_is_killed(
    slurm: Cluster, environ: dict[str, str], tmp_path: Path
) -> None:
    """Task 1 is killed and task 0 trains on, in one step of the job: the store and the group are evenstep's."""
    elastic, folder = ROOT / "python" / "tests" / "elastic", tmp_path / "records"
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    train = tmp_path / "train.py"
    train.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(elastic)!r})\n"
        "import elastic_worker\n"
        "events = {9: ['SIGKILL', 'begin']} if os.environ['SLURM_PROCID'] == '1' else {}\n"
        f"elastic_worker.main({str(folder)!r}, {{'epochs': 2, 'environ': {{'WORLD_SIZE': '2'}}, 'events': events}})\n"
    )
    step = f"srun --no-kill --kill-on-bad-exit=0 python {train} || test $? = 137"
    both = ["--nodes=2", "--ntasks-per-node=1", f"--wrap={step}"]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "EVENSTEP_SERVER": "off"}
    job = slurm.submit(*both, environ={**environ, **own})
    job.wait()
    logs = [int(path.stem) for path in folder.glob("*.log")]
    assert elastic_runs.Run(None, folder, {}, logs).check() == 20, job.said()
    until_nothing_runs(environ)
