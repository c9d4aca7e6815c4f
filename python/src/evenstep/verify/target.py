"""The verified program: a script, a module or a function, run as Python would run it."""

import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import SettingError


@dataclass(frozen=True, slots=True)
class Target:
    """The program of each process, and its arguments."""

    what: str | Callable[[], Any]
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @classmethod
    def of(
        cls, what: str | Path | Callable[[], Any], arguments: Sequence[str] = (), *, is_module: bool = False
    ) -> "Target":
        """Creates a target from a path, a module's name, ``module:function``, or a function without parameters.

        Raises:
            SettingError: the file does not exist.
        """
        if callable(what):
            return cls(what, tuple(arguments))
        text = str(what)
        if not is_module and not Path(text).exists() and not _is_function(text):
            raise SettingError(f"{text}: file not found; must be a script, or a function as module:function")
        return cls(text, tuple(arguments), is_module)

    @property
    def name(self) -> str:
        """The name for messages."""
        return self.what if isinstance(self.what, str) else self.what.__qualname__

    def run(self) -> None:
        """Runs the target in this process."""
        what = self.what
        sys.argv = [self.name, *self.arguments]
        if callable(what):
            what()
        elif self.is_module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif Path(what).exists():
            sys.path.insert(0, str(Path(what).resolve().parent))
            runpy.run_path(what, run_name="__main__")
        else:
            sys.path.insert(0, str(Path.cwd()))
            module, function = what.split(":")
            getattr(importlib.import_module(module), function)()


def _is_function(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
