"""Driver readings from a real agent, from `/proc`, and from the available one of both."""

import json
import math
import re
import time
from itertools import pairwise

import pytest

from evenstep._native import Sensors
from evenstep.errors import SettingError
from evenstep.measure.drivers import NAMES, Drivers
from evenstep.measure.drivers.reader import AGENT_PAUSE_S, resident_bytes
from programs import ROOT
from scripted import HANGS, Answers, Does, Scripted, unused_address

SHARES = ("psi_cpu_some", "psi_memory_some", "psi_io_some", "cpu_busy", "memory_used")
WINDOWED = {"own_cpu", "run_queue_wait", "voluntary_switches_per_s", "involuntary_switches_per_s"}
TICKED = {"cpu_busy", "other_cpu"}
PATIENCE_S = 30.0


def burn(cpu_s: float) -> None:
    """Uses ``cpu_s`` seconds of CPU time, by this process's own clock."""
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass


def assert_laws(readings: dict[str, float]) -> None:
    assert list(readings) == [name for name in NAMES if name in readings], "in the order of forecasts"
    for name, value in readings.items():
        assert math.isfinite(value), name
        assert value >= 0, name
    for name in SHARES:
        assert readings.get(name, 0) <= 1, name


def test_names_are_those_that_forecasts_take() -> None:
    source = (ROOT / "crates" / "protocol" / "src" / "telemetry.rs").read_text()
    values = dict(re.findall(r'pub const (\w+): &str = "(\w+)";', source))
    listed = re.search(r"pub const ALL: \[&str; \d+\] = \[(.*?)\];", source, re.DOTALL)
    assert listed is not None
    assert [values[name] for name in re.findall(r"\w+", listed[1])] == list(NAMES)


def test_the_first_reading_has_what_needs_no_window() -> None:
    readings = Sensors().read()
    assert_laws(readings)
    assert not (WINDOWED | TICKED) & set(readings)
    assert readings["procs_running"] >= 1
    assert 0 < readings["memory_used"] < 1


def test_own_cpu_is_the_cpu_that_was_used() -> None:
    reader = Sensors()
    started, before = time.monotonic(), time.process_time()
    reader.read()
    begun, first_read = time.process_time(), time.monotonic()
    burn(0.15)
    ended, last_read = time.process_time(), time.monotonic()
    readings = reader.read()
    after, stopped = time.process_time(), time.monotonic()
    assert_laws(readings)
    assert set(readings) >= WINDOWED | TICKED
    assert (ended - begun) / (stopped - started) <= readings["own_cpu"] <= (after - before) / (last_read - first_read)


def test_a_real_agent_reads_this_process(agent: str) -> None:
    drivers = Drivers(agent, timeout_s=PATIENCE_S)
    first = drivers.read()
    assert drivers.source == "agent"
    assert_laws(first)
    assert not WINDOWED & set(first)
    burn(0.15)
    readings = drivers.read()
    assert drivers.source == "agent"
    assert_laws(readings)
    assert set(readings) >= WINDOWED | TICKED
    assert readings["own_cpu"] > 0


def test_both_sources_tell_the_same(agent: str) -> None:
    from_agent, from_proc = Drivers(agent, timeout_s=PATIENCE_S), Drivers("")
    from_agent.read()
    from_proc.read()
    burn(0.3)
    by_agent, by_proc = from_agent.read(), from_proc.read()
    assert (from_agent.source, from_proc.source) == ("agent", "proc")
    assert set(by_agent) == set(by_proc)
    assert by_agent["memory_used"] == pytest.approx(by_proc["memory_used"], abs=0.1)


def sample(**readings: object) -> Answers:
    return Answers(body=json.dumps({"at_unix_ms": 0, "pid": 1, "readings": readings}).encode())


def ours(**readings: object) -> Answers:
    return sample(rss_bytes=resident_bytes(), **readings)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def reading(script: list[Does], *, gpu: str | None = None) -> tuple[Drivers, Scripted, Clock]:
    server, clock = Scripted(script), Clock()
    return Drivers(server.url, gpu=gpu, timeout_s=PATIENCE_S, clock=clock), server, clock


def test_an_agent_that_is_away_is_asked_only_now_and_then() -> None:
    drivers, server, clock = reading([HANGS])
    asked = []
    for now in (0.0, 1.0, AGENT_PAUSE_S - 0.1, AGENT_PAUSE_S, AGENT_PAUSE_S + 1):
        clock.now = now
        assert_laws(drivers.read())
        assert drivers.source == "proc"
        asked.append(len(server.heard()))
    assert asked == [1, 0, 0, 1, 0]


def test_an_agent_that_comes_back_is_believed_from_its_next_window_on() -> None:
    drivers, _, clock = reading([HANGS, ours(own_cpu=7.0), ours(own_cpu=8.0), HANGS])
    seen = []
    for now in (0.0, AGENT_PAUSE_S, AGENT_PAUSE_S + 1, AGENT_PAUSE_S + 2, AGENT_PAUSE_S + 3):
        clock.now = now
        burn(0.001)
        seen.append((drivers.read().get("own_cpu"), drivers.source))
    assert [source for _, source in seen] == ["proc", "proc", "agent", "proc", "proc"]
    own = [own_cpu for own_cpu, _ in seen]
    assert own[0] is None, "the first reading has no window"
    assert own[1] != 7.0, "that window began before the first request"
    assert own[2] == 8.0
    assert own[3] is None, "the agent observed that window, and is unreachable"
    assert own[4] is not None


def test_a_window_that_another_reader_began_is_not_ours() -> None:
    drivers, _, _ = reading([ours(own_cpu=7.0, procs_running=2), ours(own_cpu=8.0, procs_running=2)])
    assert drivers.read() == {"procs_running": 2.0}
    assert drivers.read() == {"own_cpu": 8.0, "procs_running": 2.0}


def test_an_agent_that_reads_another_process_is_not_believed() -> None:
    resident = resident_bytes()
    assert resident is not None
    drivers, _, _ = reading([sample(rss_bytes=resident * 10, own_cpu=1.0)])
    assert "own_cpu" not in drivers.read()
    assert drivers.source == "proc"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"readings": 5}', b"[" * 100_000, b"\xff"])
def test_an_agent_that_makes_no_sense_is_not_believed(body: bytes) -> None:
    drivers, _, _ = reading([Answers(body=body)])
    drivers.read()
    assert drivers.source == "proc"


def test_readings_that_are_no_numbers_are_absent() -> None:
    wrong = {"procs_running": "1", "procs_blocked": True, "memory_used": float("nan")}
    drivers, server, _ = reading([ours(**wrong, gpu_busy=1, brand_new=1.0, sm_clock_mhz=1410)], gpu="00000000:3B:00.0")
    assert drivers.read() == {"sm_clock_mhz": 1410.0, "gpu_busy": 1.0}
    assert server.heard()[0].split()[1].endswith("&gpu=00000000%3A3B%3A00.0")


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="agent 'nonsense'"):
        Drivers("nonsense")


def test_where_no_agent_is_wanted_none_is_asked() -> None:
    drivers = Drivers("")
    readings = [drivers.read() for _ in range(2)]
    assert drivers.source == "proc"
    for earlier, later in pairwise(readings):
        assert set(earlier) <= set(later)
    away = Drivers(unused_address())
    assert_laws(away.read())
    assert away.source == "proc"
