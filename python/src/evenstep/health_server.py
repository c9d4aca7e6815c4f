"""`evenstep health-server`: the node health check of NVIDIA's resiliency extension (NVRx) over a Unix socket.

Its launcher calls it before a rendezvous, and takes another node if this one is unhealthy. A node is unhealthy if a
predictor says that a worker on it has been a straggler for long. Without a response of a predictor, it is healthy.
"""

import argparse
import errno
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from evenstep._native import Http, parse_servers
from evenstep.errors import EvenstepError, SettingError
from evenstep.settings.connection import connect
from evenstep.settings.launcher import node

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # It has no public name.

log = logging.getLogger("evenstep")

#: Time limit of the requests of a call, in seconds.
_REQUEST_S = 5.0
#: Time in seconds for which a response is used again, because all launchers of a node send their calls at once.
_KEPT_S = 1.0
#: Maximum number of stragglers that a response names, and maximum length of their text in characters.
_NAMED_MAX = 16
_TEXT_MAX = 16_000
#: Number of threads that respond to calls. More calls wait, up to the maximum number of calls.
_THREADS = 16
_CALLS_MAX = 256
#: Limits of gRPC: connections and their age, and the size of a call.
_LIMITS = (
    ("grpc.max_allowed_incoming_connections", 64),
    ("grpc.max_connection_age_ms", 300_000),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_receive_message_length", 4_096),
)
#: Every user of the machine may connect.
_EVERYONE = 0o666
#: The maximum of the predictor, in seconds.
_AFTER_S_MAX = 86_400

_SERVICE, _METHOD = "nvhcd.HealthCheckService", "RunHealthCheck"
#: The response in the published definition (nvhcd.proto of NVRx 0.6). The call has only arguments for other checks.
_DEFINITION = """
name: "nvhcd.proto"  package: "nvhcd"  syntax: "proto3"
message_type {
  name: "HealthCheckResponse"
  field { name: "success"    number: 1  type: TYPE_BOOL    label: LABEL_OPTIONAL }
  field { name: "exit_code"  number: 2  type: TYPE_INT32   label: LABEL_OPTIONAL }
  field { name: "output"     number: 3  type: TYPE_STRING  label: LABEL_OPTIONAL }
  field { name: "error"      number: 4  type: TYPE_STRING  label: LABEL_OPTIONAL }
}
"""


