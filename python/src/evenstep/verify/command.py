"""`evenstep verify`: checks that a script trains with uneven batches as it does in one process."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from evenstep.errors import SettingError
from evenstep.verify.recording.plans import parse_plan
from evenstep.verify.run import RANKS, STEPS, TIMEOUT_S, verify
from evenstep.verify.verdict import could_not_run

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # It has no public name.


def add_arguments(subparsers: "Subparsers") -> None:
    """Adds the `verify` command to a command line."""
    parser = subparsers.add_parser(
        "verify",
        help="check that a script trains with uneven batches as in one process",
        description=__doc__,
        epilog="Exit status: 0 agrees, 1 differs, 2 no verdict. Options come before the script.",
    )
    parser.add_argument("--ranks", type=int, help=f"number of processes; default the length of a plan, else {RANKS}")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of compared iterations; default %(default)s")
    parser.add_argument(
        "--plan",
        action="append",
        default=[],
        help="proportions of the ranks, such as 12,3,1; repeat --plan to alternate between several",
    )
    parser.add_argument(
        "--tolerance", type=float, help=("maximum gradient difference, relative to the largest entry; default by type")
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help=("device of the ranks; default %(default)s, which hides GPUs"),
    )
    parser.add_argument(
        "--plain", action="store_true", help=("switch dropout off; batch norm uses its running statistics")
    )
    parser.add_argument(
        "--micro-batch",
        type=int,
        help="maximum number of samples in a pass of the one process, if the global batch does not fit its memory",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        help=("timeout of each of the three runs, in seconds; default %(default)g"),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("-m", action="store_true", dest="module", help="treat the script as the name of a module")
    parser.add_argument("script", help="a path, or a function as module:function")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verifies the script, prints the verdict and returns the exit status."""
    try:
        verdict = verify(
            arguments.script,
            arguments.arguments,
            is_module=arguments.module,
            ranks=arguments.ranks,
            steps=arguments.steps,
            plans=[parse_plan(plan) for plan in arguments.plan],
            tolerance=arguments.tolerance,
            device=arguments.device,
            plain=arguments.plain,
            micro_batch=arguments.micro_batch,
            timeout_s=arguments.timeout,
        )
    except SettingError as error:
        verdict = could_not_run("arguments", str(error))
    sys.stdout.write(json.dumps(verdict.to_json()) + "\n" if arguments.json else verdict.text())
    sys.stdout.flush()
    return verdict.exit_status
