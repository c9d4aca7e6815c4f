"""What one rank has to do with a tail: where it claims, with whom, and what it may expect of them."""

from dataclasses import dataclass

from evenstep.hedge.claim import Peer
from evenstep.plan import Plan, Tail


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place at a pool of a tail."""

    pool: int
    #: Where the pool's first chunk begins within the iteration.
    offset: int
    #: Samples of each of the pool's chunks, in their order.
    chunks: tuple[int, ...]
    #: How many ranks claim from the pool.
    members: int
    #: What is expected of the others; nobody where any member's speed is unknown, as then nobody can be judged by.
    peers: tuple[Peer, ...]
    #: The rank's own forecast speed in samples per second.
    speed: float | None

    @classmethod
    def of(cls, plan: Plan, rank: int) -> "Seat | None":
        """Of a rank in a plan; None: it claims nothing."""
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
        """Where a chunk begins within the iteration."""
        return self.offset + sum(self.chunks[:chunk])


def ranks_of(tail: Tail, pool: int) -> list[int]:
    """The ranks that claim from a pool."""
    return [rank for rank, own in enumerate(tail.pool) if own == pool]
