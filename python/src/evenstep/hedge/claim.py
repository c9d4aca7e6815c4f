"""A rank's side of a tail: one counter for a pool, and the judgement whether to take more.

Members share one counter and change it by atomic additions only: :data:`CLAIM` takes the next chunk, :data:`LEAVE`
says that this member takes no more. Every chunk is taken by exactly one: additions are in one order for all, so each
total up to the number of chunks is seen once. And every chunk is taken: a member stops when the chunks are used up, or
by leaving, and whoever would be the last to leave must stay.

The counter is never set back. What it stood at when an iteration began is what the additions of all iterations before
come to, which ranks tell each other by the all-reduce: see :meth:`Counter.settle`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Added to claim the next chunk.
CLAIM = 1

#: Added to claim no more in this iteration.
LEAVE = 1 << 32


@dataclass(frozen=True, slots=True)
class Counter:
    """A pool's counter in one iteration, as a member reads it."""

    #: What it stood at when the iteration began.
    began_at: int
    chunks: int
    members: int

    def claimed(self, total: int) -> int | None:
        """The chunk that an addition of :data:`CLAIM` took, by the total that it gave; None: they are used up."""
        chunk = (_wrapped(total - self.began_at) & (LEAVE - 1)) - 1
        return chunk if 0 <= chunk < self.chunks else None

    def may_leave(self, total: int) -> bool:
        """Whether a member that added :data:`LEAVE` may leave, by the total that this gave.

        Else all others have left, and it must claim until the chunks are used up.
        """
        return 0 <= _wrapped(total - self.began_at) >> 32 < self.members

    @staticmethod
    def settle(began_at: int, claims: int, leaves: int) -> int:
        """Where a counter stands after an iteration with so many additions of each kind, over all members."""
        return _wrapped(began_at + claims * CLAIM + leaves * LEAVE)


def _wrapped(total: int) -> int:
    """As the store's counters, which are signed numbers of 64 bits."""
    return (total + 2**63) % 2**64 - 2**63


@dataclass(frozen=True, slots=True)
class Peer:
    """What a member expects of another one."""

    #: When it will have done its base, in seconds after the begin of the iteration.
    base_end_s: float
    #: Its speed in samples per second.
    speed: float


class Judge:
    """Whether the others would sooner finish without this member.

    It knows its own pace, which it has just measured, and what the others have done: their bases, and the chunks that
    are taken and not its own. So it knows how fast they were until it claimed last, less a chunk each that they may not
    have done yet; before its first claim it has the forecasts. The others will have done what is left after
    ``left / speed``, and the one that comes last up to a chunk later.
    """

    def __init__(self, chunks: Sequence[int], others: Sequence[Peer]) -> None:
        """Of a member of a pool with chunks of so many samples; without others it declines nothing."""
        self._chunks = chunks
        self._others = others
        self._speed = sum(peer.speed for peer in others)
        self._bases = sum(peer.speed * peer.base_end_s for peer in others)
        #: Chunks that are known to be taken, and when that was known.
        self._taken = 0
        self._at_s = 0.0
        #: Samples in them that others took.
        self._by_others = 0
        #: Samples in the chunks that are not known to be taken.
        self._left = sum(chunks)

    @property
    def is_empty(self) -> bool:
        """Whether every chunk is known to be taken."""
        return self._taken == len(self._chunks)

    def saw(self, chunk: int, at_s: float) -> None:
        """This member took a chunk, and all before it were taken, ``at_s`` seconds after the begin of the iteration."""
        samples = sum(self._chunks[self._taken : chunk + 1])
        self._left -= samples
        self._by_others += samples - self._chunks[chunk]
        self._taken, self._at_s = chunk + 1, at_s

    def declines(self, now_s: float, pace_s: float, claim_s: float) -> bool:
        """Whether to leave the rest to the others.

        Args:
            now_s: seconds after the begin of the iteration.
            pace_s: this member's seconds for a sample in this iteration.
            claim_s: what a claim takes, in seconds.
        """
        others = len(self._others)
        if not others:
            return False
        if self._by_others:
            in_flight = others * self._chunks[self._taken - 1]
            speed = max(self._bases + self._by_others - in_flight, 1.0) / max(self._at_s, 1e-9)
            done = speed * (now_s - self._at_s)
        else:
            speed = self._speed
            done = sum(peer.speed * max(now_s - peer.base_end_s, 0.0) for peer in self._others)
        left = max(self._left - done, 0.0)
        chunk = self._chunk_at(left)
        others_s = (left + others * chunk) / speed if speed > 0 else math.inf
        return claim_s + pace_s * chunk > others_s

    def _chunk_at(self, left: float) -> int:
        """The chunk that comes next where so many samples are left."""
        after, chunk = self._left, 0
        for chunk in self._chunks[self._taken :]:
            after -= chunk
            if after < left:
                break
        return chunk
