"""The rules of hedged steps without I/O: the owner of each chunk, leaving, and chunk sizes."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep._native import CHUNKS_PER_RANK_MAX, CLAIM, LEAVE, Counter, LeaveRule, Peer, Plan, Share, Tail, chunks
from evenstep.errors import SettingError
from evenstep.hedge.reduce import Reducer, digits, from_digits
from evenstep.settings.chunks import SharedTail


def wrapped(total: int) -> int:
    return (total + 2**63) % 2**64 - 2**63


@given(
    count=st.integers(0, 20),
    members=st.integers(1, 5),
    began_at=st.integers(-(2**63), 2**63 - 1),
    acts=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=300),
)
def test_every_chunk_is_taken_exactly_once(
    count: int, members: int, began_at: int, acts: Sequence[tuple[int, bool]]
) -> None:
    """For any order of claims and leaves, over several iterations of a counter that is never reset."""
    total, turn = began_at, 0
    for _ in range(3):
        began_at, claims, leaves = total, 0, 0
        counter = Counter(began_at, count, members)
        taken = [0] * count
        states = ["claiming"] * members
        while any(state != "done" for state in states):
            who, wants_to_leave = acts[turn % len(acts)]
            turn += 1
            if who >= members or states[who] == "done":
                who = next(at for at, state in enumerate(states) if state != "done")
            if wants_to_leave and states[who] == "claiming":
                total, leaves = wrapped(total + LEAVE), leaves + 1
                states[who] = "done" if counter.may_leave(total) else "bound"
            else:
                total, claims = wrapped(total + CLAIM), claims + 1
                chunk = counter.claimed(total)
                if chunk is None:
                    states[who] = "done"
                else:
                    taken[chunk] += 1
        assert taken == [1] * count
        assert Counter.settle(began_at, claims, leaves) == total


def test_the_slow_decline_at_the_end_and_the_fast_do_not() -> None:
    """The golden values of the same rule in the project's trainer (crates/rules/src/claim.rs)."""
    others = [Peer(base_end_s=1.0, speed=10.0)] * 3
    sizes = [20, 10, 10, 4, 4]
    judge = LeaveRule(sizes, others)
    # A chunk of 20 takes three seconds, or four: the others need 1.6 s for all 48, and the last of them 2 s more.
    assert not judge.should_leave(1.0, 0.15, 0.0)
    assert judge.should_leave(1.0, 0.2, 0.0)
    judge.record_claim(0, 1.0)
    judge.record_claim(3, 2.0)
    # In two seconds the others computed 30 samples and claimed 20 more, of which 12 may be unfinished: the last four
    # samples take them 0.84 s.
    assert judge.should_leave(2.0, 0.25, 0.0)
    assert not judge.should_leave(2.0, 0.15, 0.0)
    assert judge.should_leave(2.0, 0.15, 0.5), "a claim would take longer than all remaining samples"
    assert not judge.is_empty
    judge.record_claim(4, 3.0)
    assert judge.is_empty
    assert not LeaveRule(sizes, []).should_leave(0.0, 1e9, 1.0), "there are no other members"


def test_chunks_are_those_of_the_predictor() -> None:
    """The golden values of crates/rules/src/chunks.rs."""
    assert chunks(64, 8, 4, 1) == [9, 8, 6, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    assert chunks(64, 4, 8, 8) == [16, 8, 8, 8, 8, 8, 8]
    assert chunks(3, 2, 4, 1) == [3]
    assert chunks(0, 2, 4, 1) == []


@given(tail=st.integers(0, 4999), parts=st.integers(1, 79), least=st.integers(1, 8), quantum=st.integers(1, 8))
def test_chunks_add_up_and_shrink(tail: int, parts: int, least: int, quantum: int) -> None:
    smallest = least * quantum
    sizes = chunks(tail * quantum, parts, smallest, quantum)
    assert sum(sizes) == tail * quantum
    assert all(chunk % quantum == 0 and chunk > 0 for chunk in sizes)
    assert all(chunk >= smallest for chunk in sizes[:-1])
    assert sizes == sorted(sizes, reverse=True)


@given(
    size=st.integers(0, 1 << 16),
    quantum=st.integers(1, 8),
    quanta=st.integers(1, 8),
    share=st.floats(0.001, 1.0),
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=8),
)
def test_shares_and_a_tail_cover_in_whole_quanta(
    size: int, quantum: int, quanta: int, share: float, weights: list[int]
) -> None:
    shared, ranks = SharedTail(share, quantum * quanta), len(weights)
    shared.check(quantum)
    before = Plan.of(weights).resized(size, quantum)
    plan = before.with_tail(shared.share, shared.min_chunk, quantum).checked(size)
    tail = plan.tail
    if tail is None:
        assert int(share * size) < quantum
        return
    assert len(tail.chunks) <= CHUNKS_PER_RANK_MAX * ranks
    assert all(chunk % quantum == 0 for chunk in tail.chunks)
    assert len(tail.chunks) == 1 or min(tail.chunks) >= shared.min_chunk
    for rank in range(ranks):
        seat = plan.pool(rank)
        assert seat
        assert seat.chunks == tail.chunks
        assert (seat.members, seat.peers) == (ranks, [])


