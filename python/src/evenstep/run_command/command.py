"""`evenstep run`: balances a training script without changing it, or measures what balancing would bring."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.errors import SettingError
from evenstep.run_command.options import VARIABLE, Options

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # It has no public name.

#: The folder with the module that Python imports when it starts.
SITE = Path(__file__).parent / "site"

#: The exit codes of shells for programs that cannot be started.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def add_arguments(subparsers: "Subparsers") -> None:
    """Adds the `run` command to a command line."""
    parser = subparsers.add_parser(
        "run",
        help="balance a training script without changing it",
        description=__doc__,
        epilog="Options come before the command.",
    )
    parser.add_argument(
        "--plan", type=_numbers, default=(), metavar="LIST", help="proportions of the ranks, such as 2,2,2,15"
    )
    parser.add_argument(
        "--max-batch", type=_numbers, default=(), metavar="LIST", help="the largest local batch of each rank"
    )
    parser.add_argument("--watch", action="store_true", help="only measure, and estimate what balancing would bring")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replaces this process by the command; returns an exit code if it cannot start.

    Raises:
        SettingError: there is no command.
    """
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        raise SettingError("run: the command is missing: evenstep run -- torchrun --nproc-per-node=4 train.py")
    options = Options(arguments.plan, arguments.max_batch, arguments.watch)
    # An empty entry would be the current folder.
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update({VARIABLE: options.to_environ(), "PYTHONPATH": os.pathsep.join(paths)})
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)  # noqa: S606  # The user's own command, without a shell.
    except OSError as error:
        sys.stderr.write(f"evenstep run: cannot start {command[0]}: {error.strerror}\n")
        # As a shell does.
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _numbers(given: str) -> tuple[int, ...]:
    numbers = tuple(int(part) if part.strip().isdecimal() else 0 for part in given.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{given!r}: must be whole numbers above 0, such as 2,2,2,15")
    return numbers
