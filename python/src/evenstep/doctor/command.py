"""`evenstep doctor`: one line per check, with a recommended action."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenstep.doctor.agent import check_agent
from evenstep.doctor.check import Check, all_passed
from evenstep.doctor.local import check_local
from evenstep.doctor.ranks import compare, gather_facts, read_place
from evenstep.doctor.service import check_job, check_servers
from evenstep.doctor.versions import check_devices, check_versions, installed
from evenstep.errors import SettingError
from evenstep.measure.drivers.agent import DEFAULT_AGENT
from evenstep.settings.connection import client_tls
from evenstep.settings.settings import AUTO, OFF
from evenstep.start.local import AGENT, PREDICTOR, local_url

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # It has no public name.

TIMEOUT_S = 2.0
"""Timeout of each request, in seconds."""


def add_arguments(subparsers: "Subparsers") -> None:
    """Adds the `doctor` command to a command line."""
    parser = subparsers.add_parser("doctor", help="check everything that training needs", description=__doc__)
    parser.add_argument(
        "--server", help="predictor URLs, comma-separated; default EVENSTEP_SERVER, else the one that runs start"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs all checks and returns 1 if one failed, else 0. Only rank 0 prints the result."""
    place, environment = read_place(os.environ)
    server = os.environ.get("EVENSTEP_SERVER") if arguments.server is None else arguments.server
    job, agent = os.environ.get("EVENSTEP_JOB"), os.environ.get("EVENSTEP_AGENT")
    versions = installed()
    checks = [check_versions(versions), check_devices(), environment]
    tls = check_tls()
    # Without valid files, no request can be sent.
    checks += tls or _check_services(server, job, agent, versions.get("evenstep"))
    if place is not None:
        settings = {"EVENSTEP_SERVER": server, "EVENSTEP_JOB": job}
        told = {name: value for name, value in settings.items() if value}
        try:
            checks += compare(gather_facts(place, os.environ, versions, told, checks))
        except (RuntimeError, ImportError) as error:
            advice = "is MASTER_ADDR reachable from every node, and did every rank start?"
            checks.append(Check("ranks", "failed", f"no process group: {str(error).splitlines()[0]}", advice))
    if place is None or place.rank == 0:
        sys.stdout.write(render(checks, as_json=arguments.json))
        sys.stdout.flush()
    return 0 if all_passed(checks) else 1


def check_tls() -> list[Check]:
    """Checks the TLS files of the environment; nothing if they can be used."""
    try:
        client_tls()
    except SettingError as error:
        return [Check("TLS", "failed", str(error), "correct EVENSTEP_CA, EVENSTEP_CLIENT_CERT and EVENSTEP_CLIENT_KEY")]
    return []


def _check_services(server: str | None, job: str | None, agent: str | None, own_version: str | None) -> list[Check]:
    """Checks predictors, the job and the agent."""
    checks: list[Check] = []
    if server == OFF:
        checks.append(Check("server", "ok", "off: all workers get even shares"))
    elif not server:
        checks += check_local()
    asked = None if server == OFF else server or local_url(PREDICTOR)
    if asked:
        checks += check_servers(asked, own_version=own_version, timeout_s=TIMEOUT_S)
    if asked and job:
        checks += check_job(asked, job, timeout_s=TIMEOUT_S)
    if agent not in ("", AUTO) and (agent or server):
        checks += check_agent(agent or DEFAULT_AGENT, timeout_s=TIMEOUT_S)
    elif agent != "" and (sampling := local_url(AGENT)):
        checks += check_agent(sampling, timeout_s=TIMEOUT_S)
    return checks


def render(checks: Sequence[Check], *, as_json: bool) -> str:
    """Returns all checks as lines, or as one JSON object."""
    if as_json:
        return json.dumps({"ok": all_passed(checks), "checks": [check.to_json() for check in checks]}) + "\n"
    return "".join(f"{check.line()}\n" for check in checks)
