"""What a check found: one line for people, one object for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found.

    Attributes:
        name: What was checked.
        status: `failed` means that training would not work, `warning` that something is worth a look.
        found: What was found, in words.
        advice: What to do; empty where all is well.
    """

    name: str
    status: Status
    found: str
    advice: str = ""

    def line(self) -> str:
        """The check in one line."""
        return f"{self.status:<8} {self.name}: {self.found}" + (f" -> {self.advice}" if self.advice else "")

    def to_json(self) -> dict[str, str]:
        """The check as an object; `advice` may be empty."""
        return asdict(self)


def is_well(checks: Sequence[Check]) -> bool:
    """Whether none failed."""
    return all(check.status != "failed" for check in checks)
