# ruff: noqa: PYI021
"""The native module: rules and client that the package shares with evenstep's Rust programs.

`python/native` has its source. Numbers of samples, iterations and ranks are at least 0 and below 2^64.
"""

import os
from collections.abc import Callable, Mapping, Sequence

CLAIM: int
"""Added to a pool's counter to claim the next chunk."""

LEAVE: int
"""Added to announce that this member claims no more."""

CHUNKS_PER_RANK_MAX: int
"""Maximum number of chunks in a tail, per rank on average."""

REPORT_NAMES: Sequence[str]
"""Names of the numbers of a report in its row, in order, after the iteration plus 1 and before the readings."""

DRIVER_NAMES: Sequence[str]
"""Names of the readings that enter a forecast, in order."""

def version() -> str:
    """Returns the version of the module, which equals the package's."""

def apportion(size: int, weights: Sequence[int], quantum: int = 1) -> list[int]:
    """Splits ``size`` by ``weights`` into whole quanta: largest remainders (Hamilton), ties to the lower rank.

    The samples below one quantum go to the next rank in the same order. Without a positive weight the split is even.
    It uses integers only, so all ranks compute the same result.
    """

def chunks(tail: int, parts: int, smallest: int, quantum: int = 1) -> list[int]:
    """Returns chunk sizes by factoring (Hummel, Schonberg, Flynn, CACM 1992): the remaining samples over ``parts``.

    Args:
        tail: number of samples, a multiple of ``quantum``; the chunks sum to it.
        parts: usually twice the number of ranks; at least 1.
        smallest: minimum chunk size, a multiple of ``quantum``, at least 1; only a smaller tail has a smaller chunk.
        quantum: every chunk is a multiple of it.
    """

class Share:
    """Samples ``offset .. offset + local_batch`` of an iteration."""

    def __init__(self, offset: int, local_batch: int) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def local_batch(self) -> int: ...

class Tail:
    """The last part of an iteration, which is not assigned to a rank: free ranks claim its chunks in order."""

    def __init__(
        self,
        offset: int,
        chunks: Sequence[int],
        pools: Sequence[int],
        pool: Sequence[int | None],
        speed: Sequence[float | None],
    ) -> None:
        """Creates a tail.

        Args:
            offset: offset of its first sample within the iteration.
            chunks: number of samples of each chunk.
            pools: number of successive chunks that each pool has.
            pool: by rank, the pool that it claims from, or None if it claims nothing.
            speed: by rank, its forecast speed in samples per second, or None if unknown.

        Raises:
            SettingError: a chunk or a pool breaks a rule.
        """
    @property
    def offset(self) -> int: ...
    @property
    def chunks(self) -> list[int]: ...
    @property
    def pools(self) -> list[int]: ...
    def members(self, pool: int) -> list[int]:
        """Returns the ranks that claim from a pool."""

class Rate:
    """A multiplier of the schedule's learning rate, and the rest of the current ramp, if any."""

    def __init__(self, multiplier: float = 1.0, ramp: tuple[float, float, int, int] | None = None) -> None:
        """A ramp is its multiplier at the start and at the end, its first iteration, and the number of iterations."""
    def at(self, iteration: int) -> float:
        """Returns the multiplier in an iteration.

        On a ramp it is ``start + (end - start) min(1, (iteration - first) / iterations)``, the rule of Dynamic
        Mini-batch SGD (arXiv 1904.12043) after workers join.
        """

