"""Runs each check in its own process, with a deadline: a crash or hang of one never stops the others.

The process of pytest itself never imports PyTorch, so that it can be forked. It prints a table and writes
`gpu-check.json`.
"""

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pytest
from _pytest.runner import runtestprotocol

from gpu_check import machine, place
from gpu_check.context import FOLDER, Context, last_lines

#: Maximum time to wait for the end of killed processes, in seconds.
_END_S = 10.0

_FORK = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of `scripts/gpu-check`."""
    group = parser.getgroup("gpu-check", "checks of evenstep on GPUs")
    group.addoption("--wheel", type=Path, metavar="FILE", help="check this wheel instead of the repository's build")
    group.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the checks; default cuda")
    group.addoption("--deadline-s", type=float, default=300.0, help="time limit of a check; default 300")
    group.addoption("--json", type=Path, default=Path("gpu-check.json"), help="file of results; default gpu-check.json")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Finds what is checked, and where."""
    if not session.config.option.collectonly:
        # As with SIGINT, the running check and its programs end first.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        session.config.pluginmanager.register(Checks(session.config))


class Checks:
    """The plugin that runs checks."""

    def __init__(self, config: pytest.Config) -> None:
        """Unpacks the wheel, and inspects this machine."""
        self._options = config.option
        self._captured = config.pluginmanager.getplugin("capturemanager").read_global_capture
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._rows: list[dict[str, Any]] = []
        self._written = ""
        temporary = tempfile.TemporaryDirectory(prefix="gpu-check-")
        config.add_cleanup(temporary.cleanup)
        self._folder = Path(temporary.name)
        try:
            place.use(self._options.wheel, self._folder / "wheel")
        except (OSError, ValueError, BadZipFile) as error:
            raise pytest.UsageError(f"gpu-check: {self._options.wheel}: {error}") from error
        found, why = self._apart(machine.inspect, self._folder / "machine", self._options.deadline_s)
        self._machine = found or machine.Machine(problem=f"PyTorch cannot use a GPU: {why}")

    @pytest.fixture
    def context(self, record_property: Callable[[str, Any], None]) -> Context:
        """The place of a check."""
        return Context(self._machine, self._options.device, Path.cwd(), record_property)

    def pytest_report_header(self) -> list[str]:
        """Returns the GPUs and the versions."""
        facts = asdict(self._machine)
        gpus = ", ".join(f"{gpu['name']} ({gpu['uuid']})" for gpu in self._machine.gpus) or self._machine.problem
        versions = ("python", "torch", "cuda", "nccl", "driver", "glibc")
        return [gpus, ", ".join(f"{name} {facts[name]}" for name in versions if facts[name])]

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Runs a check, and gives its reports to pytest."""
        marker = item.get_closest_marker("gpu")
        if marker is None:
            return None
        if self._machine.problem and self._options.device == "cuda":
            item.add_marker(pytest.mark.skip(reason=self._machine.problem))
            return None
        deadline_s, begun = marker.kwargs.get("deadline_s", self._options.deadline_s), time.monotonic()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports, why = self._apart(lambda: runtestprotocol(item, log=False), self._folder / item.name, deadline_s)
        if not reports:
            failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            failed.duration = time.monotonic() - begun
            reports = [failed]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps a report for the table."""
        self._reports.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the results. If no check could run, the exit status is the same as without any check."""
        self._rows = [_row(item, self._reports[item.nodeid]) for item in session.items if item.nodeid in self._reports]
        if not self._rows:
            return
        if session.exitstatus == pytest.ExitCode.OK and all(row["state"] == "not applicable" for row in self._rows):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        told = {"at": at, "device": self._options.device, "machine": asdict(self._machine), "checks": self._rows}
        try:
            self._options.json.write_text(json.dumps(told, indent=2, default=str) + "\n")
            self._written = f"wrote {self._options.json}"
        except OSError as error:  # The table has the results, too.
            self._written = f"cannot write {self._options.json}: {error}"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the table."""
        if self._rows:
            terminalreporter.write_sep("=", "checks")
            for row in self._rows:
                terminalreporter.write_line("{state:15} {name:9} {seconds:5.0f} s  {said}".format_map(row))
            terminalreporter.write_line(self._written)

    def _apart(self, work: Callable[[], Any], folder: Path, deadline_s: float) -> tuple[Any, str]:
        """Returns the result of a function in another process, or why it has none. Kills the programs that it left."""
        folder.mkdir()
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_send, args=(sender, folder, work))
        process.start()
        sender.close()
        try:
            if not receiver.poll(deadline_s):
                return None, f"no result within {deadline_s:g} s"
            return receiver.recv(), ""
        except EOFError:
            process.join()
            said = last_lines(self._captured().err)
            return None, f"ended with status {process.exitcode}: {said or 'no output'}"
        finally:
            process.kill()
            _kill(f"{FOLDER}={folder}".encode())
            process.join(_END_S)
            if process.is_alive():  # Else the end of Python would wait for it.
                multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # missing in type stubs.


def _send(sender: Connection, folder: Path, work: Callable[[], Any]) -> None:
    os.environ.update({FOLDER: str(folder), "EVENSTEP_HOME": str(folder / "home")})
    os.chdir(folder)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sender.send(work())


def _kill(mark: bytes) -> None:
    """Kills all programs with a variable: some of them have their own session, but all have its environment.

    A process in the kernel of a hung driver may not end.
    """
    until = time.monotonic() + _END_S
    while left := [path for path in Path("/proc").glob("[0-9]*") if mark in _environ(path)]:
        for path in left:
            with suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)


def _environ(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _row(item: pytest.Item, reports: list[pytest.TestReport]) -> dict[str, Any]:
    """Returns the line of a check in the table, and what `gpu-check.json` has."""
    outcomes = {report.outcome for report in reports}
    state = "failed" if "failed" in outcomes else "not applicable" if "skipped" in outcomes else "passed"
    told: dict[str, Any] = {name: value for report in reports for name, value in report.user_properties}
    reason = next((_reason(report.longrepr) for report in reports if report.longrepr), "")
    said = "; ".join(part for part in (told.pop("said", ""), reason) if part)
    seconds = round(sum(report.duration for report in reports), 1)
    return {"name": item.name.removeprefix("test_"), "state": state, "said": said, "numbers": told, "seconds": seconds}


def _reason(why: Any) -> str:
    """Returns why a test was skipped or failed, in one line."""
    if isinstance(why, tuple):
        return str(why[2]).removeprefix("Skipped: ")
    crash = getattr(why, "reprcrash", None)
    return str(crash.message if crash else why).partition("\n")[0]
