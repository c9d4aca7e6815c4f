"""The outcome of a check."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Outcome:
    """A line of the table."""

    state: State
    said: str
    #: Measured values, for `gpu-check.json`.
    numbers: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the outcome as a JSON object."""
        return asdict(self)


def passed(said: str, **numbers: Any) -> Outcome:
    """Returns the outcome of a check that holds."""
    return Outcome("passed", said, numbers)


def failed(said: str, **numbers: Any) -> Outcome:
    """Returns the outcome of a check that does not hold."""
    return Outcome("failed", said, numbers)


def not_applicable(why: str) -> Outcome:
    """Returns the outcome of a check that this machine cannot run."""
    return Outcome("not applicable", why)


def judged(holds: bool, said: str, **numbers: Any) -> Outcome:
    """Returns the outcome of a check by a condition."""
    return Outcome("passed" if holds else "failed", said, numbers)
