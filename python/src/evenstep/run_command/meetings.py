"""Agreements of ranks: whether to balance; then the learning rates, and the iteration after which they leave an epoch.

None of them hangs if the ranks of a script do different things.
"""

import json
import logging
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.errors import UnsupportedError
from evenstep.run_command.balance import ADVICE

log = logging.getLogger("evenstep")

#: Maximum time that a rank waits for the others before it decides for all that nothing is balanced, in seconds.
_VOTE_S = 60.0

#: Time limits for the other ranks within a run, where rank 0 may evaluate or save alone, and at its end, in seconds.
PATIENCE_S = 600.0
_AT_END_S = 5.0

#: Learning rates are compared in the first steps with shares, and in each step whose number has this divisor.
_FIRST, _EACH = 8, 64


def decide(store: Store, name: str, rank: int, ranks: int, *, facts: dict[str, Any], why_not: str) -> str:
    """Returns why nothing is balanced, the same on all ranks; empty if all can, with the same facts.

    The first decision of a name that reaches the store counts, so a rank that comes late or alone gets it too.
    """
    store.set(f"{name}/vote/{rank}", json.dumps({"facts": facts, "why_not": why_not}))
    patience = timedelta(seconds=_VOTE_S)
    try:
        if rank:
            store.wait([f"{name}/verdict"], patience)
            verdict = "unknown"
        else:
            votes = [f"{name}/vote/{other}" for other in range(ranks)]
            store.wait(votes, patience)
            verdict = _verdict([json.loads(store.get(vote)) for vote in votes])
    except RuntimeError:
        verdict = f"rank {rank} waited {_VOTE_S:g} s for the others to read the same batch"
    return str(json.loads(store.compare_set(f"{name}/verdict", "", json.dumps(verdict))))


def _verdict(votes: list[dict[str, Any]]) -> str:
    for rank, vote in enumerate(votes):
        if vote["why_not"]:
            return str(vote["why_not"])
        for name, value in votes[0]["facts"].items():
            if vote["facts"][name] != value:
                return f"ranks differ: {name} is {value} on rank 0, and {vote['facts'][name]} on rank {rank}"
    return ""


class Meetings:
    """The agreements of one rank with the others, through the store of the process group."""

    def __init__(self, store: Store, name: str, rank: int, ranks: int) -> None:
        """Starts before the first step with shares."""
        self._store, self._name, self._rank, self._ranks = store, name, rank, ranks
        self._steps = self._leaves = 0
        #: The batches that this rank has read of an epoch that it has left, and all of the epoch; None after the check.
        self._left: tuple[int, int] | None = None

    def compare(self, rates: list[float]) -> None:
        """Compares the learning rates of a step.

        Raises:
            UnsupportedError: ranks have different ones.
        """
        step, self._steps = self._steps, self._steps + 1
        if step >= _FIRST and step % _EACH:
            return
        found = self._exchange(f"rates/{step}", rates, PATIENCE_S)
        for rank, other in enumerate(found or []):
            if other != rates:
                raise UnsupportedError(
                    f"the learning rates are {rates} on rank {self._rank} and {other} on rank {rank}: a schedule must "
                    f"not depend on a rank's number of samples; {ADVICE}"
                )
        if found is None:
            raise UnsupportedError(f"rank {self._rank} waited {PATIENCE_S:g} s for the others' steps: {ADVICE}")

    def leaves(self, position: int, count: int) -> None:
        """Records that this rank has left an epoch after some of its batches."""
        self._left = position, count
        self._leaves += 1
        with suppress(RuntimeError):
            self._store.set(self._key(f"left/{self._leaves}", self._rank), json.dumps(position))

    def check(self, patience_s: float | None = None) -> None:
        """Checks that all ranks have left the epoch that this one has left, before it continues.

        Raises:
            UnsupportedError: others have not, and would wait for this rank.
        """
        if self._left is None:
            return
        (position, count), self._left = self._left, None
        found = self._exchange(f"left/{self._leaves}", position, PATIENCE_S if patience_s is None else patience_s)
        if found is None or found != [position] * self._ranks:
            raise UnsupportedError(
                f"rank {self._rank} left the epoch after {position} of {count} batches, and other ranks did not: a "
                f"loop must not end by a rank's number of samples; {ADVICE}"
            )

    def end(self) -> None:
        """Logs whether this rank has left an epoch alone: another one may wait for it."""
        try:
            self.check(_AT_END_S)
        except UnsupportedError as error:
            log.error("%s", error)  # noqa: TRY400  # The script has ended: its place is of no use.

    def _key(self, name: str, rank: int) -> str:
        return f"{self._name}/{name}/{rank}"

    def _exchange(self, name: str, value: Any, patience_s: float) -> list[Any] | None:
        """Returns the values of all ranks; None if some are missing when the time is over."""
        names = [self._key(name, rank) for rank in range(self._ranks)]
        try:
            self._store.set(names[self._rank], json.dumps(value))
            self._store.wait(names, timedelta(seconds=patience_s))
            return [json.loads(self._store.get(at)) for at in names]
        except RuntimeError:
            return None
