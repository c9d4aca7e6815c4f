"""Errors of requests without a usable response."""

from evenstep.errors import EvenstepError


class RequestError(EvenstepError):
    """A request got no usable response.

    Permanent rejections raise `evenstep.errors.RejectedError` instead.
    """


class UnreachableError(RequestError):
    """All servers are unreachable, too slow, or failing. A later retry may succeed."""


class StaleError(RequestError):
    """The job has a newer generation than the request.

    Attributes:
        current_generation: The job's generation, if the response has it.
    """

    def __init__(self, message: str, current_generation: int | None = None) -> None:
        """Stores the message and the generation for the next request."""
        super().__init__(message)
        self.current_generation = current_generation


class UnknownError(RequestError):
    """The predictor does not know the job, or one of its workers."""


class UnusableError(RequestError):
    """A response that breaks the interface. The message names the field, the value and the rule."""
