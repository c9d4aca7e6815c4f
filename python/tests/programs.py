"""The project's programs as child processes: their output is kept, and they end with the test."""

import json
import os
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
"""Longer than any wait in a successful test."""

ROOT = Path(__file__).resolve().parents[2]
"""Root of the repository."""


def clean_environment() -> dict[str, str]:
    """Returns the environment without variables that configure the project's programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVENSTEP_")}


class Program:
    """A running program. Its standard output is read to the end, so that it never blocks."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        assert self.process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def line(self, found: Callable[[str], T | None]) -> T:
        """Waits for a line for which `found` returns a value, and returns that value."""
        said: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while (line := self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))) is not None:
            if (value := found(line)) is not None:
                return value
            said.append(line)
        raise AssertionError(f"{self.process.args!r} ended with the output: {''.join(said)}")

    def kill(self) -> None:
        """Kills the program and waits for its end."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)

    def _listen(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)


@contextmanager
def serving(binary: Path, folder: Path, *more: str, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Runs a predictor, by default on a free port, with a store in `folder`; yields its base URL."""
    with stoppable(binary, folder, *more, listen=listen) as (url, _):
        yield url


@contextmanager
def stoppable(binary: Path, folder: Path, *more: str, listen: str = "127.0.0.1:0") -> Iterator[tuple[str, int]]:
    """Runs a predictor; yields its base URL and its process id."""
    store = f"--store=sqlite://{folder / 'evenstep.db'}"
    program = Program([str(binary), "serve", f"--listen={listen}", "--log=warn", store, *more])
    try:
        yield program.line(_url), program.process.pid
    finally:
        program.kill()


@contextmanager
def sampling(binary: Path, folder: Path, server: str, *more: str) -> Iterator[str]:
    """Runs an agent on a free port that sends to `server`; yields its base URL."""
    flags = ["--listen=127.0.0.1:0", "--log=error", "--node=node-a", "--interval=20ms"]
    program = Program([str(binary), *flags, f"--server={server}", f"--spool-dir={folder / 'spool'}", *more])
    try:
        yield program.line(_listening)
    finally:
        program.kill()


def _url(line: str) -> str | None:
    return line.removeprefix("listening on ").strip() if "listening on" in line else None


def _listening(line: str) -> str | None:
    return f"http://{json.loads(line)['listening']}" if line.startswith("{") else None


def fetch(url: str, *, method: str = "GET", body: object = None) -> tuple[int, bytes]:
    """Requests a URL with the standard library's client; returns status and body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310  # Loopback only.
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


def fetch_json(url: str) -> Any:
    """Returns the parsed body of a URL that responds with 200."""
    status, body = fetch(url)
    assert status == 200, body
    return json.loads(body)
