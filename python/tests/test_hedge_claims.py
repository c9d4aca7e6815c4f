"""One rank's claims on a store, and the thread that makes them."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep._native import Plan, Share, Tail
from evenstep.errors import EvenstepError, SettingError
from evenstep.hedge.claims import Claims, Turn
from evenstep.hedge.line import ClaimThread, Total, connect

#: A time that no test reaches, in seconds.
NEVER_S = 1e6


def test_an_addition_that_is_asked_after_is_made_at_once() -> None:
    line = ClaimThread(HashStore())
    for amount, total in ((3, 3), (4, 7)):
        line.add("key", amount, time.perf_counter() + NEVER_S)
        assert line.total().total == total
    line.add("key", 1, time.perf_counter())
    assert line.total().total == 8
    line.close(10.0)


def test_a_line_ends_with_an_addition_that_nobody_waits_for() -> None:
    store = HashStore()
    line = ClaimThread(store)
    line.add("key", 1, time.perf_counter() + NEVER_S)
    line.close(10.0)
    assert store.add("key", 0) == 0


class UnreachableStore:
    """An unreachable store."""

    def add(self, key: str, amount: int, /) -> int:
        raise RuntimeError(f"no connection for {key} {amount}")


def test_a_store_that_is_gone_is_said() -> None:
    line = ClaimThread(UnreachableStore())
    line.add("key", 1, time.perf_counter())
    with pytest.raises(EvenstepError, match="no connection for key 1"):
        line.total()
    line.close(10.0)


@pytest.mark.parametrize("environ", [{}, {"MASTER_ADDR": "127.0.0.1"}, {"MASTER_ADDR": "a", "MASTER_PORT": "-1"}])
def test_a_group_without_a_store_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="TCPStore"):
        connect(environ)


class ImmediateLine:
    """A line that makes additions at once: ranks share a dictionary, and the time does not advance."""

    def __init__(self, totals: dict[str, int]) -> None:
        self._totals = totals
        self._total = Total(0, 0.0, 0.0)

    def add(self, key: str, amount: int, due: float) -> None:
        assert due < math.inf
        self._totals[key] = self._totals.get(key, 0) + amount
        self._total = Total(self._totals[key], 0.0, 0.0)

    def total(self) -> Total:
        return self._total


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=12),
    split=st.integers(0, 12),
    speeds=st.lists(st.one_of(st.none(), st.floats(0.1, 1e4)), min_size=4, max_size=4),
    paces=st.lists(st.floats(1e-6, 10.0), min_size=4, max_size=4),
    acts=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=60),
)
def test_chunks_of_all_pools_are_each_taken_once_in_every_iteration(
    sizes: list[int],
    split: int,
    speeds: list[float | None],
    paces: list[float],
    acts: list[tuple[int, bool]],
) -> None:
    """For any speeds, order of claims and timing, with counters that are never reset."""
    split = 1 + split % (len(sizes) - 1)
    tail = Tail(0, tuple(sizes), (split, len(sizes) - split), (0, 0, 1, 1), tuple(speeds))
    plan = Plan((Share(0, 0),) * 4, tail=tail).checked(sum(sizes))
    totals: dict[str, int] = {}
    ranks = [Claims(ImmediateLine(totals), "test") for _ in range(4)]  # type: ignore[arg-type]  # this line needs no thread.
    at = 0
    for _ in range(3):
        turns: list[Turn] = [claims.turn(plan, rank) for rank, claims in enumerate(ranks)]
        taken: list[Share] = []
        while busy := [rank for rank in range(4) if not turns[rank].is_over]:
            who, is_ahead = acts[at % len(acts)]
            at += 1
            who = who if who in busy else busy[0]
            if is_ahead:
                turns[who].request_ahead(2, paces[who])
            if share := turns[who].next(paces[who]):
                taken.append(share)
        offsets = [sum(sizes[:chunk]) for chunk in range(len(sizes))]
        assert sorted((share.offset, share.local_batch) for share in taken) == list(zip(offsets, sizes, strict=True))
        for rank, claims in enumerate(ranks):
            claims.settle(plan, [turn.additions for turn in turns], paces[rank])
        assert sum(turn.samples for turn in turns) == sum(sizes)
