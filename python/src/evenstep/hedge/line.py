"""A rank's own connection to the job's store, on which a thread of its own claims ahead of need."""

import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's stubs leave it out.

from evenstep.errors import EvenstepError, SettingError

#: How long the store may take to be reached, or to answer, in seconds.
PATIENCE_S = 60.0


class Store(Protocol):
    """What claims need of a store."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a counter at once, in one order for all, and returns its total."""


@dataclass(frozen=True, slots=True)
class Total:
    """What an addition came to."""

    #: The counter after it.
    total: int
    #: When that was known, and how many seconds it took from when it was due.
    at: float
    took_s: float


@dataclass(frozen=True, slots=True)
class _Wanted:
    key: str
    amount: int
    due: float


def connect(environ: Mapping[str, str] | None = None) -> Store:
    """A second connection to the store that the process group met at, so that no claim waits for anything else on it.

    Raises:
        SettingError: the environment does not say where it is, or nobody answers there.
    """
    environ = os.environ if environ is None else environ
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise SettingError(
            f"MASTER_ADDR={host!r} and MASTER_PORT={port!r}: must say where the group's TCPStore is, as torchrun does: "
            "job.steps claims samples on it; without one (file://, MPI) use job.loader"
        )
    try:
        store: Store = TCPStore(
            host, int(port), is_master=False, timeout=timedelta(seconds=PATIENCE_S), wait_for_workers=False
        )
    except RuntimeError as error:
        raise SettingError(f"no TCPStore answers at MASTER_ADDR={host}, MASTER_PORT={port}: {error}") from error
    return store


class Line:
    """Makes additions beside the computing; at most one is on its way."""

    def __init__(self, store: Store) -> None:
        """Begins; the store is this line's alone. The thread ends with :meth:`close`, or with the process."""
        self._store = store
        #: An addition, then True: it is due now (that of the one before may still be there). False: end.
        self._words: queue.SimpleQueue[_Wanted | bool] = queue.SimpleQueue()
        self._totals: queue.SimpleQueue[Total | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenstep-claims", daemon=True)
        self._thread.start()

    def add(self, key: str, amount: int, due: float) -> None:
        """Adds to a counter at the time ``due`` of ``time.perf_counter``; :meth:`total` tells what came of it."""
        self._words.put(_Wanted(key, amount, due))

    def total(self) -> Total:
        """What the last addition came to. It is due now: whoever asks has nothing else to do.

        Raises:
            EvenstepError: the store is gone.
        """
        self._words.put(True)
        try:
            told = self._totals.get(timeout=2 * PATIENCE_S)
        except queue.Empty:
            told = TimeoutError(f"no answer in {2 * PATIENCE_S} s")
        if isinstance(told, Exception):
            raise EvenstepError(f"claiming samples on the group's store: {told}") from told
        return told

    def close(self, timeout_s: float) -> None:
        """Ends the thread, or gives it up after so long."""
        self._words.put(False)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (wanted := self._words.get()) is not False:
            # A hurry (True) that is left of an addition which was made before it was asked after.
            if isinstance(wanted, _Wanted):
                if not self._is_due(wanted):
                    return
                self._totals.put(self._added(wanted))

    def _is_due(self, wanted: _Wanted) -> bool:
        """Waits until an addition is due, or is said to be; False: nobody wants it any more."""
        try:
            wait_s = wanted.due - time.perf_counter()
            return wait_s <= 0 or self._words.get(timeout=wait_s) is not False
        except queue.Empty:
            return True

    def _added(self, wanted: _Wanted) -> Total | Exception:
        begun = min(wanted.due, time.perf_counter())
        try:
            total = self._store.add(wanted.key, wanted.amount)
        except Exception as error:  # noqa: BLE001  # whatever it is, the training must hear of it and not wait for ever.
            return error
        at = time.perf_counter()
        return Total(total, at, at - begun)
