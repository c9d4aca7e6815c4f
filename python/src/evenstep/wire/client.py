"""The predictor's HTTP interface, as one job uses it: of several servers it asks one that answers."""

import json
import math
import time
from collections.abc import Callable

from evenstep.errors import RefusedError, SettingError
from evenstep.wire.errors import AskError, SilentError, StaleError, UnknownError, UnusableError
from evenstep.wire.http import Answer, Connection, ExchangeError
from evenstep.wire.ids import check_job_id, check_worker_id
from evenstep.wire.messages import (
    AllocateAnswer,
    AllocateRequest,
    JobSpec,
    JoinAnswer,
    JoinRequest,
    OomAnswer,
    OomReport,
    Problem,
)
from evenstep.wire.servers import (
    HOPS_MAX,
    SERVERS_MAX,
    Answered,
    Elsewhere,
    Route,
    Silent,
    Turn,
    UnansweredError,
    parse_servers,
)

HANDOVER_LOOKS_MAX = 10
"""How often a job is looked for again that is changing hands."""

HANDOVER_PAUSE_S = 0.02
"""How long after each other, in seconds."""

CONNECTIONS_MAX = SERVERS_MAX + HOPS_MAX
"""The most connections that a client keeps."""


class Client:
    """Predictors and a job of ours. One thread uses a client at a time; connections are kept meanwhile.

    Every request may be sent again, and is: to the next server where one is silent, and on a fresh connection
    where the kept one turns out to be closed.
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
            servers: Base URLs such as `http://host:7117`, separated by commas: predictors over one store.
            job_id: The job.
            timeout_s: How long a request may take over all servers, in seconds; for a job that is changing
                hands, at most ten pauses of 20 ms longer.
            clock: Counts seconds and never goes back.
            pause: Waits for so many seconds.

        Raises:
            SettingError: One of these breaks its rule.
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
        """The job."""
        return self._job_id

    @property
    def server(self) -> str:
        """Base URL of who is asked first now."""
        return self._route.first

    def put_job(self, spec: JobSpec) -> None:
        """Says what the job wants. Saying it again changes nothing.

        Raises:
            AskError: No usable answer.
            RefusedError: A value breaks its rule.
        """
        self._ask("PUT", f"/v1/jobs/{self._job_id}", spec.to_json())

    def join(self, request: JoinRequest) -> JoinAnswer:
        """Lets a worker take part. Joining again renews its lease.

        Raises:
            AskError: No usable answer.
            RefusedError: A value breaks its rule.
        """
        return JoinAnswer.from_json(self._ask("POST", f"/v1/jobs/{self._job_id}/workers", request.to_json()))

    def leave(self, worker: str) -> JoinAnswer:
        """Says that a worker leaves.

        Raises:
            AskError: No usable answer.
            RefusedError: The predictor refuses.
        """
        return JoinAnswer.from_json(self._ask("DELETE", self._worker_path(worker), None))

    def allocate(self, request: AllocateRequest) -> AllocateAnswer:
        """Asks for the batches of an iteration, and says how earlier ones went.

        Raises:
            StaleError: The request's generation is not the job's.
            AskError: No usable answer.
            RefusedError: Floors and caps cannot hold the batch, or a value breaks its rule.
        """
        return AllocateAnswer.from_json(self._ask("POST", "/allocate", request.to_json()))

    def report_oom(self, worker: str, iteration: int, local_batch: int) -> OomAnswer:
        """Says that a worker ran out of memory with so many samples at once. Saying it again changes nothing.

        Raises:
            AskError: No usable answer.
            RefusedError: The predictor refuses.
        """
        report = OomReport(iteration, local_batch)
        return OomAnswer.from_json(self._ask("POST", self._worker_path(worker) + "/oom", report.to_json()))

    def close(self) -> None:
        """Closes all connections. The client stays usable."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _worker_path(self, worker: str) -> str:
        # Of the characters that an id may hold only the slash means something in a path.
        return f"/v1/jobs/{self._job_id}/workers/{check_worker_id(worker).replace('/', '%2F')}"

    def _ask(self, method: str, path: str, said: dict[str, object] | None) -> object:
        """Asks whoever answers, and returns the parsed answer."""
        body = None if said is None else json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
        started = self._clock()
        looks = 0
        is_pointed = False

        def send(turn: Turn) -> Answered[Answer] | Silent | Elsewhere:
            nonlocal is_pointed
            outcome = self._turn(turn, started, method, path, body)
            is_pointed |= isinstance(outcome, Elsewhere)
            return outcome

        while True:
            is_pointed = False
            try:
                return _read(self._route.ask(path, send))
            except UnansweredError as unanswered:
                # The owner that one pointed to is ending: it takes a few milliseconds until the job is free.
                if not is_pointed or looks == HANDOVER_LOOKS_MAX:
                    raise SilentError(f"the predictor is silent: {unanswered}") from None
            looks += 1
            self._pause(HANDOVER_PAUSE_S)

    def _turn(
        self, turn: Turn, started: float, method: str, path: str, body: bytes | None
    ) -> Answered[Answer] | Silent | Elsewhere:
        left_s = self._timeout_s - (self._clock() - started)
        # The last one has all that is left, one before it half: it answered last, so it is the likeliest.
        limit_s = left_s if turn.others == 0 else left_s / 2
        if limit_s <= 0:
            return Silent("no time was left to ask it")
        try:
            answer = self._connection(turn.server).exchange(method, path, body, limit_s)
        except ExchangeError as error:
            return Silent(str(error))
        return _heard(answer)

    def _connection(self, server: str) -> Connection:
        """The connection to a server; the one that was used longest ago goes where there are too many."""
        connection = self._connections.pop(server, None) or Connection(server, self._clock)
        self._connections[server] = connection
        if len(self._connections) > CONNECTIONS_MAX:
            self._connections.pop(next(iter(self._connections))).close()
        return connection


