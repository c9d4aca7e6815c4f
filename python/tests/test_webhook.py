"""The health of nodes, and the webhook of stragglers, with the real predictor and a real receiver."""

import json
import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from programs import PATIENCE_S, fetch, fetch_json, serving
from slow_worker import NORMAL, SLOW, WORKERS, SlowWorker


def health(predictor: str, node: str, after_s: int) -> Any:
    """Returns the health of a node, unhealthy if a worker was a straggler for `after_s` seconds."""
    return fetch_json(f"{predictor}/v1/nodes/{node}/health?after_s={after_s}")


class Receiver(ThreadingHTTPServer):
    """Rejects the first request with 503, and accepts all others."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Keeps the output of the test clean."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Content-Type"].startswith("application/json")
                receiver.paths.append(self.path)
                is_first = len(receiver.paths) == 1
                if not is_first:
                    receiver.events.put(body)
                self.send_response(503 if is_first else 204)
                self.end_headers()

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def test_stragglers_are_sent_to_the_webhook(predictor_binary: Path, tmp_path: Path) -> None:
    with Receiver() as receiver:
        url = f"http://127.0.0.1:{receiver.server_port}/hook?secret=1"
        with serving(predictor_binary, tmp_path, f"--webhook={url}") as predictor:
            job = SlowWorker(predictor, "job")
            job.train(100, NORMAL)
            assert health(predictor, "node-a", 0)["healthy"] is True
            job.train(100, SLOW)
            flagged = receiver.events.get(timeout=PATIENCE_S)
            assert receiver.paths[:2] == ["/hook?secret=1"] * 2, "the rejected event was sent again"
            assert flagged["event"] == "straggler.flagged"
            assert (flagged["job_id"], flagged["worker"], flagged["node"]) == ("job", "node-a/pod/0", "node-a")
            assert 0.4 < flagged["straggler"]["speed_ratio"] < 0.75
            unhealthy = health(predictor, "node-a", 0)
            assert unhealthy["healthy"] is False
            [straggler] = unhealthy["stragglers"]
            assert (straggler["job_id"], straggler["worker"]) == ("job", WORKERS[0])
            assert straggler["since_unix_ms"] == flagged["since_unix_ms"]
            assert health(predictor, "node-a", 86_400)["healthy"] is True, "it is not slow for a day"
            for node in ("node-b", "node-c"):
                assert health(predictor, node, 0) == {"node": node, "healthy": True, "stragglers": []}
            assert fetch(f"{predictor}/v1/nodes/node-a/health?after_s=86401")[0] == 422
            job.train(200, NORMAL)
            cleared = receiver.events.get(timeout=PATIENCE_S)
            assert cleared["event"] == "straggler.cleared"
            assert cleared["since_unix_ms"] == flagged["since_unix_ms"]
            assert health(predictor, "node-a", 0)["healthy"] is True
        receiver.shutdown()


def test_a_webhook_that_hangs_delays_nothing(predictor_binary: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with serving(predictor_binary, tmp_path, f"--webhook={url}") as predictor:
            job = SlowWorker(predictor, "job")
            job.train(100, NORMAL)
            job.train(100, SLOW)
            server.settimeout(PATIENCE_S)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b"P"
                job.train(5, SLOW)
                assert health(predictor, "node-a", 0)["healthy"] is False
