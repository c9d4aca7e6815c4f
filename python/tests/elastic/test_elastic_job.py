"""Workers join and leave an elastic job: no sample is lost or doubled, and parameters equal one process."""

import os
import random
import re
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runs import Forks, run
from evenstep.elastic import reconfigure
from programs import serving

pytestmark = pytest.mark.skipif(bool(reconfigure.supported()), reason=str(reconfigure.supported()))


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.mark.parametrize("killed", [[2], [0], [1, 3]], ids=["one", "first", "two"])
def test_killed_workers(forks: Forks, tmp_path: Path, killed: list[int]) -> None:
    """Children of a killed worker, here of its DataLoader, may outlive it: no worker waits for ``hang_s``."""
    num_workers = int(killed == [2])
    with run(forks, tmp_path, 4, has_store=killed != [0], hang_s=300.0, num_workers=num_workers) as job:
        for rank in range(4):
            job.start(events={5: ["SIGKILL", "begin"]} if rank in killed else {})
        codes = job.end()
        assert [rank for rank, code in enumerate(codes) if code] == killed, job.told()
        assert job.check() == 20


@pytest.mark.parametrize(
    ("losing", "killed", "at"),
    [([1], None, 6), ([1, 2], 3, 6), ([1, 2, 3], 0, 6), ([1, 2], None, 19)],
    ids=["one", "with a death", "only one had them", "at the end"],
)
def test_a_worker_has_the_sums_and_another_has_not(
    forks: Forks, tmp_path: Path, losing: list[int], killed: int | None, at: int
) -> None:
    """Of four workers, some lack the sums of an iteration, and one that has them may die before it steps."""
    with run(forks, tmp_path, 4, min_workers=1 if at < 19 else 4) as job:
        for rank in range(4):
            events = {at: ["SIGKILL", "summed"]} if rank == killed else {}
            job.start(events=events, **({"loses": at} if rank in losing else {}))
        codes = job.end()
        assert [rank for rank, code in enumerate(codes) if code] == ([] if killed is None else [killed]), job.told()
        assert job.check() == 20


@pytest.mark.parametrize(
    ("notice", "options"),
    [("SIGTERM", {}), ("SIGUSR1", {"plan": True}), ("leave", {"num_workers": 1})],
    ids=["even", "plan", "loader workers"],
)
def test_a_worker_comes_and_one_gets_a_notice(
    forks: Forks, tmp_path: Path, notice: str, options: dict[str, Any]
) -> None:
    """Only the first worker has loaded the checkpoint's parameters; the one that comes has another checkpoint."""
    with run(forks, tmp_path, 2, pause_s=0.02, epochs=5, checkpoint=0, **options) as job:
        first, leaving = job.start(), job.start(seed=3, events={40: ["leave", "begin"]} if notice == "leave" else {})
        job.until("completes", 3)
        comes = job.start(seed=7, checkpoint=9)
        job.until("completes", 0, comes)
        if notice != "leave":
            os.kill(leaving, getattr(signal, notice))
        assert job.end() == [0, 0, 0], job.told()
        assert any("leaves" in line for line in job.lines(leaving))
        assert any(line.get("handled") for line in job.lines(leaving)) == (notice == "SIGTERM")
        assert job.check() == 50
        assert all(line["iteration"] == 50 for pid in (first, comes) for line in job.lines(pid) if "parameters" in line)


def test_a_hung_worker_is_left_out_and_returns(forks: Forks, tmp_path: Path) -> None:
    with run(forks, tmp_path, 3, pause_s=0.05, epochs=8, hang_s=1.0) as job:
        hung = [job.start(events={4: ["SIGSTOP", "begin"]}), job.start(), job.start()][0]
        job.until("completes", 6)
        os.kill(hung, signal.SIGCONT)
        assert job.end() == [0, 0, 0], job.told()
        assert job.check() == 80
        assert any(line.get("completes", 0) > 6 for line in job.lines(hung))


