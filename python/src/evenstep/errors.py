"""The package's exceptions. Each message names the offending value and the rule."""


class EvenstepError(RuntimeError):
    """Base class of all exceptions that evenstep raises. The message names the offending value and the rule."""


class SettingError(EvenstepError, ValueError):
    """An argument or an environment variable breaks a rule."""


class RejectedError(EvenstepError):
    """The predictor rejects this run; repeating the same request cannot succeed."""


class DivergedError(EvenstepError):
    """Ranks differ in their data, settings or progress, so their results would not match."""


class UnsupportedError(EvenstepError):
    """An unsupported combination that would make the gradient wrong."""
