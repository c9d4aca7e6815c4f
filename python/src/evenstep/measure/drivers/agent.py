"""Readings of this process from the node's agent, `GET /sample`."""

import json
import math
import os
from urllib.parse import quote

from evenstep._native import Http
from evenstep.errors import EvenstepError, SettingError
from evenstep.settings.connection import client_tls

DEFAULT_AGENT = "http://127.0.0.1:7118"
"""The default address of an agent."""

AGENT_TIMEOUT_S = 0.02
"""Timeout of a reading in seconds; a later one would not be fresh."""


class FromAgent:
    """Reads this process through the agent. Each window starts at the previous request of this reader."""

    def __init__(
        self,
        agent: str,
        *,
        gpu: str | None = None,
        timeout_s: float = AGENT_TIMEOUT_S,
    ) -> None:
        """Prepares a connection.

        Args:
            agent: Base URL of the agent on this node, or its Unix socket as ``unix:///PATH``, which also works from
                a container with other process ids.
            gpu: UUID or PCI address of this process's GPU, if it has one.
            timeout_s: Timeout of a request, in seconds.

        Raises:
            SettingError: `agent` is not a base URL, or a TLS file cannot be used.
        """
        tls = client_tls()
        try:
            self._connection = Http(agent, tls)
        except SettingError as error:
            raise SettingError(
                f"agent {agent!r}: must be a base URL such as {DEFAULT_AGENT}, or a socket such as "
                "unix:///run/evenstep/agent.sock"
            ) from error
        self._timeout_s = timeout_s
        # Over a Unix socket, the kernel tells the agent which process this is.
        pid = "self" if agent.startswith("unix:") else os.getpid()
        self._path = f"/sample?pid={pid}" + (f"&gpu={quote(gpu)}" if gpu is not None else "")

    def read(self) -> dict[str, float] | None:
        """Returns the readings of this process and its machine by name; `None` if the agent does not respond."""
        try:
            answer = self._connection.get(self._path, self._timeout_s)
        except EvenstepError:
            return None
        return parse_sample(answer.body) if answer.status == 200 else None


def parse_sample(body: bytes) -> dict[str, float] | None:
    """Returns the finite readings in a response of `/sample`; `None` if the body is not such a response."""
    try:
        readings = json.loads(body)["readings"].items()
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    return {
        name: float(value)
        for name, value in readings
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
