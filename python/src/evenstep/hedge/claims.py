"""The claims of one rank: the chunks of the shared tail that it takes in each iteration."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenstep._native import CLAIM, LEAVE, Counter, Plan, PoolMembership, Share
from evenstep.hedge.line import ClaimThread

#: Expected duration of the first claim, in seconds.
CLAIM_S = 5e-4

#: Weight of the newest claim in the expected duration of a claim.
LATEST = 0.2

#: A claim is sent early by this many expected durations. A larger value would hide more late responses, but a rank
#: would then hold a chunk that another rank could have begun.
AHEAD = 2.0


@dataclass(slots=True)
class Additions:
    """One rank's additions to its pool's counter in an iteration."""

    #: Number of claims, including unsuccessful ones.
    claims: int = 0
    #: Number of announcements to leave.
    leaves: int = 0


class Claims:
    """One rank's view of the pools' counters, and its connection to them."""

    def __init__(self, line: ClaimThread, prefix: str, clock: Callable[[], float] = time.perf_counter) -> None:
        """Uses new counters with keys that start with ``prefix``; ``clock`` is the clock of ``line``."""
        self.line = line
        self.clock = clock
        #: Expected duration of a claim, in seconds.
        self.claim_s = CLAIM_S
        #: This rank's seconds per sample in the previous iteration.
        self.pace_s: float | None = None
        self._prefix = prefix
        self._counter_values: dict[int, int] = {}

    def turn(self, plan: Plan, rank: int) -> "Turn":
        """Returns this rank's part in the tail of an iteration that starts now."""
        seat = plan.pool(rank)
        if not seat:
            return Turn(self)
        return Turn(self, seat, f"{self._prefix}/{seat.pool}", self._counter_values.get(seat.pool, 0))

    def settle(self, plan: Plan, additions: Sequence[Additions], pace_s: float | None) -> None:
        """Updates the counters after an iteration's all-reduce with the additions of all ranks.

        ``pace_s`` is this rank's seconds per sample, None if it computed none.
        """
        self.pace_s = self.pace_s if pace_s is None else pace_s
        tail = plan.tail
        if tail is None:
            return
        for pool in range(len(tail.pools)):
            members = [additions[rank] for rank in tail.members(pool)]
            claims, leaves = sum(own.claims for own in members), sum(own.leaves for own in members)
            self._counter_values[pool] = Counter.settle(self._counter_values.get(pool, 0), claims, leaves)


class Turn:
    """One rank's part in the tail of one iteration."""

    def __init__(self, claims: Claims, seat: PoolMembership | None = None, key: str = "", began_at: int = 0) -> None:
        """Starts at a seat; its counter has this key and started at ``began_at``. Without a seat it claims nothing."""
        self.additions = Additions()
        #: Number of claimed chunks, their samples, and the seconds of waiting for claims.
        self.chunks, self.samples, self.claim_time_s = 0, 0, 0.0
        self._claims = claims
        #: The seat; None once this rank claims no more.
        self._membership = seat
        self._key = key
        self._begun = claims.clock()
        if seat:
            self._counter = seat.counter(began_at)
            self._judge = seat.leave_rule()
        #: The addition whose total has not arrived yet.
        self._pending_addition: int | None = None
        #: Whether this rank was the last to leave, so that it must claim until no chunks are left.
        self._must_stay = False

    @property
    def is_over(self) -> bool:
        """Whether this rank claims no more."""
        return self._membership is None

    def request_ahead(self, samples: int, pace_s: float | None) -> None:
        """Requests the next chunk while this rank computes its last ``samples`` samples.

        The request is timed so that the response arrives when they are almost done. ``pace_s`` is the seconds per
        sample in this iteration up to now.
        """
        if self._membership:
            now, pace_s = self._claims.clock(), self._pace_s(self._membership, pace_s)
            left_s = pace_s * samples
            due = now + max(left_s - AHEAD * self._claims.claim_s, 0.0)
            self._ask(now - self._begun + left_s, pace_s, 0.0, due)

    def next(self, pace_s: float | None) -> Share | None:
        """Returns the next samples to compute; None if no chunks are left or the others should take them.

        Raises:
            EvenstepError: the store is unreachable.
        """
        began, claimed = self._claims.clock(), None
        while self._membership and claimed is None:
            now = self._claims.clock()
            self._ask(now - self._begun, self._pace_s(self._membership, pace_s), self._claims.claim_s, now)
            claimed = self._answer(self._membership)
        if claimed:
            self.chunks += 1
            self.samples += claimed.local_batch
        self.claim_time_s += self._claims.clock() - began
        return claimed

    def _pace_s(self, seat: PoolMembership, measured: float | None) -> float:
        """Returns the seconds per sample; before the first one, the forecast or the value of the previous iteration.

        It is 0 if neither is known; then no chunk is declined.
        """
        if measured is not None:
            return measured
        return 1 / seat.speed if seat.speed else self._claims.pace_s or 0.0

    def _ask(self, at_s: float, pace_s: float, claim_s: float, due: float) -> None:
        """Claims or announces to leave, unless an addition is in progress or no chunks are left."""
        if self._pending_addition is not None or self._judge.is_empty:
            return
        leaves = not self._must_stay and self._judge.should_leave(at_s, pace_s, claim_s)
        self._pending_addition = LEAVE if leaves else CLAIM
        self._claims.line.add(self._key, self._pending_addition, due)

    def _answer(self, seat: PoolMembership) -> Share | None:
        """Returns the claimed chunk, if any; gives up the seat when this rank is done."""
        amount, self._pending_addition = self._pending_addition, None
        if amount is None:
            self._membership = None
            return None
        total = self._claims.line.total()
        self._claims.claim_s += LATEST * (total.took_s - self._claims.claim_s)
        if amount == LEAVE:
            self.additions.leaves += 1
            self._must_stay = True
            if self._counter.may_leave(total.total):
                self._membership = None
            return None
        self.additions.claims += 1
        chunk = self._counter.claimed(total.total)
        if chunk is None:
            self._membership = None
            return None
        self._judge.record_claim(chunk, total.at - self._begun)
        return seat.share(chunk)
