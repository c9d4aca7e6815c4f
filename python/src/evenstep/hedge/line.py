"""A rank's own connection to the job's store, with a thread that claims ahead of time."""

import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.errors import EvenstepError, SettingError

#: Timeout for connecting to the store and for its responses, in seconds.
PATIENCE_S = 60.0


class Store(Protocol):
    """The interface of a store for claims."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a counter atomically, in one order for all clients, and returns its total."""


@dataclass(frozen=True, slots=True)
class Total:
    """The result of an addition."""

    #: The counter after it.
    total: int
    #: Time at which the total was known, and the seconds since the addition was due.
    at: float
    took_s: float


@dataclass(frozen=True, slots=True)
class _Wanted:
    key: str
    amount: int
    due: float


def connect(environ: Mapping[str, str] | None = None) -> Store:
    """Opens a second connection to the process group's store, so that claims wait for no other request.

    Raises:
        SettingError: the environment has no address of the store, or the store does not respond.
    """
    environ = os.environ if environ is None else environ
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise SettingError(
            f"MASTER_ADDR={host!r} and MASTER_PORT={port!r}: must be the address of the group's TCPStore, as set "
            "by torchrun, because job.steps claims samples on it; without one (file://, MPI) use job.loader"
        )
    try:
        store: Store = TCPStore(
            host, int(port), is_master=False, timeout=timedelta(seconds=PATIENCE_S), wait_for_workers=False
        )
    except RuntimeError as error:
        raise SettingError(f"no TCPStore responds at MASTER_ADDR={host}, MASTER_PORT={port}: {error}") from error
    return store


class ClaimThread:
    """Makes additions while the training computes; at most one at a time."""

    def __init__(self, store: Store) -> None:
        """Starts the thread, which uses the store alone. It ends with :meth:`close` or with the process."""
        self._store = store
        #: An addition, then True: it is due now (an earlier True may still be queued). False ends the thread.
        self._commands: queue.SimpleQueue[_Wanted | bool] = queue.SimpleQueue()
        self._totals: queue.SimpleQueue[Total | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenstep-claims", daemon=True)
        self._thread.start()

    def add(self, key: str, amount: int, due: float) -> None:
        """Schedules an addition at the time ``due`` of ``time.perf_counter``; :meth:`total` returns its result."""
        self._commands.put(_Wanted(key, amount, due))

    def total(self) -> Total:
        """Returns the result of the last addition, which becomes due at once because the caller waits for it.

        Raises:
            EvenstepError: the store is unreachable.
        """
        self._commands.put(True)
        try:
            told = self._totals.get(timeout=2 * PATIENCE_S)
        except queue.Empty:
            told = TimeoutError(f"no response in {2 * PATIENCE_S} s")
        if isinstance(told, Exception):
            raise EvenstepError(f"claiming samples on the group's store failed: {told}") from told
        return told

    def close(self, timeout_s: float) -> None:
        """Stops the thread, or stops waiting for it after ``timeout_s`` seconds."""
        self._commands.put(False)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (wanted := self._commands.get()) is not False:
            # A leftover True belongs to an addition that was made before its total was requested.
            if isinstance(wanted, _Wanted):
                if not self._is_due(wanted):
                    return
                self._totals.put(self._added(wanted))

    def _is_due(self, wanted: _Wanted) -> bool:
        """Waits until an addition is due or requested; returns False if it is no longer needed."""
        try:
            wait_s = wanted.due - time.perf_counter()
            return wait_s <= 0 or self._commands.get(timeout=wait_s) is not False
        except queue.Empty:
            return True

    def _added(self, wanted: _Wanted) -> Total | Exception:
        begun = min(wanted.due, time.perf_counter())
        try:
            total = self._store.add(wanted.key, wanted.amount)
        except Exception as error:  # noqa: BLE001  # the training must get any error instead of waiting for ever.
            return error
        at = time.perf_counter()
        return Total(total, at, at - begun)
