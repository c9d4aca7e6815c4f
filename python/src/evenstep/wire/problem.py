"""Refusals on the wire."""

from dataclasses import dataclass

from evenstep.wire.codec import Message


@dataclass(frozen=True, slots=True)
class Problem(Message):
    """Why a request was refused (RFC 9457). Programs branch on `slug`, people read `title` and `detail`.

    Attributes:
        type: `urn:evenstep:problem:` and the kind.
        title: The kind in words.
        status: The HTTP status.
        detail: What was wrong here, with the value and the rule.
        current_generation: With `stale-generation`: the right one.
        global_batch: With `infeasible`: the samples to be shared out.
        sum_of_floors: With `infeasible`: the least that the floors take together.
        sum_of_caps: With `infeasible`: the most that the caps hold together.
        retry_after_s: With `paused` and other 503: ask again after this many seconds.
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
