"""The status of a TrainJob, posted to an HTTPS server that checks the published form."""

import gzip
import json
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.job.kubeflow import Pace, Status, StatusPoster
from programs import PATIENCE_S, ROOT
from ranks import run_ranks
from test_service import GLOBAL_BATCH
from training import Samples, loss_of, network, sgd

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/demo/status"
TOKEN = "first-token"  # noqa: S105


def published_form() -> dict[str, Any]:
    """Returns the schema of ``status.trainerStatus`` in Kubeflow's definition of a TrainJob, with its rule in CEL."""
    packed = (ROOT / "deploy/kubernetes/tests/schemas.json.gz").read_bytes()
    job = json.loads(gzip.decompress(packed))["trainer.kubeflow.org/v1alpha1 TrainJob"]
    status: dict[str, Any] = job["properties"]["status"]["properties"]["trainerStatus"]
    return {
        "type": "object",
        "properties": {"trainerStatus": {**status, "required": ["lastUpdatedTime"]}},
        "required": ["trainerStatus"],
        "additionalProperties": False,
    }


@dataclass
class Server:
    """The status server of Kubeflow Trainer, as it is published: path, token, form and limits."""

    folder: Path
    token: str = TOKEN
    #: The accepted updates, and the times of all requests.
    updates: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    #: Status and reason of rejected updates.
    rejected: list[tuple[int, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        server, form = self, jsonschema.Draft202012Validator(published_form())

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Keeps the output of the test clean."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = server.judge(self.path, self.headers, body, form)
                with server.changed:
                    server.times.append(time.monotonic())
                    if status == 200:
                        server.updates.append(json.loads(body)["trainerStatus"])
                    else:
                        server.rejected.append((status, answer))
                    server.changed.notify_all()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if status == 200 else answer.encode())

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        (self.folder / "token").write_text(self.token + "\n")

    def judge(self, path: str, headers: Any, body: bytes, form: Any) -> tuple[int, str]:
        if path != PATH:
            return 404, path
        if headers["Authorization"] != f"Bearer {self.token}":
            return 403, "token"
        if len(body) > 64 << 10:
            return 413, "too large"
        errors = [error.message for error in form.iter_errors(json.loads(body))]
        return (422, "; ".join(errors)) if errors or headers["Content-Type"] != "application/json" else (200, "")

    @property
    def environ(self) -> dict[str, str]:
        return {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{self.http.server_port}{PATH}",
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.folder / "token"),
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.folder / "server.pem"),
        }

    def wait(self, updates: int = 0, rejected: int = 0) -> None:
        with self.changed:
            ready = lambda: len(self.updates) >= updates and len(self.rejected) >= rejected  # noqa: E731
            assert self.changed.wait_for(ready, PATIENCE_S), (self.updates, self.rejected)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    files = ["-keyout", str(tmp_path / "server.key"), "-out", str(tmp_path / "server.pem")]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=trainer", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, "req", "-x509", *key, *names, *files], check=True, capture_output=True)
    server = Server(tmp_path)
    yield server
    server.http.shutdown()
    server.http.server_close()


def trained(rank: int) -> int:
    """Trains two epochs on two ranks."""
    job = evenstep.init(plan=[12, 4], epochs=2)
    loader = job.loader(Samples(), global_batch=GLOBAL_BATCH)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    for _ in range(2):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
    job.close()
    return rank


def test_rank_0_posts_the_progress_of_a_run(server: Server) -> None:
    run_ranks(2, trained, environ=server.environ)
    assert server.rejected == []
    assert server.updates
    last = server.updates[-1]
    assert last["progressPercentage"] == 100
    assert last["estimatedRemainingSeconds"] == 0
    metrics = {metric["name"]: metric["value"] for metric in last["metrics"]}
    assert metrics["epoch"] == "2"
    assert int(metrics["iteration"]) > 2
    assert all(later - earlier >= 4.5 for earlier, later in zip(server.times, server.times[1:], strict=False))
    datetime.strptime(last["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def test_updates_respect_the_interval_and_the_last_one_is_sent(server: Server) -> None:
    done, begun = iter(range(1000)), time.monotonic()
    poster = StatusPoster.of_environment(server.environ, lambda: Status(done=next(done) / 1000), interval_s=0.2)
    assert poster
    server.wait(updates=3)
    poster.stop()
    poster.join(PATIENCE_S)
    # Requests arrive late on a busy machine, but never more of them than intervals have passed.
    assert (len(server.times) - 1) * 0.2 <= time.monotonic() - begun
    counted = len(server.updates)
    assert [update["progressPercentage"] for update in server.updates] == [at // 10 for at in range(counted)]


def test_a_renewed_token_is_used(server: Server) -> None:
    poster = StatusPoster.of_environment(server.environ, Status, interval_s=0.05)
    assert poster
    server.wait(updates=1)
    server.token = "second-token"  # noqa: S105
    server.wait(rejected=1)
    assert server.rejected[0][0] == 403
    (server.folder / "token").write_text("second-token")
    server.wait(updates=len(server.updates) + 1)
    poster.stop()
    poster.join(PATIENCE_S)


def test_nothing_that_fails_reaches_the_training(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Status:
        raise RuntimeError("no status")

    plain = server.environ["KUBEFLOW_TRAINER_SERVER_URL"].replace("https", "http")
    cases: list[tuple[dict[str, str], Any, str]] = [
        ({"KUBEFLOW_TRAINER_SERVER_URL": plain}, Status, "https://"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://127.0.0.1:9/"}, Status, "Error"),
        ({"KUBEFLOW_TRAINER_SERVER_TOKEN": "/none"}, Status, "/none"),
        ({"KUBEFLOW_TRAINER_SERVER_CA_CERT": str(server.folder / "token")}, Status, "SSLError"),
        ({}, broken, "no status"),
    ]
    for changed, read, reason in cases:
        caplog.clear()
        poster = StatusPoster.of_environment({**server.environ, **changed}, read, interval_s=0.01)
        assert poster
        poster.stop()
        poster.join(PATIENCE_S)
        assert len(caplog.messages) == 1, "one line, however often it fails"
        assert reason in caplog.messages[0]
    assert server.updates == []


def test_without_the_variables_nothing_is_posted() -> None:
    assert StatusPoster.of_environment({"KUBEFLOW_TRAINER_SERVER_URL": "https://a"}, Status) is None


def test_bodies_are_within_the_limits() -> None:
    told = Status(0.999, 1e300, {"x" * 65: 1.0, "": 1.0, **{f"name-{at}": -1.23456789e300 for at in range(300)}})
    body = told.body(datetime.now(timezone.utc))
    jsonschema.Draft202012Validator(published_form()).validate(body)
    assert body["trainerStatus"]["progressPercentage"] == 99
    assert len(body["trainerStatus"]["metrics"]) == 256
    assert len(json.dumps(body)) < 64 << 10


def test_the_remaining_time_follows_from_the_pace_of_this_process() -> None:
    now = [10.0]
    pace = Pace(lambda: now[0])
    assert pace.remaining_s(0.5) is None
    now[0] = 20.0
    assert pace.remaining_s(0.6) == pytest.approx(40.0)
    assert pace.remaining_s(1.0) == 0.0
