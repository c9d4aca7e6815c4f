"""Files of the kernel's that are read again and again: one open, one `pread` for each reading."""

import os

READ_BYTES_MAX = 1 << 20
"""The longest file that is read: `/proc/stat` with thousands of interrupt lines stays well below."""


class ProcFile:
    """One file of `/proc`, opened when first read and kept open until it is let go."""

    __slots__ = ("_fd", "_path", "_room")

    def __init__(self, path: str) -> None:
        """Opens nothing yet."""
        self._path = path
        self._fd = -1
        self._room = 4096

    def read(self) -> bytes | None:
        """The whole text as it is now; `None` where it cannot be read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            # These files are one record, which comes whole where there is room: a short read is the end.
            while len(text := os.pread(self._fd, self._room, 0)) == self._room:
                if self._room >= READ_BYTES_MAX:
                    return None
                self._room *= 2
        except OSError:
            self.close()
            return None
        return text

    def close(self) -> None:
        """Gives the handle back; the next reading opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Handles end with their owner."""
        self.close()
