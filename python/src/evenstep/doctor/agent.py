"""Checks of the node's agent: whether it responds, samples, and reads this process."""

import json
from typing import Any

from evenstep.doctor.check import Check
from evenstep.errors import EvenstepError, SettingError
from evenstep.measure.drivers.agent import FromAgent
from evenstep.measure.drivers.reader import is_own_process
from evenstep.settings.connection import connect


def check_agent(agent: str, *, timeout_s: float) -> list[Check]:
    """Checks the agent at a base URL; `timeout_s` is the timeout of each request in seconds."""
    name = f"agent {agent}"
    try:
        readings = FromAgent(agent).read()
        connection = connect(agent)
        health = connection.get("/healthz", timeout_s)
        said = connection.get("/status", timeout_s)
    except SettingError as error:
        return [Check(name, "failed", str(error), "correct EVENSTEP_AGENT")]
    except EvenstepError as error:
        advice = "start evenstep-agent on each node to get GPU readings; without it, /proc is read"
        return [Check(name, "warning", f"no agent is listening ({error})", advice)]
    status = _object(said.body)
    if status is None or said.status != 200:
        return [
            Check(name, "warning", ("the response does not come from an agent"), "is another program listening there?")
        ]
    node = f"node {status.get('node')}, version {status.get('version')}"
    if health.status != 200:
        why = (_object(health.body) or {}).get("detail", f"status {health.status}")
        return [Check(name, "warning", f"{node}: not sampling: {why}", "look at the agent's log")]
    return [_check_sampling(name, node, status), _check_uplink(name, status), _check_reading(name, readings)]


def _check_sampling(name: str, node: str, status: dict[str, Any]) -> Check:
    if status.get("synthetic") is True:
        advice = "start the agent without --demo-seed"
        return Check(name, "warning", f"{node}: the samples are simulated; the predictor does not use them", advice)
    return Check(name, "ok", f"{node}: {status.get('samples_taken')} samples taken")


def _check_uplink(name: str, status: dict[str, Any]) -> Check:
    name = f"{name} uplink"
    uplink = status.get("uplink")
    failure = uplink.get("last_failure") if isinstance(uplink, dict) else None
    if isinstance(uplink, dict) and failure and not uplink.get("samples_acknowledged"):
        found = f"{uplink.get('server')} has not accepted any sample yet: {failure}"
        return Check(name, "warning", found, "pass the predictor's address to the agent: --server")
    return Check(name, "ok", f"to {uplink.get('server')}" if isinstance(uplink, dict) else "not said")


def _check_reading(name: str, readings: dict[str, float] | None) -> Check:
    name = f"{name} reading"
    if readings is None:
        advice = "/proc is read instead; is the machine overloaded, or the agent outside this container?"
        return Check(name, "warning", "no fresh reading of this process within 20 ms", advice)
    if not is_own_process(readings):
        advice = "use the agent's --socket, or share the host's process ids (--pid=host); until then /proc is read"
        return Check(name, "warning", "the agent reads another process with this process id", advice)
    return Check(name, "ok", f"{len(readings)} readings of this process")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