def add_arguments(subparsers: "Subparsers") -> None:
    """Adds the `health-server` command to a command line."""
    parser = subparsers.add_parser(
        "health-server", help="serve the node health check of NVIDIA's resiliency extension", description=__doc__
    )
    parser.add_argument(
        "--socket", metavar="FILE", required=True, help="the Unix socket, such as /run/evenstep/health.sock"
    )
    parser.add_argument("--server", metavar="URL,..", help="predictor URLs, all are queried; default EVENSTEP_SERVER")
    parser.add_argument("--node", metavar="NAME", help="name of this node; default EVENSTEP_NODE, else its host name")
    parser.add_argument(
        "--after", metavar="TIME", default="10m", help="time for which a worker must be a straggler; default 10m"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT.

    Raises:
        EvenstepError: an option breaks a rule, or grpcio is not installed.
    """
    after_s = _seconds(arguments.after)
    name = arguments.node or node(os.environ, socket.gethostname()).split("/")[0]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}", name):
        rule = "must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ -, beginning with a letter or digit"
        raise SettingError(f"--node {name!r}: {rule}")
    servers = arguments.server or os.environ.get("EVENSTEP_SERVER")
    if not servers:
        raise SettingError("health-server needs the URLs of the predictors: set --server or EVENSTEP_SERVER")
    health = NodeHealth(parse_servers(servers), name, after_s)
    _serve(health, Path(arguments.socket).absolute())
    return 0


def _seconds(text: str) -> int:
    """Returns the seconds of a time such as ``90s``, ``10m`` or ``2h``."""
    parts = re.fullmatch(r"([0-9]{1,9})([smh])", text)
    seconds = int(parts[1]) * {"s": 1, "m": 60, "h": 3600}[parts[2]] if parts else 0
    if not 1 <= seconds <= _AFTER_S_MAX:
        raise SettingError(f"--after {text!r}: must be a time such as 90s, 10m or 2h, from 1s to 24h")
    return seconds


class NodeHealth:
    """The stragglers on a node, from all predictors: each knows only the jobs that it owns."""

    def __init__(self, servers: Sequence[str], node: str, after_s: int) -> None:
        """Sends no request yet. A worker counts if it has been a straggler for ``after_s``."""
        self._path = f"/v1/nodes/{node}/health?after_s={after_s}"
        self._predictors = {url: connect(url) for url in servers}
        self._pool = ThreadPoolExecutor(len(self._predictors))
        self._asked: dict[str, Future[list[tuple[float, str]]]] = {}
        self._lock = threading.Lock()
        self._kept: list[str] = []
        self._kept_until = 0.0

    def stragglers(self) -> list[str]:
        """Returns a line for each straggler on the node, the slowest first."""
        # Other calls wait here, and use the same response.
        with self._lock:
            if time.monotonic() >= self._kept_until:
                for url, predictor in self._predictors.items():
                    # A predictor that hangs holds only one thread.
                    if url not in self._asked or self._asked[url].done():
                        self._asked[url] = self._pool.submit(self._ask, url, predictor)
                done, late = wait(self._asked.values(), _REQUEST_S)
                if late:
                    silent = ", ".join(url for url, answer in self._asked.items() if answer in late)
                    log.warning(
                        "%s does not say whether this node is healthy: no response within %g s", silent, _REQUEST_S
                    )
                self._kept = [line for _, line in sorted(one for answer in done for one in answer.result())]
                self._kept_until = time.monotonic() + _KEPT_S
            return self._kept

    def _ask(self, url: str, predictor: Http) -> list[tuple[float, str]]:
        """Returns the speeds and lines of the stragglers that a predictor reports; none without a response."""
        try:
            response = predictor.get(self._path, _REQUEST_S)
            if response.status != 200:
                log.warning("%s does not say whether this node is healthy: status %d", url, response.status)
                return []
            view = json.loads(response.body)
            return [] if view["healthy"] else [_straggler(one) for one in view["stragglers"]]
        except EvenstepError as error:
            log.warning("%s does not say whether this node is healthy: %s", url, error)
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            log.warning("%s does not say whether this node is healthy: unknown response (%r)", url, error)
        return []


def _straggler(one: dict[str, Any]) -> tuple[float, str]:
    """Returns the speed of a straggler, relative to the expected one, and a line about it."""
    view = one["straggler"]
    ratio = float(view["speed_ratio"])
    line = (
        f"worker {one['worker']} of job {one['job_id']} has {100 * ratio:.0f} % of its usual speed "
        f"since iteration {view['since_iteration']}: {view['detail']}"
    )
    return ratio, line


def _serve(health: NodeHealth, path: Path) -> None:
    """Serves calls at a Unix socket until SIGTERM or SIGINT, then removes it."""
    try:
        import grpc  # noqa: PLC0415  # An optional dependency.
        from google.protobuf import descriptor_pb2, message_factory, text_format  # noqa: PLC0415
    except ImportError as error:
        raise EvenstepError(f"health-server needs grpcio and protobuf ({error}): pip install evenstep[nvrx]") from error
    definition = text_format.Parse(_DEFINITION, descriptor_pb2.FileDescriptorProto())
    message = message_factory.GetMessages([definition])["nvhcd.HealthCheckResponse"]

    def respond(_call: bytes, _context: object) -> bytes:
        found = health.stragglers()
        response = message(
            success=not found,
            exit_code=int(bool(found)),
            output=f'{{"fail_count": {len(found)}}}',
            error="; ".join(found[:_NAMED_MAX])[:_TEXT_MAX],
        )
        encoded: bytes = response.SerializeToString()
        return encoded

    _claim(path)
    # Threads that start from here, also those of gRPC, leave the signals to this one.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_LIMITS, maximum_concurrent_rpcs=_CALLS_MAX)
    handlers = {_METHOD: grpc.unary_unary_rpc_method_handler(respond)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    try:
        server.add_insecure_port(f"unix:{quote(str(path))}")
        path.chmod(_EVERYONE)
        server.start()
        sys.stdout.write(f"listening on unix://{path}\n")
        sys.stdout.flush()
        signal.sigwait(ends)
    finally:
        server.stop(None).wait()
        path.unlink(missing_ok=True)


def _claim(path: Path) -> None:
    """Makes the file of a socket, which gRPC then uses. The socket of a process that has ended is replaced."""
    with socket.socket(socket.AF_UNIX) as claimed, socket.socket(socket.AF_UNIX) as other:
        try:
            if path.is_socket() and other.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
            if path.is_socket():
                raise SettingError(f"--socket {path}: another process listens there")
            if path.exists():
                raise SettingError(f"--socket {path}: exists and is not a socket")
            # Its error names the reason, unlike the one of gRPC.
            claimed.bind(str(path))
        except OSError as error:
            raise SettingError(f"--socket {path}: {error.strerror or error}") from error
