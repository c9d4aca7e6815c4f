"""What can go wrong, each with the value and the rule in its message."""


class EvenstepError(RuntimeError):
    """Anything that evenstep raises. Its message names the value and the rule that it breaks."""


class SettingError(EvenstepError, ValueError):
    """An argument or an environment variable breaks a rule."""


class RefusedError(EvenstepError):
    """The predictor refuses this run: asking again as it is would change nothing."""


class DivergedError(EvenstepError):
    """Ranks would not do the same: they differ in data, settings or in what they have done."""


class UnsupportedError(EvenstepError):
    """Something that would make the gradient wrong, and is refused for it."""
