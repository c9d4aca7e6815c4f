"""One rank's claims: which chunks of a tail it takes, iteration by iteration."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenstep.hedge.claim import CLAIM, LEAVE, Counter, Judge
from evenstep.hedge.line import Line
from evenstep.hedge.seat import Seat, ranks_of
from evenstep.plan import Plan, Share

#: What the first claim is expected to take, in seconds.
CLAIM_S = 5e-4

#: Weight of the latest claim in what a claim is expected to take.
LATEST = 0.2

#: A claim is made ahead by so many times what it is expected to take. More would hide more of the late ones, and would
#: have a rank sit on a chunk that another one could have begun.
AHEAD = 2.0


@dataclass(slots=True)
class Additions:
    """What one rank added to its pool's counter in an iteration."""

    #: How often it claimed, in vain too.
    claims: int = 0
    #: How often it said that it leaves.
    leaves: int = 0


class Claims:
    """The pools' counters as this rank knows them, and its connection to them."""

    def __init__(self, line: Line, prefix: str, clock: Callable[[], float] = time.perf_counter) -> None:
        """Of counters that nobody added to yet, under keys that begin with ``prefix``; ``clock`` is the line's."""
        self.line = line
        self.clock = clock
        #: What a claim takes, in seconds.
        self.claim_s = CLAIM_S
        #: This rank's seconds for a sample in the iteration before.
        self.pace_s: float | None = None
        self._prefix = prefix
        self._stand: dict[int, int] = {}

    def turn(self, plan: Plan, rank: int) -> "Turn":
        """This rank's part in the tail of an iteration that begins now."""
        seat = Seat.of(plan, rank)
        return Turn(self, seat, f"{self._prefix}/{seat.pool}", self._stand.get(seat.pool, 0)) if seat else Turn(self)

    def settle(self, plan: Plan, additions: Sequence[Additions], pace_s: float | None) -> None:
        """After an iteration's all-reduce: counters stand where everybody's additions, by rank, brought them.

        ``pace_s`` is this rank's own, None where it computed nothing.
        """
        self.pace_s = self.pace_s if pace_s is None else pace_s
        if plan.tail is None:
            return
        for pool in range(len(plan.tail.pools)):
            members = [additions[rank] for rank in ranks_of(plan.tail, pool)]
            claims, leaves = sum(own.claims for own in members), sum(own.leaves for own in members)
            self._stand[pool] = Counter.settle(self._stand.get(pool, 0), claims, leaves)


class Turn:
    """One rank's part in one iteration's tail."""

    def __init__(self, claims: Claims, seat: Seat | None = None, key: str = "", began_at: int = 0) -> None:
        """At a seat, whose counter has this key and stood at ``began_at``; without one there is nothing to claim."""
        self.additions = Additions()
        #: Chunks that were claimed, samples in them, and the seconds of waiting for claims.
        self.chunks, self.samples, self.claim_time_s = 0, 0, 0.0
        self._claims = claims
        #: None once there is nothing more to claim.
        self._seat = seat
        self._key = key
        self._begun = claims.clock()
        if seat:
            self._counter = Counter(began_at, len(seat.chunks), seat.members)
            self._judge = Judge(seat.chunks, seat.peers)
        #: What was added and has not come to a total yet.
        self._on_its_way: int | None = None
        #: It wanted to leave and was the last: it claims until the chunks are used up.
        self._is_bound = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to claim."""
        return self._seat is None

    def ask_ahead(self, samples: int, pace_s: float | None) -> None:
        """Asks for the next chunk beside the computing of the last ``samples`` of what this rank has.

        So late that the answer comes when these are about done. ``pace_s`` is the pace in this iteration so far.
        """
        if self._seat:
            now, pace_s = self._claims.clock(), self._pace_s(self._seat, pace_s)
            left_s = pace_s * samples
            due = now + max(left_s - AHEAD * self._claims.claim_s, 0.0)
            self._ask(now - self._begun + left_s, pace_s, 0.0, due)

    def next(self, pace_s: float | None) -> Share | None:
        """The next samples to compute, within the iteration; None: chunks are used up, or better left to the others.

        Raises:
            EvenstepError: the store is gone.
        """
        began, claimed = self._claims.clock(), None
        while self._seat and claimed is None:
            now = self._claims.clock()
            self._ask(now - self._begun, self._pace_s(self._seat, pace_s), self._claims.claim_s, now)
            claimed = self._answer(self._seat)
        if claimed:
            self.chunks += 1
            self.samples += claimed.local_batch
        self.claim_time_s += self._claims.clock() - began
        return claimed

    def _pace_s(self, seat: Seat, measured: float | None) -> float:
        """Seconds for a sample; before any was computed, by forecast or as in the iteration before.

        0 where nothing is known: then nothing is declined.
        """
        if measured is not None:
            return measured
        return 1 / seat.speed if seat.speed else self._claims.pace_s or 0.0

    def _ask(self, at_s: float, pace_s: float, claim_s: float, due: float) -> None:
        """Claims, or says that it leaves, unless that is on its way or nothing is left."""
        if self._on_its_way is not None or self._judge.is_empty:
            return
        leaves = not self._is_bound and self._judge.declines(at_s, pace_s, claim_s)
        self._on_its_way = LEAVE if leaves else CLAIM
        self._claims.line.add(self._key, self._on_its_way, due)

    def _answer(self, seat: Seat) -> Share | None:
        """What came of asking: a chunk, or nothing; where this rank is done it gives up its seat."""
        amount, self._on_its_way = self._on_its_way, None
        if amount is None:
            self._seat = None
            return None
        total = self._claims.line.total()
        self._claims.claim_s += LATEST * (total.took_s - self._claims.claim_s)
        if amount == LEAVE:
            self.additions.leaves += 1
            self._is_bound = True
            if self._counter.may_leave(total.total):
                self._seat = None
            return None
        self.additions.claims += 1
        chunk = self._counter.claimed(total.total)
        if chunk is None:
            self._seat = None
            return None
        self._judge.saw(chunk, total.at - self._begun)
        return Share(seat.chunk_offset(chunk), seat.chunks[chunk])
