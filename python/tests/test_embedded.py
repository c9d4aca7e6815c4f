"""Training runs that start their own predictor and agent: real programs, in a folder of the test."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.errors import SettingError
from evenstep.settings import job_id
from evenstep.start import earlier, lines
from evenstep.start.local import AGENT, PREDICTOR, Local, LocalError, find_program, open_folder, programs, running
from evenstep.start.local.embedded import Embedded
from evenstep.start.local.folder import candidates
from programs import PATIENCE_S, ROOT, fetch_json
from ranks import run_ranks
from test_service import Paced
from training import Samples, loss_of, network, sgd

PACES_S = [0.002, 0.001]


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"EVENSTEP_SERVER": "", "EVENSTEP_HOME": str(home.parent), "PATH": os.environ["PATH"], **more}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def train(rank: int, epochs: int, at: dict[int, Callable[[], None]] | None = None) -> tuple[list[int], str | None]:
    """Returns this rank's local batches and the id of the job."""
    job = evenstep.init()
    loader = job.loader(Samples(), global_batch=16)
    model = job.wrap(DistributedDataParallel(Paced(network(), PACES_S[rank])))
    optimizer = sgd(model)
    batches = []
    for _ in range(epochs):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            step = job._run.current.step
            batches.append(step.local_batch)
            if at and rank == 0 and (act := at.get(step.iteration)):
                act()
    identity = job.state_dict().get("job")
    job.close()
    return batches, identity


def train_until_uneven(
    rank: int, start_s: float = programs.START_S, begin: Path | None = None
) -> tuple[list[int], str | None]:
    """Trains until the slow worker gets a smaller batch. Returns this rank's local batches and the id of the job."""
    programs.START_S = start_s
    job = evenstep.init()
    # Every iteration is whole, so shares differ only if the predictor has planned them.
    loader = job.loader(Samples(208), global_batch=16)
    model = job.wrap(DistributedDataParallel(Paced(network(), PACES_S[rank])))
    optimizer = sgd(model)
    batches: list[int] = []
    if begin:
        begin.touch()
    while not batches or not (batches[-1] < 8 if rank == 0 else batches[-1] > 8):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            batches.append(job._run.current.step.local_batch)
    identity = job.state_dict().get("job")
    job.close()
    return batches, identity


def kill_predictor(folder: Path) -> None:
    known = running(folder, PREDICTOR)
    assert known
    os.kill(known.pid, signal.SIGKILL)


