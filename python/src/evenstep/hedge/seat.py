"""One rank's membership in a pool of the tail: the pool, its members, and their expected progress."""

from dataclasses import dataclass

from evenstep.hedge.claim import Peer
from evenstep.plan import Plan, Tail


@dataclass(frozen=True, slots=True)
class PoolMembership:
    """A rank's membership in a pool of a tail."""

    pool: int
    #: Offset of the pool's first chunk within the iteration.
    offset: int
    #: Number of samples of each of the pool's chunks, in order.
    chunks: tuple[int, ...]
    #: Number of ranks that claim from the pool.
    members: int
    #: Expected progress of the others; empty if any member's speed is unknown.
    peers: tuple[Peer, ...]
    #: The rank's own forecast speed in samples per second.
    speed: float | None

    @classmethod
    def of(cls, plan: Plan, rank: int) -> "PoolMembership | None":
        """Returns a rank's seat in a plan; None if it claims nothing."""
        tail = plan.tail
        pool = tail.pool[rank] if tail else None
        if tail is None or pool is None:
            return None
        before = sum(tail.pools[:pool])
        members = ranks_of(tail, pool)
        speeds = {member: tail.speed[member] for member in members}
        peers = [
            Peer(plan.shares[member].local_batch / speed, speed)
            for member, speed in speeds.items()
            if speed and member != rank
        ]
        return cls(
            pool=pool,
            offset=tail.offset + sum(tail.chunks[:before]),
            chunks=tail.chunks[before : before + tail.pools[pool]],
            members=len(members),
            peers=tuple(peers) if all(speeds.values()) else (),
            speed=speeds[rank],
        )

    def chunk_offset(self, chunk: int) -> int:
        """Returns the offset of a chunk within the iteration."""
        return self.offset + sum(self.chunks[:chunk])


def ranks_of(tail: Tail, pool: int) -> list[int]:
    """Returns the ranks that claim from a pool."""
    return [rank for rank, own in enumerate(tail.pool) if own == pool]
