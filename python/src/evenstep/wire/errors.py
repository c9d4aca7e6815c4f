"""Why a predictor gave no usable answer."""

from evenstep.errors import EvenstepError


class AskError(EvenstepError):
    """A request got no usable answer.

    Refusals that asking again would not change are `evenstep.errors.RefusedError`.
    """


class SilentError(AskError):
    """Nobody can be reached, all are too slow, or in trouble themselves. It may pass: ask again later."""


class StaleError(AskError):
    """The job is in another generation than the asker.

    Attributes:
        current_generation: The right one, where the answer says it.
    """

    def __init__(self, message: str, current_generation: int | None = None) -> None:
        """Keeps the message and the generation to ask in."""
        super().__init__(message)
        self.current_generation = current_generation


class UnknownError(AskError):
    """The predictor does not know the job, or a worker of it."""


class UnusableError(AskError):
    """An answer that makes no sense to us. The message names the field, the value and the rule."""
