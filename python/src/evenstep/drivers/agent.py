"""The boundary reading of this process from the node's agent, `GET /sample`."""

import json
import math
import os

from evenstep.errors import SettingError
from evenstep.wire.http import Connection, ExchangeError
from evenstep.wire.servers import parse_base

DEFAULT_AGENT = "http://127.0.0.1:7118"
"""Where an agent listens by itself."""

AGENT_TIMEOUT_S = 0.02
"""A reading that takes longer is not fresh any more."""


class FromAgent:
    """An agent's reader for this process; its windows are its own, since it was last asked."""

    def __init__(
        self,
        agent: str,
        *,
        gpu: int | None = None,
        timeout_s: float = AGENT_TIMEOUT_S,
    ) -> None:
        """Prepares a connection.

        Args:
            agent: Base URL of the agent on this node.
            gpu: Index of this process's GPU in NVML's order, if it has one.
            timeout_s: How long an answer may take, in seconds.

        Raises:
            SettingError: `agent` is no base URL.
        """
        if parse_base(agent) is None:
            raise SettingError(f"agent {agent!r}: must be like {DEFAULT_AGENT}")
        self._timeout_s = timeout_s
        self._connection = Connection(agent.rstrip("/"))
        self._path = f"/sample?pid={os.getpid()}" + (f"&gpu={gpu}" if gpu is not None else "")

    def read(self) -> dict[str, float] | None:
        """All that it reads of this process and its machine, by name; `None` where it does not answer."""
        try:
            answer = self._connection.exchange("GET", self._path, None, self._timeout_s)
        except ExchangeError:
            return None
        return parse_sample(answer.body) if answer.status == 200 else None


def parse_sample(body: bytes) -> dict[str, float] | None:
    """The readings in an answer of `/sample`: numbers that are finite. `None` where it is no such answer."""
    try:
        readings = json.loads(body)["readings"].items()
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    return {
        name: float(value)
        for name, value in readings
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
