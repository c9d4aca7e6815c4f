"""Which workers become members, in a store of one process."""

import json
import time
from collections.abc import Callable, Sequence

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.elastic.members import LeftOutError, Limits, Membership
from evenstep.errors import EvenstepError


def membership(members: Sequence[int], *, least: int = 1, check: Callable[[], None] = lambda: None) -> Membership:
    """Returns worker 0 of a first generation whose global batch is 4."""
    made = Membership(HashStore(), Limits(least, least, None, 0.0), check, _fits)
    made.number, made.generation, made.members = 0, 1, list(members)
    made.store.set("members/1", json.dumps(list(members)))
    return made


def _fits(caps: list[int | None]) -> bool:
    return sum(4 if cap is None else cap for cap in caps) >= 4


def ready(of: Membership, number: int, cap: int | None = None) -> None:
    of.store.set(f"ready/{of.store.add('ready', 1) - 1}", json.dumps([number, number, cap]))


def test_a_worker_without_the_state_comes_again() -> None:
    one = membership([0, 1])
    one.has_begun()
    one.store.set("here/2/1", "0")
    one.next_generation(time.monotonic(), has_state=True)
    assert one.members == [0]
    assert one.store.check(["dead/1"])


def test_no_generation_without_the_state() -> None:
    one = membership([0, 1])
    one.has_begun()
    one.store.set("dead/1", "1")
    with pytest.raises(EvenstepError, match="no living worker has the state"):
        one.next_generation(time.monotonic(), has_state=False)


def test_members_whose_caps_are_too_small_wait() -> None:
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            ready(one, 7, 2)

    one = membership([0, 1], check=check)
    ready(one, 0, 2)
    ready(one, 1, 2)
    one.store.set("dead/1", "1")
    one.next_generation(time.monotonic(), has_state=True)
    assert one.members == [0, 7]
    assert len(checks) >= 3


def test_the_minimum_does_not_hold_after_the_last_iteration() -> None:
    one = membership([0, 1], least=2, check=lambda: pytest.fail("waits"))
    one.store.set("dead/1", "1")
    one.store.set("over", "1")
    one.next_generation(time.monotonic(), has_state=True)
    assert one.members == [0]


@pytest.mark.parametrize(("dead", "error"), [("0", LeftOutError), ("5", EvenstepError)])
def test_a_wait_to_join_ends(dead: str, error: type[Exception]) -> None:
    """This worker was taken for dead, or all members have ended."""
    one = membership([5])
    one.store.set(f"dead/{dead}", "1")
    with pytest.raises(error, match="come in time" if dead == "0" else "no living worker"):
        one.enter(0, None)


def test_an_error_of_one_worker_ends_all() -> None:
    one = membership([0, 1])
    one.fail("the reason")
    with pytest.raises(EvenstepError, match="the reason"):
        one.next_generation(time.monotonic(), has_state=True)
