"""Kernel files that are read repeatedly: one open, one `pread` per reading."""

import os

READ_BYTES_MAX = 1 << 20
"""Maximum size of a file in bytes; `/proc/stat` with thousands of interrupt lines stays well below."""


class ProcFile:
    """A file of `/proc`, opened at the first read and kept open until it is closed."""

    __slots__ = ("_fd", "_path", "_room")

    def __init__(self, path: str) -> None:
        """Does not open the file yet."""
        self._path = path
        self._fd = -1
        self._room = 4096

    def read(self) -> bytes | None:
        """Returns the current contents; `None` if the file cannot be read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            # These files are one record, which is returned whole if the buffer is large enough: a short read is the
            # end.
            while len(text := os.pread(self._fd, self._room, 0)) == self._room:
                if self._room >= READ_BYTES_MAX:
                    return None
                self._room *= 2
        except OSError:
            self.close()
            return None
        return text

    def close(self) -> None:
        """Closes the file; the next reading opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Closes the file with its owner."""
        self.close()
