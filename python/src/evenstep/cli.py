"""The command line: ``evenstep doctor`` and ``evenstep verify``."""

import argparse
import sys


def main() -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="evenstep", description=__doc__)
    parser.parse_args()
    parser.print_help(sys.stderr)
    return 2
