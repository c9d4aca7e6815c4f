"""The result of a check: one line for people, one object for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: Name of the check.
        status: `failed` means that training would not work; `warning` means a possible problem.
        found: The finding in words.
        advice: The recommended action; empty if there is no problem.
    """

    name: str
    status: Status
    found: str
    advice: str = ""

    def line(self) -> str:
        """Returns the check as one line."""
        return f"{self.status:<8} {self.name}: {self.found}" + (f" -> {self.advice}" if self.advice else "")

    def to_json(self) -> dict[str, str]:
        """Returns the check as an object; `advice` may be empty."""
        return asdict(self)


def all_passed(checks: Sequence[Check]) -> bool:
    """Returns whether no check failed."""
    return all(check.status != "failed" for check in checks)
