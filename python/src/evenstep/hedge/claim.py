"""The claim rules of one rank: a counter per pool, and the decision whether to claim more.

Members of a pool share one counter and change it only by atomic additions: :data:`CLAIM` claims the next chunk,
:data:`LEAVE` announces that this member claims no more. Exactly one member claims each chunk: additions have one order
for all, so each total up to the number of chunks occurs once. Every chunk is claimed: a member stops when no chunks are
left, or by leaving, and the last member cannot leave.

The counter is never reset. Its value at the start of an iteration is the sum of all earlier additions, which ranks
exchange in the all-reduce: see :meth:`Counter.settle`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Added to claim the next chunk.
CLAIM = 1

#: Added to announce that this member claims no more in this iteration.
LEAVE = 1 << 32


@dataclass(frozen=True, slots=True)
class Counter:
    """A pool's counter in one iteration, as read by a member."""

    #: Its value at the start of the iteration.
    began_at: int
    chunks: int
    members: int

    def claimed(self, total: int) -> int | None:
        """Returns the chunk claimed by an addition of :data:`CLAIM` with this total; None if no chunks are left."""
        chunk = (_wrapped(total - self.began_at) & (LEAVE - 1)) - 1
        return chunk if 0 <= chunk < self.chunks else None

    def may_leave(self, total: int) -> bool:
        """Returns whether a member that added :data:`LEAVE` and got this total may leave.

        Otherwise all others have left, and it must claim until no chunks are left.
        """
        return 0 <= _wrapped(total - self.began_at) >> 32 < self.members

    @staticmethod
    def settle(began_at: int, claims: int, leaves: int) -> int:
        """Returns the counter's value after an iteration with these numbers of additions over all members."""
        return _wrapped(began_at + claims * CLAIM + leaves * LEAVE)


def _wrapped(total: int) -> int:
    """Wraps to a signed 64-bit number, like the store's counters."""
    return (total + 2**63) % 2**64 - 2**63


@dataclass(frozen=True, slots=True)
class Peer:
    """The expected progress of another member."""

    #: Expected end of its base batch, in seconds after the start of the iteration.
    base_end_s: float
    #: Its speed in samples per second.
    speed: float


class LeaveRule:
    """Decides whether the others would finish sooner without this member.

    A member knows its own measured seconds per sample. It also knows the work of the others: their base batches and the
    chunks that they claimed. From this it estimates their speed up to its last claim, minus one possibly unfinished
    chunk each. Before its first claim it uses the forecasts. The others finish the remaining samples after ``left /
    speed``, and the last of them up to one chunk later.
    """

    def __init__(self, chunks: Sequence[int], others: Sequence[Peer]) -> None:
        """Creates the decision for a member of a pool with these chunk sizes; without peers it never declines."""
        self._chunks = chunks
        self._others = others
        self._speed = sum(peer.speed for peer in others)
        self._bases = sum(peer.speed * peer.base_end_s for peer in others)
        #: Number of chunks known to be claimed, and the time of that knowledge.
        self._taken = 0
        self._at_s = 0.0
        #: Number of samples in chunks that others claimed.
        self._claimed_by_others = 0
        #: Number of samples in chunks not known to be claimed.
        self._left = sum(chunks)

    @property
    def is_empty(self) -> bool:
        """Whether every chunk is known to be claimed."""
        return self._taken == len(self._chunks)

    def record_claim(self, chunk: int, at_s: float) -> None:
        """Records that this member claimed ``chunk``, so all earlier ones are claimed.

        ``at_s`` is the time in seconds after the start of the iteration.
        """
        samples = sum(self._chunks[self._taken : chunk + 1])
        self._left -= samples
        self._claimed_by_others += samples - self._chunks[chunk]
        self._taken, self._at_s = chunk + 1, at_s

    def should_leave(self, now_s: float, pace_s: float, claim_s: float) -> bool:
        """Returns whether to leave the remaining chunks to the others.

        Args:
            now_s: seconds after the start of the iteration.
            pace_s: this member's seconds per sample in this iteration.
            claim_s: expected duration of a claim, in seconds.
        """
        others = len(self._others)
        if not others:
            return False
        if self._claimed_by_others:
            in_flight = others * self._chunks[self._taken - 1]
            speed = max(self._bases + self._claimed_by_others - in_flight, 1.0) / max(self._at_s, 1e-9)
            done = speed * (now_s - self._at_s)
        else:
            speed = self._speed
            done = sum(peer.speed * max(now_s - peer.base_end_s, 0.0) for peer in self._others)
        left = max(self._left - done, 0.0)
        chunk = self._chunk_at(left)
        others_s = (left + others * chunk) / speed if speed > 0 else math.inf
        return claim_s + pace_s * chunk > others_s

    def _chunk_at(self, left: float) -> int:
        """Returns the size of the next chunk when this number of samples is left."""
        after, chunk = self._left, 0
        for chunk in self._chunks[self._taken :]:
            after -= chunk
            if after < left:
                break
        return chunk
