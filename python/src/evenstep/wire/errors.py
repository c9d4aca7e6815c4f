"""Errors of requests without a usable response."""

from evenstep.errors import EvenstepError


class AskError(EvenstepError):
    """A request got no usable response.

    Permanent rejections raise `evenstep.errors.RefusedError` instead.
    """


class SilentError(AskError):
    """All servers are unreachable, too slow, or failing. A later retry may succeed."""


class StaleError(AskError):
    """The job has a newer generation than the request.

    Attributes:
        current_generation: The job's generation, if the response has it.
    """

    def __init__(self, message: str, current_generation: int | None = None) -> None:
        """Stores the message and the generation for the next request."""
        super().__init__(message)
        self.current_generation = current_generation


class UnknownError(AskError):
    """The predictor does not know the job, or one of its workers."""


class UnusableError(AskError):
    """A response that breaks the interface. The message names the field, the value and the rule."""
