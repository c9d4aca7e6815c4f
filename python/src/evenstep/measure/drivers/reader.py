"""Current readings of this process at the boundary of an iteration, from the agent or `/proc`."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from evenstep._native import Sensors
from evenstep.measure.drivers.agent import AGENT_TIMEOUT_S, DEFAULT_AGENT, FromAgent
from evenstep.measure.drivers.names import NAMES, WINDOWLESS

AGENT_PAUSE_S = 5.0
"""Pause before the next request to an agent that did not respond, in seconds."""

SAME_PROCESS_RATIO = 2.0
"""Maximum difference between the agent's and the local resident memory; above it, the agent reads another process."""


class Drivers:
    """Reads its own process: from the node's agent if it responds, else from `/proc`.

    Shares and rates are over the window since the last call, from either source. Those counted in ticks (`cpu_busy`,
    `other_cpu`) look back at least 100 ms. Unavailable values are absent, never 0, so the first reading has only values
    that need no window. Use a reader from one thread only.
    """

    def __init__(
        self,
        agent: str | None = None,
        *,
        gpu: str | None = None,
        timeout_s: float = AGENT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without a reading.

        Args:
            agent: Base URL of the node's agent. `None` for the default address, empty for no agent.
            gpu: UUID or PCI address of this process's GPU; only an agent reads GPUs.
            timeout_s: Timeout of a request to the agent, in seconds; training waits meanwhile.
            clock: Monotonic clock in seconds, for the pause after an agent that did not respond.

        Raises:
            SettingError: `agent` is not a base URL.
        """
        url = DEFAULT_AGENT if agent is None else agent
        self._agent = FromAgent(url, gpu=gpu, timeout_s=timeout_s) if url else None
        self._proc: Sensors | None = None
        self._clock = clock
        self._ask_at = -float("inf")
        self._agent_has_window = False
        self.source = "nothing"
        """Source of the last reading: `agent` or `proc`."""

    def read(self) -> dict[str, float]:
        """Returns the available readings by name, in the order of `NAMES`."""
        now = self._clock()
        asked = self._ask(now)
        if asked is not None and (self._agent_has_window or self._proc is None):
            # At this reader's first request, the window started at the previous request for this process by any client.
            known = NAMES if self._agent_has_window else WINDOWLESS
            self._agent_has_window = True
            self._proc = None
            self.source = "agent"
            return {name: asked[name] for name in NAMES if name in asked and name in known}
        # After an outage of the agent, its window started at this reader's last request to it. The next window is
        # right.
        self._agent_has_window = asked is not None
        if self._proc is None:
            # The agent watched the window that ends now, and is unreachable, so nothing is known about it.
            self._proc = Sensors()
        self.source = "proc"
        return self._proc.read()

    def _ask(self, now: float) -> dict[str, float] | None:
        if self._agent is None or now < self._ask_at:
            return None
        asked = self._agent.read()
        if asked is None or not (self._agent_has_window or is_own_process(asked)):
            self._ask_at = now + AGENT_PAUSE_S
            return None
        return asked


def is_own_process(asked: dict[str, float]) -> bool:
    """Returns whether the agent's reading is of this process.

    An agent outside this container has other process ids, and reads another process with this id.
    """
    theirs, ours = asked.get("rss_bytes"), resident_bytes()
    if theirs is None or ours is None:
        return theirs is not None
    return max(theirs, ours) <= SAME_PROCESS_RATIO * min(theirs, ours)


def resident_bytes() -> int | None:
    """Returns the resident memory of this process in bytes; `None` if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
