"""Checks of the predictors: whether they respond, their version, and the clock difference."""

import email.utils
import json
import time
from urllib.parse import quote

from evenstep._native import HttpResponse, check_job_id, parse_servers
from evenstep.doctor.check import Check
from evenstep.doctor.versions import major_minor
from evenstep.errors import EvenstepError, SettingError
from evenstep.settings.connection import connect

CLOCK_DIFFERENCE_MAX_S = 2.0
"""Maximum clock difference in seconds; above it, times in telemetry and on pages do not match."""

DATE_RESOLUTION_S = 1.0
"""Resolution of HTTP's `Date` in seconds."""


def check_servers(servers: str, *, own_version: str | None, timeout_s: float) -> list[Check]:
    """Checks each predictor of a list.

    Args:
        servers: Base URLs, separated by commas.
        own_version: Version of this package, if it is installed.
        timeout_s: Timeout of each request, in seconds.
    """
    try:
        urls = parse_servers(servers)
    except SettingError as error:
        return [Check("server", "failed", str(error), "correct EVENSTEP_SERVER or --server")]
    return [check for url in urls for check in _check_server(url, own_version=own_version, timeout_s=timeout_s)]


def check_job(servers: str, job_id: str, *, timeout_s: float) -> list[Check]:
    """Checks a job at the first predictor that responds; returns nothing if none does."""
    try:
        check_job_id(job_id)
        urls = parse_servers(servers)
    except SettingError as error:
        return [Check("job", "failed", str(error), "correct EVENSTEP_JOB")]
    for url in urls:
        try:
            answer = connect(url).get(f"/v1/jobs/{quote(job_id, safe='')}", timeout_s)
        except EvenstepError:
            continue
        if answer.status == 404:
            return [Check("job", "ok", f"{job_id} does not exist yet")]
        if answer.status == 200:
            return [Check("job", "ok", f"{job_id} exists: {_text(answer, 'state') or 'its state is not said'}")]
    return []


def _check_server(url: str, *, own_version: str | None, timeout_s: float) -> list[Check]:
    name = f"server {url}"
    connection = connect(url)
    try:
        before = time.time()
        ready = connection.get("/readyz", timeout_s)
        after = time.time()
        described = connection.get("/openapi.json", timeout_s)
    except EvenstepError as error:
        # The name of the check has the address, too.
        found = str(error).removeprefix(f"{url}: ")
        return [Check(name, "failed", found, "start evenstep-predictor serve, or correct EVENSTEP_SERVER")]
    return [
        _check_ready(name, ready),
        _check_version(name, _text(described, "info", "version"), own_version),
        check_clock(name, ready.headers.get("date"), before, after),
    ]


def _check_ready(name: str, ready: HttpResponse) -> Check:
    if ready.status == 200:
        return Check(name, "ok", "ready")
    why = _text(ready, "detail") or f"status {ready.status}"
    return Check(name, "failed", f"not ready: {why}", "look at the predictor's log")


def _check_version(name: str, version: str | None, own_version: str | None) -> Check:
    if version is None:
        return Check(
            f"{name} version", "failed", "/openapi.json has no info.version", ("is another program listening there?")
        )
    if own_version is not None and major_minor(version) != major_minor(own_version):
        found = f"{version}, but this package is {own_version}"
        return Check(f"{name} version", "warning", found, "use the same major and minor version of both")
    return Check(f"{name} version", "ok", version)


def check_clock(name: str, date: str | None, before: float, after: float) -> Check:
    """Compares the local clock with a response's `Date`, awaited from `before` to `after` (Unix seconds)."""
    name = f"{name} clock"
    written = _unix_s(date)
    if written is None:
        return Check(name, "warning", f"no usable Date in the response: {date!r}", "compare the clocks manually")
    least, most = clock_difference_s(written, before, after)
    if least <= 0 <= most:
        return Check(name, "ok", f"no difference to the local clock (HTTP Date, resolution {DATE_RESOLUTION_S:g} s)")
    apart = least if least > 0 else most
    found = f"at least {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} the local clock (HTTP Date)"
    if abs(apart) <= CLOCK_DIFFERENCE_MAX_S:
        return Check(name, "ok", found)
    advice = f"run NTP on both machines: with more than {CLOCK_DIFFERENCE_MAX_S:g} s, times on pages do not match"
    return Check(name, "warning", found, advice)


def clock_difference_s(written: float, before: float, after: float) -> tuple[float, float]:
    """Returns the lower and upper bound of the server's clock offset, in seconds.

    A positive offset means that the server is ahead. The server wrote its time `written`, cut to whole seconds, between
    `before` and `after` of the local clock.
    """
    return written - after, written + DATE_RESOLUTION_S - before


def _unix_s(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None


def _text(answer: HttpResponse, *path: str) -> str | None:
    """Returns a text field of a JSON response by its path."""
    try:
        value = json.loads(answer.body)
        for key in path:
            value = value[key]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
