"""The client of one job for the predictor's HTTP interface, with failover between servers."""

import json
import math
import time
from collections.abc import Callable

from evenstep.errors import RejectedError, SettingError
from evenstep.wire.errors import RequestError, StaleError, UnknownError, UnreachableError, UnusableError
from evenstep.wire.http import Answer, Connection, ExchangeError
from evenstep.wire.ids import check_job_id, check_worker_id
from evenstep.wire.messages import (
    AllocateRequest,
    AllocateResponse,
    JobSpec,
    JoinRequest,
    JoinResponse,
    OomReport,
    OomResponse,
    Problem,
)
from evenstep.wire.servers import (
    HOPS_MAX,
    SERVERS_MAX,
    NoResponse,
    NoServerRespondedError,
    Redirected,
    Responded,
    Route,
    Turn,
    parse_servers,
)

HANDOVER_RETRIES_MAX = 10
"""Maximum number of retries while a job changes its owner."""

HANDOVER_PAUSE_S = 0.02
"""Pause between these retries, in seconds."""

CONNECTIONS_MAX = SERVERS_MAX + HOPS_MAX
"""Maximum number of connections that a client keeps open."""


class Client:
    """A client for one job at one or more predictors.

    All requests are idempotent and are retried: at the next server if one does not respond, and on a new connection if
    the kept one is closed. Only one thread may use a client at a time. Connections are kept open.
    """

    def __init__(
        self,
        servers: str,
        job_id: str,
        timeout_s: float = 2.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepares a client; nothing is sent yet.

        Args:
            servers: Base URLs such as `http://host:7117`, separated by commas: predictors that share one store.
            job_id: The job.
            timeout_s: Timeout of a request over all servers, in seconds. If the job changes its owner, up to ten pauses
                of 20 ms are added.
            clock: Monotonic clock in seconds.
            pause: Waits for a number of seconds.

        Raises:
            SettingError: An argument breaks its rule.
        """
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise SettingError(f"timeout_s {timeout_s}: must be finite and above 0")
        self._route = Route(parse_servers(servers))
        self._job_id = check_job_id(job_id)
        self._timeout_s = timeout_s
        self._clock = clock
        self._pause = pause
        self._connections: dict[str, Connection] = {}

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._job_id

    @property
    def server(self) -> str:
        """Base URL of the server that gets the next request."""
        return self._route.first

    def put_job(self, spec: JobSpec) -> None:
        """Creates the job or updates its options. Repeating it has no effect.

        Raises:
            AskError: No usable response.
            RejectedError: A value breaks its rule.
        """
        self._ask("PUT", f"/v1/jobs/{self._job_id}", spec.to_json())

    def join(self, request: JoinRequest) -> JoinResponse:
        """Joins a worker to the job. Joining again renews its lease.

        Raises:
            AskError: No usable response.
            RejectedError: A value breaks its rule.
        """
        return JoinResponse.from_json(self._ask("POST", f"/v1/jobs/{self._job_id}/workers", request.to_json()))

    def leave(self, worker: str) -> JoinResponse:
        """Removes a worker from the job.

        Raises:
            AskError: No usable response.
            RejectedError: The predictor rejects the request.
        """
        return JoinResponse.from_json(self._ask("DELETE", self._worker_path(worker), None))

    def allocate(self, request: AllocateRequest) -> AllocateResponse:
        """Requests the allocation of an iteration and reports earlier ones.

        Raises:
            StaleError: The request has an old generation.
            AskError: No usable response.
            RejectedError: Floors and caps cannot hold the batch, or a value breaks its rule.
        """
        return AllocateResponse.from_json(self._ask("POST", "/allocate", request.to_json()))

    def report_oom(self, worker: str, iteration: int, local_batch: int) -> OomResponse:
        """Reports that a worker ran out of memory with a number of samples. Repeating it has no effect.

        Raises:
            AskError: No usable response.
            RejectedError: The predictor rejects the request.
        """
        report = OomReport(iteration, local_batch)
        return OomResponse.from_json(self._ask("POST", self._worker_path(worker) + "/oom", report.to_json()))

    def close(self) -> None:
        """Closes all connections. The client stays usable."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _worker_path(self, worker: str) -> str:
        # The slash is the only character of an id with a meaning in a path.
        return f"/v1/jobs/{self._job_id}/workers/{check_worker_id(worker).replace('/', '%2F')}"

    def _ask(self, method: str, path: str, said: dict[str, object] | None) -> object:
        """Sends a request to the first server that responds and returns the parsed response."""
        body = None if said is None else json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
        started = self._clock()
        looks = 0
        is_pointed = False

        def send(turn: Turn) -> Responded[Answer] | NoResponse | Redirected:
            nonlocal is_pointed
            outcome = self._turn(turn, started, method, path, body)
            is_pointed |= isinstance(outcome, Redirected)
            return outcome

        while True:
            is_pointed = False
            try:
                return _read(self._route.ask(path, send))
            except NoServerRespondedError as unanswered:
                # The owner that a server pointed to is shutting down: the job is free after a few milliseconds.
                if not is_pointed or looks == HANDOVER_RETRIES_MAX:
                    raise UnreachableError(f"the predictor is unreachable: {unanswered}") from None
            looks += 1
            self._pause(HANDOVER_PAUSE_S)

    def _turn(
        self, turn: Turn, started: float, method: str, path: str, body: bytes | None
    ) -> Responded[Answer] | NoResponse | Redirected:
        left_s = self._timeout_s - (self._clock() - started)
        # The last server gets all the remaining time, each server before it half: it responded last, so it is the
        # likeliest.
        limit_s = left_s if turn.others == 0 else left_s / 2
        if limit_s <= 0:
            return NoResponse("no time was left for a request")
        try:
            answer = self._connection(turn.server).exchange(method, path, body, limit_s)
        except ExchangeError as error:
            return NoResponse(str(error))
        return _heard(answer)

    def _connection(self, server: str) -> Connection:
        """Returns the connection to a server; above the maximum, the least recently used one is closed."""
        connection = self._connections.pop(server, None) or Connection(server, self._clock)
        self._connections[server] = connection
        if len(self._connections) > CONNECTIONS_MAX:
            self._connections.pop(next(iter(self._connections))).close()
        return connection


def _heard(answer: Answer) -> Responded[Answer] | NoResponse | Redirected:
    """Classifies the response of one server."""
    if answer.status == 307:
        return Redirected(answer.headers.get("location", ""))
    if answer.status in (502, 503, 504):
        problem = _problem(answer.body)
        # These problems concern the job, so every other server would redirect to the same owner.
        if problem is None or problem.slug not in ("paused", "cooling-down"):
            return NoResponse(_problem_text(answer.status, problem))
    return Responded(answer)


def _read(answer: Answer) -> object:
    """Returns the parsed body of a response.

    Raises:
        AskError: The response is an error or is not JSON.
    """
    if not 200 <= answer.status < 300:
        raise _refusal(answer)
    try:
        # A DELETE response may be empty.
        return json.loads(answer.body or b"null")
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"unusable response: {error}") from error


def _refusal(answer: Answer) -> RequestError | RejectedError:
    problem = _problem(answer.body)
    detail = _problem_text(answer.status, problem)
    slug = problem.slug if problem else ""
    if problem and (answer.status, slug) == (409, "stale-generation"):
        return StaleError(f"the generation is stale: {detail}", problem.current_generation)
    if answer.status == 404 and slug in ("unknown-job", "unknown-worker"):
        return UnknownError(f"unknown job or worker: {detail}")
    # Busy and paused are temporary: leases expire and workers return.
    if answer.status == 429 or answer.status >= 500:
        return UnreachableError(f"the predictor is unavailable: {detail}")
    return RejectedError(f"the predictor rejected the request: {detail}")


def _problem(body: bytes) -> Problem | None:
    """Returns the problem in a body, if it is one of the predictor's."""
    try:
        return Problem.from_json(json.loads(body))
    except (ValueError, RecursionError, UnusableError):
        return None


def _problem_text(status: int, problem: Problem | None) -> str:
    return f"{status} {problem.title}: {problem.detail}" if problem else f"status {status}"