def _heard(answer: Answer) -> Answered[Answer] | Silent | Elsewhere:
    """What came of one server's turn."""
    if answer.status == 307:
        return Elsewhere(answer.headers.get("location", ""))
    if answer.status in (502, 503, 504):
        problem = _problem(answer.body)
        # These are about the job, whose owner everybody else would point to.
        if problem is None or problem.slug not in ("paused", "cooling-down"):
            return Silent(_in_words(answer.status, problem))
    return Answered(answer)


def _read(answer: Answer) -> object:
    """The parsed body of an answer.

    Raises:
        AskError: It is a refusal, or no JSON.
    """
    if not 200 <= answer.status < 300:
        raise _refusal(answer)
    try:
        # A DELETE may answer nothing at all.
        return json.loads(answer.body or b"null")
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"unusable answer: {error}") from error


def _refusal(answer: Answer) -> AskError | RefusedError:
    problem = _problem(answer.body)
    detail = _in_words(answer.status, problem)
    slug = problem.slug if problem else ""
    if problem and (answer.status, slug) == (409, "stale-generation"):
        return StaleError(f"our generation is stale: {detail}", problem.current_generation)
    if answer.status == 404 and slug in ("unknown-job", "unknown-worker"):
        return UnknownError(f"the predictor does not know us: {detail}")
    # Busy and paused are states that pass: leases run out and workers come back.
    if answer.status == 429 or answer.status >= 500:
        return SilentError(f"the predictor is silent: {detail}")
    return RefusedError(f"the predictor refused: {detail}")


def _problem(body: bytes) -> Problem | None:
    """The refusal in a body, where it is one of the predictor's."""
    try:
        return Problem.from_json(json.loads(body))
    except (ValueError, RecursionError, UnusableError):
        return None


def _in_words(status: int, problem: Problem | None) -> str:
    return f"{status} {problem.title}: {problem.detail}" if problem else f"status {status}"