class Plan:
    """The shares of all ranks in an iteration, and the learning-rate multiplier."""

    def __init__(self, shares: Sequence[Share], rate: Rate | None = None, tail: Tail | None = None) -> None: ...
    @staticmethod
    def of(batches: Sequence[int], rate: Rate | None = None) -> Plan:
        """Returns a plan with these local batches, in rank order without gaps."""
    @staticmethod
    def even(size: int, world_size: int, quantum: int = 1) -> Plan:
        """Returns a plan with shares as equal as whole quanta allow."""
    @property
    def shares(self) -> list[Share]: ...
    @property
    def rate(self) -> Rate: ...
    @property
    def tail(self) -> Tail | None: ...
    @property
    def batches(self) -> list[int]:
        """The local batches by rank."""
    @property
    def size(self) -> int:
        """The number of samples of the iteration: all shares and the tail."""
    def resized(self, size: int, quantum: int) -> Plan:
        """Returns a plan with the same proportions for another number of samples, without a tail."""
    def in_samples(self, sizes: Sequence[int], samples_per_unit: float) -> Plan:
        """Returns the plan, whose shares are in units of cost, with these numbers of samples of ranks, then of chunks.

        Chunks without samples are left out. Speeds become samples per second.

        Raises:
            SettingError: there is not one number for each rank and each chunk.
        """
    def with_tail(self, share: float, min_chunk: int, quantum: int) -> Plan:
        """Returns the plan with a tail for all ranks, None if it has no samples; shares shrink in proportion."""
    def checked(self, size: int) -> Plan:
        """Returns this plan after a check.

        Raises:
            DivergedError: its shares and chunks do not cover an iteration of ``size`` samples exactly once.
        """
    def pool(self, rank: int) -> PoolMembership | None:
        """Returns a rank's membership in a pool of the tail; None if it claims nothing."""
    def to_json(self) -> str:
        """Returns the JSON form, which is sent between ranks and stored in checkpoints."""
    @staticmethod
    def from_json(text: str) -> Plan:
        """Restores a plan from the result of :meth:`to_json`.

        Raises:
            SettingError: the text is not a plan.
        """

class PoolMembership:
    """A rank's membership in a pool of a tail."""

    @property
    def pool(self) -> int: ...
    @property
    def offset(self) -> int:
        """Offset of the pool's first chunk within the iteration."""
    @property
    def chunks(self) -> list[int]:
        """Number of samples of each of the pool's chunks, in order."""
    @property
    def members(self) -> int:
        """Number of ranks that claim from the pool."""
    @property
    def peers(self) -> list[Peer]:
        """Expected progress of the others; empty if any member's speed is unknown."""
    @property
    def speed(self) -> float | None:
        """The rank's own forecast speed in samples per second."""
    def share(self, chunk: int) -> Share:
        """Returns a chunk as samples of the iteration."""
    def counter(self, began_at: int) -> Counter:
        """Returns the pool's counter in an iteration; ``began_at`` is its value at the start."""
    def leave_rule(self) -> LeaveRule:
        """Returns the decision whether to leave the remaining chunks to the others."""

class Peer:
    """Expected progress of another member."""

    def __init__(self, base_end_s: float, speed: float) -> None: ...
    @property
    def base_end_s(self) -> float:
        """Expected end of its base batch, in seconds after the start of the iteration."""
    @property
    def speed(self) -> float:
        """Its speed in samples per second."""

class Counter:
    """A pool's counter in one iteration, as read by a member. It is changed only by atomic additions."""

    def __init__(self, began_at: int, chunks: int, members: int) -> None:
        """``began_at`` is its value at the start of the iteration."""
    def claimed(self, total: int) -> int | None:
        """Returns the chunk claimed by an addition of :data:`CLAIM` with this total; None if no chunks are left."""
    def may_leave(self, total: int) -> bool:
        """Returns whether a member that added :data:`LEAVE` and got this total may leave.

        Otherwise all others have left, and it must claim until no chunks are left.
        """
    @staticmethod
    def settle(began_at: int, claims: int, leaves: int) -> int:
        """Returns the counter's value after an iteration with these numbers of additions over all members."""