@pytest.mark.parametrize(("share", "min_chunk"), [(0.0, 4), (1.1, 4), (float("nan"), 4), (0.3, 6), (0.3, 0)])
def test_tails_that_cannot_be_are_refused(share: float, min_chunk: int) -> None:
    with pytest.raises(SettingError, match="must be"):
        SharedTail(share, min_chunk).check(4)


def test_who_sits_where() -> None:
    """If one speed of a pool is unknown, there are no peers; pools have separate parts of the tail."""
    shares = (Share(0, 10), Share(10, 20), Share(30, 5))
    known = Plan(shares, tail=Tail(35, (6, 3), (2,), (0, 0, None), (10.0, 40.0, None)))
    seat = known.pool(0)
    assert seat is not None
    assert (seat.pool, seat.offset, seat.chunks, seat.members, seat.speed) == (0, 35, [6, 3], 2, 10.0)
    assert seat.peers == [Peer(0.5, 40.0)]
    assert known.pool(2) is None
    unknown = Plan(shares, tail=Tail(35, (6, 3), (2,), (0, 0, None), (10.0, None, None))).pool(0)
    assert unknown is not None
    assert (unknown.peers, unknown.speed) == ([], 10.0)
    pools = Plan(shares, tail=Tail(35, (6, 3, 2), (1, 2), (0, 1, 1), (None,) * 3)).pool(2)
    assert pools is not None
    assert (pools.pool, pools.offset, pools.chunks, pools.members) == (1, 41, [3, 2], 2)
    assert [pools.share(chunk) for chunk in range(2)] == [Share(41, 3), Share(44, 2)]


def test_tails_that_ranks_cannot_claim_are_refused() -> None:
    for chunks_, pools, seats, rule in [
        ((), (), (0, 0), "0 chunks must be 1 to 32"),
        ((3, 0), (2,), (0, 0), "must not be empty"),
        ((3, 2), (1,), (0, 0), "must have 2 chunks in total"),
        ((3, 2), (2,), (0, 7), "below the number of pools"),
        ((3, 2), (2,), (None, None), "no worker"),
    ]:
        with pytest.raises(SettingError, match=rule):
            Tail(0, chunks_, pools, seats, (None, None))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=4))
def test_numbers_travel_in_the_smallest_type(numbers: list[int]) -> None:
    slots = torch.tensor(digits(numbers), dtype=torch.bfloat16)
    assert from_digits([int(digit) for digit in slots.tolist()]) == numbers


def test_gradients_add_up_with_their_weights_in_the_layout_of_their_parameters() -> None:
    first = torch.nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    second = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    unused = torch.nn.Parameter(torch.zeros(2))
    reducer = Reducer([first, second, unused], [], None, numbers=2)
    for _ in range(2):
        reducer.begin()
        for weight in (0.25, 0.5):
            first.grad, second.grad = torch.ones_like(first), torch.arange(3, dtype=torch.float64)
            reducer.add(weight)
        assert reducer.reduce([70_000, 3], source=0) == [[70_000, 3]]
        assert first.grad is not None
        assert first.grad.stride() == first.stride()
        assert torch.equal(first.grad, torch.full_like(first, 0.75))
        assert second.grad is not None
        assert torch.equal(second.grad, 0.75 * torch.arange(3, dtype=torch.float64))
        assert unused.grad is not None
        assert not unused.grad.any()
