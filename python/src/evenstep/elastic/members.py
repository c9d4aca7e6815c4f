"""The members of an elastic job, generation by generation.

A generation ends when a member sees a failure, or when all have agreed in an iteration that a worker comes or leaves.
Each living member then registers for the next one. It is closed when every other member has registered or has ended,
or when the limit is over: a worker that hangs is left out. Its list is written once, by the first member that can
(``compare_set``), and all take the written one, so no worker decides alone. A worker that is not in the list is out. It
may come back as a new one.

A new worker is in no list before it is ready, so no member waits for its imports.

Once workers have the state of the job, each list has one of them, and only these stay if a generation could not be
formed: the others come again.
"""

import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch.distributed import Store  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.elastic import keeper, reconfigure
from evenstep.errors import EvenstepError

log = logging.getLogger("evenstep")

#: Time for members that may only be slow, after the one that failed, in seconds.
_GRACE_S = 1.0

#: Interval between looks into the store, in seconds.
_LOOK_S = 0.002

#: Number of looks at the other members' addresses before each look at their lives.
_DEAD_LOOKS = 16

#: Time that a job waits for its minimum number of workers, in seconds.
_PAUSE_S = 1800.0

#: Key of the number of workers that were ever ready, and of each of them.
_READY = "ready"

#: Key that tells that all epochs are trained, that workers have the state of the job, and why all must end.
_OVER = "over"
_STATE = "state"
_FAILED = "failed"

_STATE_LOST = "no living worker has the state of the job: start all workers again, from a checkpoint"


class LeftOutError(EvenstepError):
    """The other members continue without this worker."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of a job, and the time after which a worker hangs."""

    workers_min: int
    #: The number of workers with which the job begins.
    workers_first: int
    workers_max: int | None
    hang_s: float