class LeaveRule:
    """Decides whether the others would finish sooner without this member: `crates/rules/src/claim.rs`."""

    def __init__(self, chunks: Sequence[int], others: Sequence[Peer]) -> None:
        """Creates the decision for a member of a pool with these chunk sizes; without peers it never declines."""
    @property
    def is_empty(self) -> bool:
        """Whether every chunk is known to be claimed."""
    def record_claim(self, chunk: int, at_s: float) -> None:
        """Records that this member claimed ``chunk``, so all earlier ones are claimed.

        ``at_s`` is the time in seconds after the start of the iteration.
        """
    def should_leave(self, now_s: float, pace_s: float, claim_s: float) -> bool:
        """Returns whether to leave the remaining chunks to the others.

        Args:
            now_s: seconds after the start of the iteration.
            pace_s: this member's seconds per sample in this iteration.
            claim_s: expected duration of a claim, in seconds.
        """

class Shuffle:
    """A pseudorandom permutation of ``range(samples)``, evaluated at any position in constant memory."""

    def __init__(self, samples: int, seed: int) -> None:
        """Creates the permutation; the same samples and seed give the same one in every release.

        Raises:
            SettingError: there are no samples.
        """
    def indices(self, begin: int, end: int) -> bytes:
        """Returns the indices at positions ``begin`` to ``end`` as little-endian 64-bit integers.

        Raises:
            SettingError: the positions are not in order, beyond the samples, or more than 2^24.
        """

class Cut:
    """The samples of an iteration by part and pass: ``crates/rules/src/cut``.

    The costs of the parts are in proportion to their weights. The same arguments give the same cut on every machine.
    """

    def __init__(
        self,
        costs: Sequence[float],
        weights: Sequence[int],
        *,
        lengths: Sequence[int] | None = None,
        max_tokens: int | None = None,
        padded: bool = False,
        least: int = 1,
        passes: int = 1,
        is_equal: bool = True,
    ) -> None:
        """Cuts an iteration. Other threads run meanwhile.

        Args:
            costs: by position in the iteration, the cost of a sample in any unit, from 1e-30 to 1e30.
            weights: by part, its weight. A part of weight 0 gets no samples.
            lengths: by position, the tokens of a sample. ``max_tokens`` and ``padded`` require it.
            max_tokens: maximum number of tokens of one pass; None for no limit.
            padded: whether a pass is padded to its longest sample, so that it has ``count * longest`` tokens.
                Otherwise it has the sum of the lengths.
            least: minimum number of samples of a pass. Only an iteration with fewer samples has smaller passes.
            passes: minimum number of passes of each part with samples. Without ``max_tokens``, their number.
            is_equal: whether all parts with samples have the same number of passes. Parts with too few samples get
                cheap ones from others. If there are too few, or the iteration would take longer, the parts with the
                lowest weights get none.

        Raises:
            SettingError: an argument breaks its rule; the message names the value and its position.
        """
    @property
    def passes(self) -> int:
        """The number of passes of each part with samples; the maximum, if they are not equal."""
    @property
    def excess(self) -> float:
        """The finish of the part that finishes last, over a lower bound, minus 1."""
    def part(self, index: int) -> list[list[int]]:
        """Returns the positions of a part's samples by pass, in ascending order within a pass.

        A part without samples has no passes. The most expensive pass is the first.

        Raises:
            IndexError: there is no such part.
        """
    def cost(self, index: int) -> float:
        """Returns the sum of the costs of a part's samples.

        Raises:
            IndexError: there is no such part.
        """

