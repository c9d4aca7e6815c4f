"""The passes of a rank whose memory, not its share, limits the samples of a forward and backward pass.

Ranks have different numbers of passes, so gradients are reduced in the last one only. A pass before it holds no
collective: if it does not fit into memory, the rank computes its samples of the iteration again, in smaller passes, and
the other ranks only wait. A rank does not know whether a size fits until it has trained an iteration with it, when the
optimizer has its memory, too. Until then, another pass follows for the reduction. Its samples do not count.
"""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, Literal

from evenstep.errors import SettingError, UnsupportedError

#: A search ends when the sizes that fit and that do not are closer than this part of the former.
_RESOLUTION = 8


class Passes:
    """The sizes of one rank's passes."""

    def __init__(self, size: int | Literal["auto"]) -> None:
        """Starts with the largest number of samples in a pass, or searches for it from 1 on.

        Raises:
            SettingError: the number is out of range.
        """
        #: Whether this rank searches for the largest size that fits.
        self.searches = isinstance(size, str) and size == "auto"
        is_number = isinstance(size, Integral) and not isinstance(size, bool)
        if not self.searches and (not is_number or int(size) < 1):
            raise SettingError(f"micro_batch={size!r}: must be an integer of at least 1, or 'auto'")
        #: The argument of the loader, and the maximum number of samples in a pass.
        self.size = 1 if self.searches else int(size)
        self.setting: int | str = size if self.searches else self.size
        #: The largest size that is known to fit, and the one that did not.
        self.fits = 0
        self._fails: int | None = None
        #: Whether a rank can repeat a pass: the model holds no collective in it.
        self.can_repeat = True
        #: The parameters whose gradients no pass has reduced yet, by the object that decides it.
        self.unreduced: dict[object, Iterable[Any]] = {}

    @property
    def limits(self) -> tuple[int, int]:
        """The largest size that is known to fit, and the smallest one that does not; 0 if it is unknown."""
        return self.fits, self._fails or 0

    def starts_with(self, limits: Sequence[int]) -> None:
        """Starts with the limits of an earlier process on such a device.

        A search begins with what fitted, and tries more: the memory may be another one.
        """
        fits, fails = limits
        if self.searches:
            self.size = max(1, fits)
        elif fails:
            self.size, self._fails = min(self.size, max(1, fits, fails // 2)), fails

    def cut(self, samples: int, least: int) -> tuple[int, ...]:
        """Returns the sizes of the passes of an iteration: equal ones, a remainder, and 0 for a separate reduction.

        Until a search has found a size that does not fit, each pass has twice as many samples as the one before.

        Args:
            samples: number of samples of this rank.
            least: minimum number of samples in a pass.
        """
        if not samples:
            return ()
        self.size = max(self.size, least)
        sizes, size = list[int](), self.size
        while samples:
            sizes.append(min(size, samples))
            samples -= sizes[-1]
            if self.searches and self._fails is None:
                size *= 2
        if len(sizes) > 1 and sizes[-1] < least:
            # Passes of 2 + 1 samples become one of 3: no other cut has two in each.
            before = sizes[-2] + sizes[-1] - least
            sizes[-2:] = [before, least] if before >= least else [before + least]
        if self.can_repeat and sizes[-1] > self.fits:
            sizes.append(0)
        return tuple(sizes)

    def trained(self, size: int) -> None:
        """Records that passes of this size have fitted; a search continues with a larger one."""
        self.fits = max(self.fits, size)
        if self._fails is not None and self._fails <= self.fits:
            self._fails = None
        if not self.searches or size < self.size:
            return
        if self._fails is None:
            self.size = 2 * self.fits
        elif self._fails - self.fits > max(1, self.fits // _RESOLUTION):
            self.size = (self._fails + self.fits) // 2

    def failed(self, size: int, least: int) -> bool:
        """Records that a pass of this size did not fit; returns whether there is a smaller one."""
        if not size:
            # The reduction of gradients, with the smallest batch.
            return False
        if self.fits >= size:
            # The memory has changed.
            self.fits = 0
        smaller = max(self.fits if self.searches else 0, size // 2, least)
        if size <= least or (size == self._fails and smaller == self.size):
            return False
        self.size, self._fails = smaller, size
        return True

    def may_fit(self, size: int) -> bool:
        """Returns whether passes of this size, which were cut earlier, are worth an attempt."""
        return self._fails is None or size <= self.size or (self.searches and size < self._fails)

    def check_reduced(self, stepped: Iterable[Any]) -> None:
        """Checks that the gradients of parameters are reduced before an optimizer steps these.

        Raises:
            UnsupportedError: they are not.
        """
        unreduced = {id(at) for parameters in self.unreduced.values() for at in parameters}
        if unreduced and not unreduced.isdisjoint(map(id, stepped)):
            raise UnsupportedError(
                "an optimizer steps before the last pass of its iteration, or a wrapped model was not in that pass, so "
                "gradients are not reduced: step `if loader.is_last`, and run each wrapped model in each pass"
            )
