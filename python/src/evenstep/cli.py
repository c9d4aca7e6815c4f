"""The command line: `evenstep doctor` and `evenstep verify`."""

import argparse
from collections.abc import Callable, Sequence

from evenstep import doctor, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="evenstep", description="Checks for training with evenstep")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor.add_arguments(subparsers)
    verify.add_arguments(subparsers)
    parsed = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)
