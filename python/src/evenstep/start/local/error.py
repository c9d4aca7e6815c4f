"""The error of local programs."""

from evenstep.errors import EvenstepError


class LocalError(EvenstepError):
    """A local program cannot be used. Training continues without it."""


class SlowStartError(LocalError):
    """A local program was started and is not ready yet. Training begins without it."""