class KillPredictor:
    """Kills the predictor of a folder, when called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> None:
        kill_predictor(self.folder)


def test_a_run_without_any_setting_gets_uneven_batches(home: Path) -> None:
    (slow, identity), (fast, other) = run_ranks(2, train_until_uneven, environ=environ(home))
    assert identity is not None
    assert identity == other
    assert (slow[0], fast[0]) == (8, 8)
    assert len(slow) == len(fast)
    # Both programs outlive the run, and the next run finds them.
    known = running(home, PREDICTOR)
    assert known
    assert running(home, AGENT)
    run_ranks(2, train, 1, environ=environ(home))
    assert running(home, PREDICTOR) == known
    jobs = [job["job_id"] for job in fetch_json(f"{known.url}/v1/jobs")["jobs"]]
    assert len(jobs) == 2, jobs
    assert identity in jobs


def test_the_next_run_of_a_script_begins_with_the_speeds_of_the_last_one(home: Path) -> None:
    first, _ = run_ranks(2, train, 12, environ=environ(home))[0]
    second, _ = run_ranks(2, train, 1, environ=environ(home))[0]
    assert first[0] == 8, "the first run of the script knows nothing"
    assert second[0] < 8, "the second run began with even shares"


def test_speeds_of_other_workers_or_devices_are_not_used(home: Path) -> None:
    (home / "speeds").mkdir()
    speeds = home / "speeds" / "train.json"
    workers = [{"worker": "a/0", "device": "cpu"}, {"worker": "a/1", "device": "cpu"}]
    speeds.write_text('{"a/0": ["cpu", 5], "a/1": ["cpu", 7.5], "b/0": ["cpu", 1]}')
    assert earlier.initial_speeds("/x/train.py", workers) == {"a/0": 5.0, "a/1": 7.5}
    assert earlier.initial_speeds("other.py", workers) == {}
    for told in ('{"a/0": ["cpu", 5], "a/1": ["gpu", 7.5]}', '{"a/0": ["cpu", 5]}', "[]", '{"a/0": 5}', "no JSON"):
        speeds.write_text(told)
        assert earlier.initial_speeds("/x/train.py", workers) == {}, told


def test_a_killed_predictor_is_started_again_during_the_run(home: Path) -> None:
    (slow, identity), (fast, _) = run_ranks(2, train, 40, {4: KillPredictor(home)}, environ=environ(home))
    assert len(slow) == len(fast)
    known = running(home, PREDICTOR)
    assert known, "the predictor was not started again"
    assert [job["job_id"] for job in fetch_json(f"{known.url}/v1/jobs")["jobs"]] == [identity]


def test_a_predictor_that_starts_slowly_is_used_once_it_is_ready(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped, begin = tmp_path / "bin" / "evenstep-predictor", tmp_path / "begin"
    wrapped.parent.mkdir()
    wait = f"until [ -e {begin} ]; do sleep 0.01; done"
    wrapped.write_text(f'#!/bin/sh\n{wait}\nexec {find_program("evenstep-predictor")} "$@"\n')
    wrapped.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapped.parent}{os.pathsep}{os.environ['PATH']}")
    (slow, _), (fast, _) = run_ranks(2, train_until_uneven, 0.01, begin, environ=environ(home))
    assert (slow[0], fast[0]) == (8, 8)
    assert len(slow) == len(fast)


@pytest.mark.parametrize("state", ["old store", "no program", "no folder"])
def test_training_continues_with_even_batches_if_no_predictor_can_start(home: Path, state: str) -> None:
    more = {}
    if state == "old store":
        (home / "evenstep.db").write_text("not a store")
    elif state == "no program":
        more = {"PATH": "/nowhere"}
    else:
        file = home.parent / "file"
        file.touch()
        more = {"EVENSTEP_HOME": str(file / "below")}
    results = run_ranks(2, train, 1, environ=environ(home, **more))
    assert all(set(batches[:-1]) == {8} for batches, _ in results)
    assert [identity for _, identity in results] == [None, None]


def test_off_trains_without_a_predictor(home: Path) -> None:
    run_ranks(2, train, 1, environ=environ(home, EVENSTEP_SERVER="off"))
    assert running(home, PREDICTOR) is None


def test_ranks_start_the_agent_also_with_a_shared_predictor(home: Path, predictor: str) -> None:
    shared = environ(home, EVENSTEP_SERVER=predictor, EVENSTEP_AGENT="auto", SLURMD_NODENAME="auto-node")
    run_ranks(2, train, 1, environ=shared)
    assert running(home, PREDICTOR) is None
    known = running(home, AGENT)
    assert known
    assert fetch_json(f"{known.url}/status")["node"] == "auto-node"


def test_a_reason_is_one_line(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "evenstep.db").write_text("not a store")
    assert Embedded.start(0, 0, with_agent=False).server is None
    (record,) = caplog.records
    text = record.getMessage()
    assert "is not an SQLite database" in text, text
    assert text.endswith("training continues with equal batches"), text
    assert "\n" not in text


def test_programs_end_after_their_last_user(home: Path) -> None:
    users = [Local(home), Local(home)]
    flags = ["--store", f"sqlite://{home / 'evenstep.db'}", "--linger-s", "1"]
    known = users[0].start(PREDICTOR, flags)
    assert users[1].start(PREDICTOR, flags) == known
    users[0].close()
    assert fetch_json(f"{known.url}/v1/jobs")
    users[1].close()
    wait_until(lambda: running(home, PREDICTOR) is None)


def test_an_older_program_is_replaced_at_the_same_address(home: Path) -> None:
    local = Local(home)
    flags = ["--store", f"sqlite://{home / 'evenstep.db'}"]
    first = local.start(PREDICTOR, flags)
    assert local.start(PREDICTOR, flags, version=first.version) == first
    # What this process has started is the newest program that it can find.
    assert local.start(PREDICTOR, flags, version="99.0.0") == first
    second = Local(home).start(PREDICTOR, flags, version="99.0.0")
    assert second.pid != first.pid
    assert second.url == first.url
    assert local.stop(PREDICTOR)
    assert not local.stop(PREDICTOR)
    local.close()


#: A program that has taken its place, and names itself when it may.
SLOW_PROGRAM = """#!{python}
import fcntl, json, os, pathlib, signal, time
home = pathlib.Path({home!r})
with (home / "predictor.json").open("r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    (home / "locked").touch()
    while not (home / "go").exists():
        time.sleep(0.01)
    file.truncate()
    file.write(json.dumps({{"url": "http://127.0.0.1:2", "pid": os.getpid(), "version": "0.1.0"}}))
    file.flush()
    signal.pause()
"""


def test_the_process_before_is_not_taken_for_the_one_that_starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "predictor.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1, "version": "0.1.0"}')
    path = home / "evenstep-predictor"
    path.write_text(SLOW_PROGRAM.format(python=sys.executable, home=str(home)))
    path.chmod(0o700)
    monkeypatch.setattr(programs, "find_program", lambda _name: path)

    class Polls(threading.Event):
        """Lets the program continue after its run file was read with a lock."""

        def wait(self, timeout: float | None = None) -> bool:
            if was_read.is_set():
                (home / "go").touch()
            elif (home / "locked").exists():
                was_read.set()
            return super().wait(timeout)

    was_read, local = threading.Event(), Local(home)
    local.closing = Polls()
    assert local.start(PREDICTOR, []).url == "http://127.0.0.1:2"
    assert local.stop(PREDICTOR)
    local.close()


def test_a_file_of_a_program_that_has_ended_is_not_believed(home: Path) -> None:
    (home / "predictor.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1, "version": "0.1.0"}')
    assert running(home, PREDICTOR) is None
    local = Local(home)
    assert local.start(PREDICTOR, ["--store", f"sqlite://{home / 'evenstep.db'}"]).pid != 1
    local.close()


@pytest.mark.usefixtures("home")
def test_many_processes_start_one_program() -> None:
    script = (
        "from evenstep.start.local import *; from evenstep.start.local.embedded import start_predictor; "
        "print(start_predictor(Local(open_folder())))"
    )
    children = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    urls = {child.communicate(timeout=PATIENCE_S)[0] for child in children}
    assert len(urls) == 1, urls
    assert urls.pop().startswith("http://127.0.0.1:")


def test_folders_are_tried_in_order() -> None:
    assert candidates({"EVENSTEP_HOME": "/a", "HOME": "/b"}, "host", 5) == [Path("/a/host")]
    home, temporary = candidates({"HOME": "/b"}, "a host", 5)
    assert home == Path("/b/.local/state/evenstep/a_host")
    assert temporary.name == "evenstep-5"
    assert candidates({"XDG_STATE_HOME": "/c", "HOME": "/b"}, "host", 5)[0] == Path("/c/evenstep/host")
    assert len(candidates({}, "host", 5)) == 1
    mounts = "disk / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ndisk /home/local xfs rw 0 0\n"
    on_network, on_disk = ({"HOME": home} for home in ("/home/ada", "/home/local/ada"))
    assert candidates(on_network, "host", 5, mounts)[0].name == "evenstep-5"
    assert candidates(on_disk, "host", 5, mounts)[0] == Path("/home/local/ada/.local/state/evenstep/host")


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    environ = {"EVENSTEP_HOME": str(tmp_path)}
    folder = open_folder(environ)
    folder.chmod(0o777)
    with pytest.raises(LocalError, match="others must not be able to write"):
        open_folder(environ)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(LocalError, match="evenstep-nothing is not installed"):
        find_program("evenstep-nothing")


def test_job_ids_are_stable_within_a_launch_and_differ_between_launches(tmp_path: Path) -> None:
    for pid, started in ((7, 100), (8, 200), (9, 300)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S " + "0 " * 18 + f"{started} 0")
    torchrun = {"TORCHELASTIC_RUN_ID": "sweep/7"}

    def name(environ: dict[str, str], pid: int, parent: int, script: str = "/x/my train.py") -> str:
        return job_id.automatic(environ, script, pid, parent, tmp_path)

    first = name(torchrun, 100, 7)
    assert first.startswith("my-train-sweep-7-")
    assert name(torchrun, 101, 7) == first, "a restart of the processes made a new job"
    assert name(torchrun, 100, 8) != first
    assert name({}, 9, 7) != name({}, 8, 7), "two processes of one shell made one job"
    random = {"TORCHELASTIC_RUN_ID": "c28cfde0-88ee-4d0d-99ff-b924ffa9f3b9"}
    assert len(name(random, 100, 7).split("-")) == 3
    assert name({}, 1, 1, "").startswith("job-")
    (tmp_path / "7" / "stat").write_text("7 (a (b) c) S " + "0 " * 18 + "999 0")
    assert name(torchrun, 100, 7) != first, "the process id was used again by another launch"


@pytest.mark.parametrize("late", [False, True])
def test_a_resumed_run_continues_its_job(home: Path, late: bool) -> None:
    state, _ = run_ranks(2, train_epoch, None, environ=environ(home))[0]
    _, resumed = run_ranks(2, train_epoch, state, late, environ=environ(home))[0]
    _, fresh = run_ranks(2, train_epoch, None, environ=environ(home))[0]
    assert resumed == state["job"]
    assert fresh != state["job"]


def train_epoch(_rank: int, state: dict[str, Any] | None, late: bool = False) -> tuple[dict[str, Any], str]:
    """Returns the state after an epoch, and the id of the job.

    ``late``: loads the state after it has made the loader.
    """
    job = evenstep.init()
    if state and not late:
        job.load_state_dict(state)
    loader = job.loader(Samples(), global_batch=16)
    if state and late:
        job.load_state_dict(state)
        assert job.state_dict()["job"] == state["job"]
    model = job.wrap(DistributedDataParallel(network()))
    for x, y, _index in loader:
        loss_of(model, x, y).backward()
    state = job.state_dict()
    job.close()
    return state, str(state["job"])


def test_a_restarted_run_that_was_long_without_a_predictor_continues_its_job(home: Path) -> None:
    """The predictor accepts any iteration from workers that have all joined again."""
    again = environ(home, TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT="1")
    state, identity = run_ranks(2, train_epoch, None, environ=again)[0]
    far = {**state, "iteration": state["iteration"] + 1000}
    _, continued = run_ranks(2, train_epoch, far, environ=again)[0]
    assert continued == identity


def test_the_summary_needs_a_predictor_and_says_where_the_page_is(predictor: str) -> None:
    assert lines.summary("http://127.0.0.1:9", "job") == []
    assert lines.summary(predictor, "unknown-job") == []


@pytest.mark.usefixtures("home")
def test_a_run_may_end_while_its_predictor_is_looked_for(tmp_path: Path) -> None:
    """The interpreter must not end while a native thread calls it: that would abort a successful training."""
    slow = tmp_path / "bin" / "evenstep-predictor"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    script = (
        "import sys; from evenstep.exchange.predictor import Predictor\n"
        "from evenstep.start.local.embedded import Embedded\n"
        "import evenstep.start.local.programs as programs\n"
        "embedded = Embedded.start(0, 0, with_agent=False)\n"
        "programs.START_S = 60.0\n"
        "begun = __import__('threading').Event()\n"
        "def find():\n    begun.set()\n    return embedded.find_server()\n"
        "p = Predictor('http://127.0.0.1:9', 'job', {'global_batch': 4}, [{'worker': 'a/0'}], find_server=find)\n"
        "p.open([0], None)\n"
        "begun.wait()\n"
        # Other threads may run while the interpreter ends.
        "import time\n"
        "class Last:\n    def __del__(self, sleep=time.sleep): sleep(0.3)\n"
        "last = Last()\n"
        "p.close(1.0); embedded.close(); print('end')\n"
    )
    path = f"{slow.parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python" / "src")}
    # The first start ends at the limit.
    script = "import evenstep.start.local.programs as early; early.START_S = 0.2\n" + script
    told = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, "end\n"), told.stderr


def test_a_second_job_of_a_process_has_another_id(home: Path) -> None:
    assert running(home, PREDICTOR) is None
    first, second = run_ranks(2, train_twice, environ=environ(home))[0]
    assert second == f"{first}-2"


def train_twice(_rank: int) -> tuple[str, str]:
    return train_epoch(0, None)[1], train_epoch(0, None)[1]


def test_a_single_process_starts_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "evenstep")
    with pytest.raises(SettingError):
        evenstep.init(quantum=0)
    loader = evenstep.init().loader(Samples(), global_batch=4)
    assert torch.is_tensor(next(iter(loader))[0])
    assert [record.message for record in caplog.records if "one process" in record.message]
    assert running(home, PREDICTOR) is None
