"""The facts about the launcher: names of workers, restarts, and ids of jobs that survive them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenstep.errors import SettingError
from evenstep.settings import job_id, launcher
from evenstep.settings.settings import Settings

STEP = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_CLUSTER_NAME": "blue", "SLURMD_NODENAME": "n1"}


def name(environ: dict[str, str], pid: int = 7) -> str:
    return job_id.automatic(environ, "train.py", pid, pid + 1, Path("/nowhere"))


def test_workers_are_named_after_slurms_nodes() -> None:
    assert Settings.read({**STEP, "SLURM_LOCALID": "2"}, "host").worker == "n1/2"
    # torchrun in a task of srun.
    assert Settings.read({**STEP, "SLURM_LOCALID": "0", "LOCAL_RANK": "3"}, "host").worker == "n1/3"
    assert Settings.read({"LOCAL_RANK": "1"}, "host").worker == "host/1"
    assert Settings.read({**STEP, "EVENSTEP_NODE": "given"}, "host").worker == "given/host/0"
    assert Settings.read({**STEP, "EVENSTEP_WORKER": "mine/0"}, "host").worker == "mine/0"


def test_requeues_are_restarts() -> None:
    assert Settings.read({}, "host").restarts == 0
    assert Settings.read({"SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, "host").restarts == 3
    with pytest.raises(SettingError, match="SLURM_RESTART_COUNT='x': must be a whole number"):
        Settings.read({"SLURM_RESTART_COUNT": "x"}, "host")


def test_a_requeued_job_has_the_same_id() -> None:
    first = name(STEP)
    assert first.startswith("train-1234-")
    torchrun = {"TORCHELASTIC_RUN_ID": "1234", "SLURM_RESTART_COUNT": "1"}
    assert name({**STEP, **torchrun, "SLURMD_NODENAME": "n2"}, pid=99) == first
    for other in ({"SLURM_JOB_ID": "1235"}, {"SLURM_STEP_ID": "1"}, {"SLURM_CLUSTER_NAME": "red"}):
        assert name({**STEP, **other}) != first


def test_tasks_of_an_array_have_their_own_ids() -> None:
    task = {**STEP, "SLURM_ARRAY_JOB_ID": "1230", "SLURM_ARRAY_TASK_ID": "4"}
    assert name(task).startswith("train-1230_4-")
    assert name(task) != name({**task, "SLURM_ARRAY_TASK_ID": "5"})
    assert name(task) == name({**task, "SLURM_JOB_ID": "1299"})


def test_without_a_step_a_process_of_torchrun_is_a_job() -> None:
    """A batch script without srun, or a shell of salloc, may run several trainings."""
    no_step = {key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"}
    assert name(no_step, pid=7) != name(no_step, pid=99)


def test_a_run_of_ray_has_a_name_and_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(run_id: str) -> None:
        train = SimpleNamespace(get_context=lambda: SimpleNamespace(get_experiment_name=lambda: "my run"))
        context = SimpleNamespace(train_run_context=SimpleNamespace(run_id=run_id))
        monkeypatch.setitem(sys.modules, "ray.train", train)
        module = SimpleNamespace(get_train_context=lambda: context)
        monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.context", module)

    in_worker("a")
    first = name({})
    assert first.startswith("my-run-")
    assert name({}, pid=99) == first
    assert launcher.restarts({}) == 1
    in_worker("b")
    assert name({}) != first, "the next call of fit() would continue the job"


def test_torchruns_folder_keeps_the_ids_of_jobs(tmp_path: Path) -> None:
    def of(attempt: int, rank: int = 0) -> dict[str, str]:
        return {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "run_x" / f"attempt_{attempt}" / str(rank) / "error.json")}

    (tmp_path / "run_x").mkdir()
    assert launcher.earlier_jobs(of(0)) == []
    launcher.keep_job(of(0), ["a", "b"])
    assert launcher.earlier_jobs(of(1, rank=3)) == ["a", "b"]
    for text in ("no JSON", "{}", "[1]", "[" + '"a", ' * 20_000 + '"a"]'):
        (tmp_path / "run_x" / "evenstep-jobs.json").write_text(text)
        assert launcher.earlier_jobs(of(1)) == [], text[:10]


@pytest.mark.parametrize("path", ["", "/dev/null", "/a/b/c/error.json", "/nowhere/run/attempt_0/0/error.json"])
def test_other_folders_keep_nothing(path: str) -> None:
    launcher.keep_job({"TORCHELASTIC_ERROR_FILE": path}, ["a"])
    assert launcher.earlier_jobs({"TORCHELASTIC_ERROR_FILE": path}) == []
