"""The options of `evenstep run`, which ranks get through the environment."""

import json
import os
from dataclasses import asdict, dataclass

from evenstep.errors import SettingError

#: The environment variable that has them, and without which the hook does nothing.
VARIABLE = "EVENSTEP_RUN"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one command."""

    #: Proportions of the ranks; empty for the predictor's plans.
    plan: tuple[int, ...] = ()
    #: The largest local batches of the ranks; empty without caps.
    max_batch: tuple[int, ...] = ()
    #: Whether to watch only.
    watch: bool = False

    def to_environ(self) -> str:
        """Returns the value of the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls) -> "Options":
        """Reads the environment variable.

        Raises:
            SettingError: its value is not one of :meth:`to_environ`.
        """
        given = os.environ.get(VARIABLE, "")
        try:
            found = json.loads(given)
            return cls(tuple(map(int, found["plan"])), tuple(map(int, found["max_batch"])), bool(found["watch"]))
        except (ValueError, TypeError, KeyError) as error:
            raise SettingError(f"{VARIABLE}={given!r}: must be set by `evenstep run`") from error

    def check(self, ranks: int) -> None:
        """Checks that lists have one number for each rank.

        Raises:
            SettingError: a list is shorter or longer.
        """
        for name, numbers in {"--plan": self.plan, "--max-batch": self.max_batch}.items():
            if numbers and len(numbers) != ranks:
                raise SettingError(f"{name} has {len(numbers)} numbers: must be one for each of the {ranks} ranks")