@dataclass(slots=True)
class Membership:
    """This process as a member of the job."""

    store: Store
    limits: Limits
    #: Called in waits; it may raise an error to end them.
    check: Callable[[], None]
    #: Returns whether workers with these caps can compute the global batch.
    fits: Callable[[list[int | None]], bool]
    #: The number of this process among all that were ever ready; a process that comes back gets a new one.
    number: int = -1
    generation: int = 0
    #: The members in the order of their ranks.
    members: list[int] = field(default_factory=list)
    #: The workers that were ever ready and their places, the ones that have ended, and the number of all workers at the
    #: last look without a new one.
    _known: dict[int, tuple[int, int]] = field(default_factory=dict)
    _caps: dict[int, int | None] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _looked: int = -1
    #: The number of looks at other members.
    _looks: int = 0

    def has_failed(self) -> bool:
        """Returns whether another member has seen a failure, or the next one in turn has ended."""
        self._looks += 1
        one = self.members[(self.members.index(self.number) + self._looks) % len(self.members)]
        return self._is_seen() or (one != self.number and self._is_dead(one))

    def has_begun(self) -> None:
        """Reports that this worker has the state of the job."""
        self.store.set(_STATE, "1")

    def fail(self, why: str) -> None:
        """Ends the training of all workers."""
        self.store.set(_FAILED, why)

    def take_number(self) -> int:
        """Takes the next number."""
        self.number = self.store.add("numbers", 1) - 1
        return self.number

    def enter(self, place: int, cap: int | None) -> None:
        """Reports that this process is ready, and waits until it is a member; ``place`` orders the first members.

        Raises:
            LeftOutError: the others have taken this worker for dead.
            EvenstepError: too few workers came, or all members have ended.
            SystemExit: the training is over.
        """
        self.store.set(f"{_READY}/{self.store.add(_READY, 1) - 1}", json.dumps([self.number, place, cap]))
        notice, deadline = time.monotonic() + 60.0, time.monotonic() + _PAUSE_S
        for look in itertools.count(1):
            self._check_failed()
            while self._has_list(self.generation + 1):
                self.generation += 1
            if self.generation:
                self.members = self._list(self.generation)
                if self.number in self.members:
                    return
                if not look % _DEAD_LOOKS:
                    if self._is_dead(self.number):
                        raise LeftOutError(f"worker {self.number} did not come in time")
                    ended = all(map(self._is_dead, self.members))
                    if ended and not self.store.check([_OVER]) and not self._has_list(self.generation + 1):
                        raise EvenstepError(f"worker {self.number} waits to join the job: {_STATE_LOST}")
            else:
                ready = self._ready()[: self.limits.workers_max]
                if len(ready) >= self.limits.workers_first:
                    self._close(1, [number for number, _ in sorted(ready, key=lambda one: (one[1], one[0]))])
                    continue
            if self.store.check([_OVER]):
                log.warning("worker %s came too late: all epochs of the job are trained", self.number)
                sys.exit(0)
            notice = self._pause("to join the job", notice, deadline)

    def next_generation(self, begun_s: float, *, has_state: bool) -> None:
        """Registers for the next generation, and waits for its list.

        Args:
            begun_s: time of the monotonic clock since when this worker waits for the others.
            has_state: whether this worker has the state of the job.

        Raises:
            LeftOutError: this worker is not in it.
            EvenstepError: too few workers are left, and none came; or none with the state is.
        """
        self._check_failed()
        generation, before = self.generation + 1, self.members
        self.store.set(f"seen/{generation}", "1")
        self.store.set(f"here/{generation}/{self.number}", str(int(has_state)))
        late = max(time.monotonic() + _GRACE_S, begun_s + self.limits.hang_s)
        notice, deadline = time.monotonic() + 5.0, time.monotonic() + _PAUSE_S
        here = dict[int, bool]()
        while not self._has_list(generation):
            # Each look into the store costs its only thread time, and all members look.
            for one in before:
                if one not in here and self.store.check([key := f"here/{generation}/{one}"]):
                    here[one] = self.store.get(key) == b"1"
            waited = [one for one in before if one not in here and not self._is_dead(one)]
            if not waited or time.monotonic() > late:
                agreed = self._agreed(before, here, is_last=not waited)
                if self._suffice(agreed):
                    self._close(generation, agreed)
                    continue
                least = f"for {self.limits.workers_min} workers that together hold the global batch"
                notice = self._pause(least if agreed else "for a worker with the state", notice, deadline)
            else:
                self.check()
                time.sleep(_LOOK_S)
        self.generation, self.members = generation, self._list(generation)
        for one in before:
            # A worker that was left out comes back with another number.
            if one not in self.members:
                self.store.set(keeper.dead(str(one)), "1")
        if self.number not in self.members:
            raise LeftOutError(
                f"worker {self.number} could not connect to the others or took more than {self.limits.hang_s} s, so "
                "they continue without it"
            )

    def _agreed(self, before: Sequence[int], here: dict[int, bool], *, is_last: bool) -> list[int]:
        """Returns the members of the next generation; none if a worker with the state may still come."""
        living = [one for one in before if one in here and not self._is_dead(one)]
        if self.store.check([_STATE]):
            # The others could not connect, or the state did not arrive. They come again as new workers.
            living = [one for one in living if here[one]]
            if not living:
                if is_last:
                    raise EvenstepError(_STATE_LOST)
                return []
        limit = self.limits.workers_max
        ready = [one for one, _ in self._ready() if one not in before]
        return [*living, *(ready if limit is None else ready[: max(0, limit - len(living))])]

    def _suffice(self, agreed: Sequence[int]) -> bool:
        if not agreed or self.store.check([_OVER]):
            # After the last iteration, only those that lack its sums are left.
            return bool(agreed)
        self._ready()
        return len(agreed) >= self.limits.workers_min and self.fits([self._caps.get(one) for one in agreed])

    def form(self) -> None:
        """Connects the members of the generation: the default group becomes one of them.

        Raises:
            RuntimeError: another member has ended, or has seen a failure.
        """
        deadline, looks = time.monotonic() + self.limits.hang_s, itertools.count(1)

        def check() -> None:
            self.check()
            is_lost = not next(looks) % _DEAD_LOOKS and any(map(self._is_dead, self.members))
            if is_lost or self._is_seen() or time.monotonic() > deadline:
                raise RuntimeError("a member ended or hung while the group was formed")
            time.sleep(_LOOK_S / 2)

        reconfigure.form(self.store, self.generation, self.number, self.members, check)

    def has_new(self) -> bool:
        """Returns whether a worker is ready and may become a member."""
        limit = self.limits.workers_max
        count = self.store.add(_READY, 0)
        if count == self._looked or (limit is not None and len(self.members) >= limit):
            return False
        if any(number not in self.members for number, _ in self._ready()):
            return True
        # A worker that has just come may not have written its entry.
        self._looked = count if len(self._known) == count else -1
        return False

    def leave(self) -> None:
        """Ends this membership."""
        self.store.set(keeper.dead(str(self.number)), "1")

    def finish(self) -> None:
        """Ends this membership, because the training is over."""
        self.store.set(_OVER, "1")
        self.leave()

    def _is_seen(self) -> bool:
        """Returns whether a member has ended this generation."""
        return bool(self.store.check([f"seen/{self.generation + 1}"]))

    def _has_list(self, generation: int) -> bool:
        return bool(self.store.check([f"members/{generation}"]))

    def _check_failed(self) -> None:
        if self.store.check([_FAILED]):
            raise EvenstepError(f"another worker has ended the job: {self.store.get(_FAILED).decode()}")

    def _close(self, generation: int, members: Sequence[int]) -> None:
        """Writes the list of a generation, unless another member has."""
        self.store.compare_set(f"members/{generation}", "", json.dumps(list(members)))

    def _list(self, generation: int) -> list[int]:
        return list(json.loads(self.store.get(f"members/{generation}")))

    def _is_dead(self, number: int) -> bool:
        return bool(self.store.check([keeper.dead(str(number))]))

    def _ready(self) -> list[tuple[int, int]]:
        """Returns the living workers that were ever ready, with their places, the oldest first."""
        for at in range(self.store.add(_READY, 0)):
            if at not in self._known and self.store.check([f"{_READY}/{at}"]):
                number, place, cap = json.loads(self.store.get(f"{_READY}/{at}"))
                self._known[at], self._caps[number] = (number, place), cap
        self._ended |= {one for one, _ in self._known.values() if one not in self._ended and self._is_dead(one)}
        return [self._known[at] for at in sorted(self._known) if self._known[at][0] not in self._ended]

    def _pause(self, what: str, notice: float, deadline: float) -> float:
        """Waits a moment; returns when to log that the wait is long."""
        self.check()
        now = time.monotonic()
        if now > deadline:
            raise EvenstepError(f"worker {self.number} has waited for {_PAUSE_S:.0f} s {what}")
        if now > notice:
            log.warning("worker %s waits %s", self.number, what)
            notice = deadline
        time.sleep(_LOOK_S * 5)
        return notice