def test_the_only_worker_with_the_state_hangs(forks: Forks, tmp_path: Path) -> None:
    """A worker that comes waits for the state instead of starting over."""
    with run(forks, tmp_path, 1, pause_s=0.02, epochs=4, hang_s=1.0) as job:
        first = job.start(stops=True)
        job.until("completes", 2)
        comes = job.start(seed=7)
        job.until_told("could not be formed", comes)
        os.kill(first, signal.SIGCONT)
        assert job.end() == [0, 0], job.told()
        assert job.check() == 40
        assert any("completes" in line for line in job.lines(comes))


def test_the_state_is_lost(forks: Forks, tmp_path: Path) -> None:
    with run(forks, tmp_path, 1, max_workers=1) as job:
        job.start(events={9: ["SIGKILL", "begin"]}, pause_s=0.1)
        job.until("completes", 0)
        job.start()
        assert job.end() == [-signal.SIGKILL, 1], job.told()
        assert "no living worker has the state" in job.told()


def test_a_scheduler_outside_of_the_block(forks: Forks, tmp_path: Path) -> None:
    with run(forks, tmp_path, 2, outside=True) as job:
        job.start()
        job.start()
        assert job.end() == [1, 1], job.told()
        assert job.told().count("stepped outside of `with job.step()`") >= 2


def test_a_scaler_leaves_out_a_step(forks: Forks, tmp_path: Path) -> None:
    with run(forks, tmp_path, 2, scaler=True, epochs=1) as job:
        job.start()
        job.start()
        assert job.end() == [0, 0], job.told()
        assert all(line["iteration"] == 10 for pid in job.pids for line in job.lines(pid) if "parameters" in line)


def test_random_kills(forks: Forks, tmp_path: Path) -> None:
    """EVENSTEP_TESTS_KILLS kills, each followed by a worker that comes, among 4 to 8 workers."""
    kills, chance = int(os.environ.get("EVENSTEP_TESTS_KILLS", "2")), random.Random(7)  # noqa: S311
    with run(forks, tmp_path, 6, pause_s=0.01, epochs=100_000, hang_s=300.0) as job:
        living = [job.start() for _ in range(6)]
        job.until("completes", 1)
        for _ in range(kills):
            for _ in range(chance.randint(1, 2)):
                if len(living) > 4:
                    os.kill(living.pop(chance.randrange(len(living))), signal.SIGKILL)
            at = max(line["completes"] for line in job.lines(living[0]) if "completes" in line)
            job.until("completes", at + chance.randint(1, 6), living[0])
            while len(living) < chance.randint(6, 8):
                living.append(job.start(seed=chance.randint(1, 99)))
            job.until("completes", 0, living[-1])
        for pid in living:
            os.kill(pid, signal.SIGTERM)
        codes = job.end()
        assert codes == [0 if pid in living else -signal.SIGKILL for pid in job.pids], job.told()
        iterations = job.check()
        texts = [path.read_text() for path in tmp_path.glob("*.text")]
        found = [float(ms) for text in texts for ms in re.findall(r"([\d.]+) ms after the failure", text)]
        print(f"{kills} kills, {len(job.pids)} workers, {iterations} iterations; from the detection to the end of the ")
        print(f"next step: median {statistics.median(found):.0f} ms, largest {max(found):.0f} ms, {len(found)} times")


def test_a_predictor_plans_for_each_generation(forks: Forks, predictor_binary: Path, tmp_path: Path) -> None:
    """The second worker is slow until the first one dies, and then the third one: shares follow in both generations."""
    with serving(predictor_binary, tmp_path) as url, run(forks, tmp_path, 3, server=url, epochs=12) as job:
        for rank in range(3):
            slow_s = {"1": 0.004 * (rank == 1), "2": 0.004 * (rank == 2)}
            job.start(slow_s=slow_s, events={30: ["SIGKILL", "begin"]} if rank == 0 else {})
        assert job.end() == [-signal.SIGKILL, 0, 0], job.told()
        assert job.check() == 120
        for generation in (1, 2):
            second, third = (
                [len(line["ids"]) for line in job.lines(pid) if line.get("generation") == generation and "ids" in line]
                for pid in job.pids[1:]
            )
            slower, faster = (second, third) if generation == 1 else (third, second)
            assert slower[-1] < faster[-1], (generation, second, third, job.told())
