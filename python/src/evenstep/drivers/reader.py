"""The fresh readings of this process at the boundary of an iteration, from wherever they are to be had."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from evenstep.drivers.agent import AGENT_TIMEOUT_S, DEFAULT_AGENT, FromAgent
from evenstep.drivers.names import NAMES, OF_THE_MOMENT
from evenstep.drivers.proc import FromProc

AGENT_PAUSE_S = 5.0
"""An agent that did not answer is asked again after this many seconds."""

SAME_PROCESS_RATIO = 2.0
"""Where resident memory by the agent differs more than this from our own, it reads another process."""


class Drivers:
    """The reader of the process that makes it: the node's agent where one answers, else `/proc`.

    Shares and rates are over the window since the last call, whichever source it is from; those that count in
    ticks (`cpu_busy`, `other_cpu`) look back at least 100 ms. What cannot be read is absent, never 0, so the
    first reading has only what needs no window. One thread uses a reader.
    """

    def __init__(
        self,
        agent: str | None = None,
        *,
        gpu: int | None = None,
        timeout_s: float = AGENT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads nothing yet.

        Args:
            agent: Base URL of the node's agent. `None`: where agents listen by default. Empty: ask none.
            gpu: Index of this process's GPU in NVML's order: only an agent reads GPUs.
            timeout_s: How long the agent's answer may take, in seconds: meanwhile the training waits.
            clock: Counts seconds and never goes back.

        Raises:
            SettingError: `agent` is no base URL.
        """
        url = DEFAULT_AGENT if agent is None else agent
        self._agent = FromAgent(url, gpu=gpu, timeout_s=timeout_s) if url else None
        self._proc: FromProc | None = None
        self._clock = clock
        self._ask_at = -float("inf")
        self._agent_has_window = False
        self.source = "nothing"
        """Where the last reading is from: `agent` or `proc`."""

    def read(self) -> dict[str, float]:
        """The readings that can be had now, by name, in the order of `NAMES`."""
        now = self._clock()
        asked = self._ask(now)
        if asked is not None and (self._agent_has_window or self._proc is None):
            # Where we have not asked before, its window is that of whoever asked for this process last.
            known = NAMES if self._agent_has_window else OF_THE_MOMENT
            self._agent_has_window = True
            self._proc = None
            self.source = "agent"
            return {name: asked[name] for name in NAMES if name in asked and name in known}
        # Where the agent answers again its window is not ours: it began when we last asked. The next one is.
        self._agent_has_window = asked is not None
        if self._proc is None:
            # Nothing is known of the window that ends now: the agent watched it, and is gone.
            self._proc = FromProc()
        self.source = "proc"
        return self._proc.read(now)

    def _ask(self, now: float) -> dict[str, float] | None:
        if self._agent is None or now < self._ask_at:
            return None
        asked = self._agent.read()
        if asked is None or not (self._agent_has_window or is_ours(asked)):
            self._ask_at = now + AGENT_PAUSE_S
            return None
        return asked


def is_ours(asked: dict[str, float]) -> bool:
    """Whether an agent's reading is of this process.

    An agent outside our container counts processes otherwise, and reads another one by our number.
    """
    theirs, ours = asked.get("rss_bytes"), resident_bytes()
    if theirs is None or ours is None:
        return theirs is not None
    return max(theirs, ours) <= SAME_PROCESS_RATIO * min(theirs, ours)


def resident_bytes() -> int | None:
    """Memory of this process that is resident, in bytes; `None` where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
