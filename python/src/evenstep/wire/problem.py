"""Error responses of the predictor."""

from dataclasses import dataclass

from evenstep.wire.codec import Message


@dataclass(frozen=True, slots=True)
class Problem(Message):
    """The reason why a request was rejected (RFC 9457). `slug` is for programs, `title` and `detail` are for people.

    Attributes:
        type: `urn:evenstep:problem:` and the kind.
        title: The kind in words.
        status: The HTTP status.
        detail: The cause, with the value and the rule.
        current_generation: With `stale-generation`: the job's generation.
        global_batch: With `infeasible`: the number of samples to allocate.
        sum_of_floors: With `infeasible`: the sum of the workers' floors.
        sum_of_caps: With `infeasible`: the sum of the workers' caps.
        retry_after_s: With `paused` and other 503: pause before the retry, in seconds.
    """

    type: str
    title: str
    status: int
    detail: str
    current_generation: int | None = None
    global_batch: int | None = None
    sum_of_floors: int | None = None
    sum_of_caps: int | None = None
    retry_after_s: int | None = None

    @property
    def slug(self) -> str:
        """The last part of `type`, such as `stale-generation`."""
        return self.type.removeprefix("urn:evenstep:problem:")
