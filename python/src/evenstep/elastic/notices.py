"""Signals that announce the end of a process."""

import contextlib
import signal
from typing import Any

#: Signals by which launchers and clouds announce that a process will end.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Notices:
    """Whether this process got a notice. The script's own handlers run too."""

    def __init__(self) -> None:
        """Creates it; no signal is caught before :meth:`catch`."""
        self.is_given = False
        self._former: dict[int, Any] = {}

    def catch(self) -> None:
        """Catches the signals."""
        for number in _SIGNALS:
            with contextlib.suppress(ValueError):  # Another thread than the main one.
                self._former[number] = signal.signal(number, self._get)

    def ignore(self) -> None:
        """Restores the script's handlers."""
        while self._former:
            number, handler = self._former.popitem()
            with contextlib.suppress(ValueError):  # Another thread than the main one.
                signal.signal(number, handler)

    def _get(self, number: int, frame: Any) -> None:
        self.is_given = True
        if callable(handler := self._former.get(number)):
            handler(number, frame)
