"""The command line. Most commands run the programs that are installed with this package."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from evenstep.errors import EvenstepError
from evenstep.settings.settings import OFF
from evenstep.start.local import find_program, own_version

#: Commands of this package, and their modules, which are imported only when needed.
_OWN = {
    "demo": ("train on unequal workers of this machine and show the gain", "evenstep.demo"),
    "doctor": ("check everything that training needs", "evenstep.doctor"),
    "run": ("balance a training script without changing it", "evenstep.run_command"),
    "verify": ("check that a script trains with uneven batches as in one process", "evenstep.verify"),
    "health-server": ("serve the node health check of NVIDIA's resiliency extension", "evenstep.health_server"),
    "completion": ("print a script for completion in a shell", "evenstep.completion"),
}

#: Commands of a program, and the arguments that select them there.
_PROGRAMS = {
    "server": ("run a predictor; status, logs and stop concern the embedded one", ["serve"]),
    "agent": ("run the agent of this node", []),
    "top": ("show running jobs in this terminal", ["top"]),
    "report": ("summarize a job: gain, waits, slow workers; --html FILE also writes a page", ["report"]),
    "backtest": ("replay history with other models", ["backtest"]),
    "simulate": ("simulate policies on recorded speeds", ["simulate"]),
    "plan": ("plan a burst-parallel job", ["plan"]),
    "store": ("check, export and import the store of a predictor", ["store"]),
}

#: Commands that query a predictor: without EVENSTEP_SERVER and --server, the local one.
_ASKING = ("top", "report")

#: Commands that read a store, and words one of which they have then: without EVENSTEP_STORE and --store, the local one.
_READING = {"store": ("check", "export", "vacuum"), "backtest": ("--job",)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    try:
        if name == "server" and given[1:] and not given[1].startswith("-"):
            status: int = importlib.import_module("evenstep.start.local.command").run(given[1], given[2:])
            return status
        if name in _PROGRAMS:
            return _run_program(name, given[1:])
        parsed = _parser(name).parse_args(given or ["--help"])
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except EvenstepError as error:
        sys.stderr.write(f"evenstep: {error}\n")
        return 1


class _Versions(argparse.Action):
    """Prints the versions of the package and of its programs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        command = importlib.import_module("evenstep.start.local.command")
        lines = [f"evenstep {own_version()}", *map(command.version_of, ("evenstep-predictor", "evenstep-agent"))]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        parser.exit()


def _parser(chosen: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evenstep", description="Balanced synchronous training on unequal machines.")
    parser.add_argument(
        "--version", action=_Versions, nargs=0, help="show the versions of the package and its programs"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, module) in _OWN.items():
        if name == chosen:
            importlib.import_module(module).add_arguments(commands)
        else:
            commands.add_parser(name, help=text)
    for name, (text, _) in _PROGRAMS.items():
        commands.add_parser(name, help=text)
    return parser


def _run_program(name: str, arguments: Sequence[str]) -> int:
    """Replaces this process by a program."""
    path = str(find_program("evenstep-agent" if name == "agent" else "evenstep-predictor"))
    if name == "agent" and (node := os.environ.get("SLURMD_NODENAME")):
        # The name in the ids of the workers.
        os.environ.setdefault("EVENSTEP_NODE", node)
    words = {word.split("=")[0] for word in arguments}
    asks_for_server = name in _ASKING and not words & {"-h", "--help", "--server"}
    if asks_for_server and os.environ.get("EVENSTEP_SERVER", "") in ("", OFF):
        os.environ["EVENSTEP_SERVER"] = importlib.import_module("evenstep.start.local.command").server_url()
    reads_store = not words.isdisjoint(_READING.get(name, ())) and not words & {"-h", "--help", "--store"}
    if reads_store and not os.environ.get("EVENSTEP_STORE"):
        os.environ["EVENSTEP_STORE"] = importlib.import_module("evenstep.start.local.command").store()
    sys.stdout.flush()
    os.execv(path, [path, *_PROGRAMS[name][1], *arguments])  # noqa: S606  # Our own program, without a shell.
    return 1
