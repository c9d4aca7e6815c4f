"""Driver readings from a real agent, from `/proc`, and from the available one of both."""

import json
import math
import re
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import SettingError
from evenstep.measure.drivers import NAMES, Drivers
from evenstep.measure.drivers.counter import SNAPSHOT_SPACING_S, TICK_LOOKBACK_S, Counter, Lookback
from evenstep.measure.drivers.host import (
    CpuTimes,
    busy_share,
    parse_memory_used,
    parse_running,
    parse_stat,
    pressure_total_us,
)
from evenstep.measure.drivers.proc import FromProc
from evenstep.measure.drivers.process import parse_wait_ns
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


def test_the_kernels_texts_are_understood() -> None:
    stat = (
        b"cpu  4337 1 2246 162907 238 3 46 12 5 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 9 9\n"
        b"ctxt 240424\nprocs_running 3\nprocs_blocked 2\nsoftirq 1\n"
    )
    assert parse_stat(stat) == (CpuTimes(busy=6633, idle=162907, iowait=238, steal=12), 2)
    assert parse_running(b"0.11 0.09 0.03 7/99 5175\n") == 7
    pressure = b"some avg10=13.74 avg60=2.90 avg300=0.87 total=6499321\nfull avg10=0.00 total=7\n"
    assert pressure_total_us(pressure) == 6499321
    assert parse_memory_used(b"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n") == 0.75
    assert parse_wait_ns(b"17 64216911 1\n") == 64216911


@pytest.mark.parametrize("text", [None, b"", b"cpu  1 2 x 4\n", b"some avg10=0.0\n", b"MemTotal: 5 kB\n", b"1"])
def test_texts_that_are_not_the_kernels_give_nothing_rather_than_zero(text: bytes | None) -> None:
    assert parse_stat(text) == (None, None)
    assert parse_running(text) is None
    assert pressure_total_us(text) is None
    assert parse_memory_used(text) is None
    assert parse_wait_ns(text) is None


def test_shares_of_cpu_time_are_shares() -> None:
    then, now = CpuTimes(100, 100, 10, 0), CpuTimes(130, 160, 15, 5)
    assert busy_share(now, then) == 0.3
    assert busy_share(then, now) is None
    assert busy_share(now, now) is None


@given(start=st.integers(0, 1 << 40), steps=st.lists(st.integers(0, 1 << 40), min_size=1))
def test_differences_add_up_to_the_whole_rise(start: int, steps: list[int]) -> None:
    counter = Counter()
    assert counter.advance(start) is None
    value, total = start, 0.0
    for step in steps:
        value += step
        rise = counter.advance(value)
        assert rise is not None
        total += rise
    assert total == sum(steps)
    assert counter.advance(value - 1) is None, "a decreasing counter gives no difference"
    assert counter.advance(None) is None
    assert counter.advance(value) is None, "the time before was not observed"


@given(steps_ms=st.lists(st.integers(0, 400), min_size=2, max_size=200))
def test_a_look_back_is_long_enough_and_hardly_longer_than_needed(steps_ms: list[int]) -> None:
    lookback: Lookback[int] = Lookback()
    at_ms = 0
    for step in steps_ms:
        at_ms += step
        found = lookback.advance(at_ms / 1e3, at_ms)
        if found is not None:
            age_s, then_ms = found
            assert math.isclose(age_s, (at_ms - then_ms) / 1e3, abs_tol=1e-9)
            longest_s = TICK_LOOKBACK_S + SNAPSHOT_SPACING_S + max(steps_ms) / 1e3
            assert TICK_LOOKBACK_S <= age_s <= longest_s + 1e-9
    assert lookback.advance(at_ms / 1e3, None) is None
    assert lookback.advance(at_ms / 1e3 + 1, 0) is None


def test_the_first_reading_has_what_needs_no_window() -> None:
    readings = FromProc().read(0.0)
    assert_laws(readings)
    assert not (WINDOWED | TICKED) & set(readings)
    assert readings["procs_running"] >= 1
    assert 0 < readings["memory_used"] < 1


def test_own_cpu_is_the_cpu_that_was_used() -> None:
    reader = FromProc()
    before = time.process_time()
    reader.read(10.0)
    begun = time.process_time()
    burn(0.05)
    ended = time.process_time()
    readings = reader.read(12.0)
    after = time.process_time()
    assert_laws(readings)
    assert set(readings) >= WINDOWED
    assert (ended - begun) / 2 <= readings["own_cpu"] <= (after - before) / 2


def test_readings_that_count_in_ticks_wait_for_their_look_back() -> None:
    reader = FromProc()
    reader.read(0.0)
    assert not TICKED & set(reader.read(0.02))
    burn(0.05)
    readings = reader.read(0.15)
    assert set(readings) >= TICKED
    assert_laws(readings)


def test_an_empty_window_has_no_rates() -> None:
    reader = FromProc()
    reader.read(1.0)
    readings = reader.read(1.0)
    assert not WINDOWED & set(readings)
    assert "procs_running" in readings


def test_threads_that_come_and_go_are_never_negative() -> None:
    reader = FromProc()
    reader.read(0.0)
    for second in range(1, 10):
        threads = [threading.Thread(target=burn, args=(0.001,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        readings = reader.read(float(second))
        assert_laws(readings)
        assert "run_queue_wait" in readings
        for thread in threads:
            thread.join()


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