class Predictor:
    """Rank 0's connection to the predictor. Its thread sends requests without the interpreter's lock."""

    def __init__(
        self,
        servers: str,
        job_id: str,
        spec: str,
        workers: str,
        *,
        begin: int = 0,
        resumed: bool = False,
        restarted: bool = False,
        former: Sequence[str] | None = None,
        timeout_s: float = 2.0,
        find_server: Callable[[], str | None] | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Prepares a connection; nothing is sent yet.

        Args:
            servers: URLs such as ``http://host:7117``, separated by commas: predictors that share one store.
            job_id: the job.
            spec: JSON of the body of ``PUT /v1/jobs/{job}``.
            workers: JSON of a list of bodies of ``POST /v1/jobs/{job}/workers``, in rank order.
            begin: the first iteration of this run.
            resumed: whether the run resumes from a checkpoint. It may request allocations again.
            restarted: whether torchrun restarted the run. The job's earlier state then belongs to this run, and dead
                workers may still be listed.
            former: names of workers that took part in this run and do not any more. They leave the job.
            timeout_s: timeout of a request over all servers, in seconds.
            find_server: called in another thread before each attempt to restore a lost connection. If it returns
                servers, they replace the current ones.
            tls: TLS for URLs with ``https://``; None trusts public CAs.

        Raises:
            SettingError: an argument breaks its rule.
        """
    def open(self, wanted: Sequence[tuple[int, int]]) -> list[Plan | None]:
        """Registers the run and returns the plans of the first iterations; None where no predictor responds.

        Raises:
            RejectedError: the predictor rejects this run.
        """
    def take(self, iteration: int) -> Plan | None:
        """Returns the newest unused plan for this iteration or an earlier one. Never waits."""
    def learn(
        self,
        iteration: int,
        rows: Sequence[float],
        then: tuple[int, int],
        step: tuple[float | None, float] | None = None,
    ) -> None:
        """Keeps the reports of an iteration, rows by rank, and requests the plan of ``then``. Never waits."""
    def close(self, timeout_s: float) -> None:
        """Delivers the last reports and leaves the job, if the predictor responds within this time."""
    def messages(self) -> list[str]:
        """Returns and removes the messages for a log."""
    @property
    def cpu_s(self) -> float:
        """CPU time of the requests up to now, in seconds."""

class ClientTls:
    """CAs that a client trusts and its own certificate, from PEM files for ``https://``, and its token."""

    def __init__(
        self,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] = ...,
    ) -> None:
        """Reads the files.

        Args:
            ca: the CAs to trust, and no others; None for public CAs.
            certificate: the client's certificate chain, for servers that require one.
            key: its private key.
            environ: the variables ``EVENSTEP_TOKEN`` or ``EVENSTEP_TOKEN_FILE``, if the client has a token.

        Raises:
            SettingError: a file cannot be used; the message names it and the rule.
        """

class Http:
    """A kept connection to one server."""

    def __init__(self, server: str, tls: ClientTls | None = None) -> None:
        """Stores the base URL of the server, and the TLS for ``https://``.

        Raises:
            SettingError: it is not a base URL.
        """
    def get(self, path: str, timeout_s: float) -> HttpResponse:
        """Requests a resource; the timeout is in seconds.

        Raises:
            EvenstepError: no complete response arrived in time.
        """

class Sensors:
    """Reads this process and its machine from ``/proc``. Use a reader from one thread only."""

    def __init__(self) -> None:
        """Starts without a reading; the first one has only values that need no window."""
    def read(self) -> dict[str, float]:
        """Returns the available readings by name, in the order of ``DRIVER_NAMES``. Other threads run meanwhile.

        Shares and rates are over the window since the last call.
        """

class HttpResponse:
    """The response of a server."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> dict[str, str]:
        """The headers; names in lower case."""
    @property
    def body(self) -> bytes: ...

def check_job_id(job_id: str) -> str:
    """Validates the id of a job and returns it.

    Raises:
        SettingError: the id breaks the rule.
    """

def check_worker_id(worker: str) -> str:
    """Validates the id of a worker (usually ``node/slot``) and returns it.

    Raises:
        SettingError: the id breaks the rule.
    """

def parse_servers(text: str) -> list[str]:
    """Returns the base URLs in a comma-separated list, without trailing slashes.

    Raises:
        SettingError: a URL breaks the rule; the message names it.
    """

def check_job_options(text: str) -> None:
    """Checks the names and types in the JSON of a body of ``PUT /v1/jobs/{job}``.

    Raises:
        SettingError: an unknown option, or one of another type.
    """

def report_oom(
    servers: str,
    job_id: str,
    worker: str,
    iteration: int,
    local_batch: int,
    timeout_s: float,
    tls: ClientTls | None = None,
) -> int:
    """Reports that a worker ran out of memory with a number of samples, and returns its new cap.

    Raises:
        EvenstepError: no usable response.
        RejectedError: the predictor rejects the request.
    """
