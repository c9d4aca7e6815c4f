"""The status of a TrainJob of Kubeflow Trainer: rank 0 posts the progress of the run to it.

Trainer sets the variables if its feature gate ``TrainJobStatus`` is on. The form and the limits are those of Kubeflow
Trainer 2.3.
"""

import http.client
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("evenstep")

#: Minimum time between two updates, in seconds. All jobs of a cluster share 5 updates per second.
INTERVAL_S = 5.0

#: Longest pause after failed updates, in seconds.
PAUSE_MAX_S = 300.0

#: Timeout of each part of an update, in seconds.
TIMEOUT_S = 5.0

#: Maximum number of metrics, and of characters of a name or a value.
METRICS_MAX, TEXT_MAX = 256, 64


@dataclass(frozen=True, slots=True)
class Status:
    """The contents of an update."""

    #: Part of the training that is done, from 0 to 1; None if it is unknown.
    done: float | None = None
    remaining_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def body(self, now: datetime) -> dict[str, Any]:
        """Returns the body of an update at this time."""
        told: dict[str, Any] = {"lastUpdatedTime": now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
        if self.done is not None:
            # 100 only at the end.
            told["progressPercentage"] = int(100 * min(max(self.done, 0.0), 1.0))
        if self.remaining_s is not None:
            told["estimatedRemainingSeconds"] = min(max(round(self.remaining_s), 0), 2**31 - 1)
        named = [{"name": name, "value": f"{value:.6g}"} for name, value in self.metrics.items()]
        told["metrics"] = [metric for metric in named if 0 < len(metric["name"]) <= TEXT_MAX][:METRICS_MAX]
        return {"trainerStatus": told}


class StatusPoster:
    """Posts the status of a run from a separate thread. Nothing that fails there reaches the training."""

    def __init__(
        self, url: str, token_file: str, ca_file: str, read: Callable[[], Status], *, interval_s: float = INTERVAL_S
    ) -> None:
        """Starts the thread; ``read`` returns the current status."""
        self._url, self._token_file, self._ca_file = url, token_file, ca_file
        self._read, self._interval_s = read, interval_s
        self._failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenstep-kubeflow", daemon=True)
        self._thread.start()

    @classmethod
    def of_environment(
        cls, environ: Mapping[str, str], read: Callable[[], Status], *, interval_s: float = INTERVAL_S
    ) -> "StatusPoster | None":
        """Returns a poster for the TrainJob in the variables of Kubeflow Trainer; None if they are not set."""
        names = [f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "TOKEN", "CA_CERT")]
        url, token, authority = (environ.get(name, "") for name in names)
        return cls(url, token, authority, read, interval_s=interval_s) if url and token and authority else None

    def stop(self) -> None:
        """Ends the thread after one more update; see :meth:`join`."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the last update, at most ``timeout_s`` seconds."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.is_set()
            begun = time.monotonic()
            self._post()
            pause = min(self._interval_s * 2**self._failures, PAUSE_MAX_S)
            # The last update comes an interval after the one before, also if that failed.
            if not is_last and self._stop.wait(max(0.0, pause - (time.monotonic() - begun))):
                time.sleep(max(0.0, self._interval_s - (time.monotonic() - begun)))

    def _post(self) -> None:
        try:
            status, answer = self._request(json.dumps(self._read().body(datetime.now(timezone.utc))).encode())
            failure = None if status == 200 else f"{status} {answer[:200]!r}"
        except Exception as error:  # noqa: BLE001  # The training must not depend on the status.
            failure = f"{type(error).__name__}: {error}"
        if failure and not self._failures:
            log.warning("the status of the TrainJob cannot be posted to %s: %s; trying again", self._url, failure)
        self._failures = min(self._failures + 1, 16) if failure else 0

    def _request(self, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(self._url)
        if url.scheme != "https" or not url.hostname:
            raise ValueError("must be a URL with https://")
        # Token and CA are renewed while the job runs.
        token = Path(self._token_file).read_text().strip()
        context = ssl.create_default_context(cafile=self._ca_file)
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=TIMEOUT_S, context=context)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", url.path + (f"?{url.query}" if url.query else ""), body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(1024)
        finally:
            connection.close()


class Pace:
    """Estimates the remaining time from the progress of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts without progress; ``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._first: tuple[float, float] | None = None

    def remaining_s(self, done: float) -> float | None:
        """Returns the time until ``done`` is 1, in seconds; None until it has grown."""
        now = self._clock()
        if self._first is None:
            self._first = (now, done)
        at, before = self._first
        return (now - at) * (1 - done) / (done - before) if done > before else None
