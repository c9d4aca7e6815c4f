"""The command line of `scripts/gpu-check`."""

import argparse
import importlib
import json
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_check import place, runner
from gpu_check.checks import NAMES
from gpu_check.context import Context
from gpu_check.outcome import Outcome, not_applicable

DEADLINE_S = 300.0
#: Exit status without any result, distinct from a failed check.
NOTHING_RAN = 3


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks; returns 1 if one failed, and 3 if none could run."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as temporary:
        folder = Path(temporary)
        try:
            found = place.of_wheel(options.wheel, folder / "wheel") if options.wheel else place.of_repository()
        except (OSError, ValueError) as error:
            sys.exit(f"gpu-check: {error}")
        machine = runner.machine(found, folder, options.deadline_s)
        _say(_described(asdict(machine)))
        begun, results = time.monotonic(), []
        names = [name for name in NAMES if not options.only or name in options.only]
        for name in names:
            outcome, took_s = _line(name, machine, found, folder, options)
            results.append({"name": name, "title": _title(name), **outcome.to_dict(), "seconds": round(took_s, 1)})
        if options.dry_run:
            return 0
        states = [result["state"] for result in results]
        counts = {state: states.count(state) for state in ("passed", "failed", "not applicable")}
        _say(", ".join(f"{count} {state}" for state, count in counts.items()) + f" in {time.monotonic() - begun:.0f} s")
        _write(options.json, asdict(machine), options.device, results)
    return 1 if counts["failed"] else 0 if counts["passed"] else NOTHING_RAN


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.description = "Checks evenstep on the GPUs of this machine, without a network; see docs/how-to/gpu.md."
    parser.add_argument("--dry-run", action="store_true", help="list the checks and what prevents them; run none")
    parser.add_argument(
        "--only", action="append", choices=NAMES, metavar="CHECK", help="run this check; may be repeated"
    )
    parser.add_argument("--wheel", type=Path, help="check this wheel instead of the repository's build")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the checks themselves; default %(default)s"
    )
    parser.add_argument(
        "--deadline-s", type=float, default=DEADLINE_S, help="time limit of a check; default %(default)g"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("gpu-check.json"), help="file of results; default %(default)s"
    )
    return parser.parse_args(arguments)


def _line(
    name: str, machine: Any, found: place.Place, folder: Path, options: argparse.Namespace
) -> tuple[Outcome, float]:
    """Runs a check and prints its line; returns the outcome and the seconds."""
    begun = time.monotonic()
    check = importlib.import_module(f"gpu_check.checks.{name}")
    context = Context(machine, options.device, folder / name)
    why = machine.problem if context.on_gpu else ""
    why = why or check.prevented(context)
    if options.dry_run:
        _say(f"{'not applicable' if why else 'would run':15} {name:9} {_title(name)}{f' ({why})' if why else ''}")
        return not_applicable(why or "dry run"), 0.0
    outcome = not_applicable(why) if why else runner.run(check.__name__, context, found, options.deadline_s)
    took_s = time.monotonic() - begun
    _say(f"{outcome.state:15} {name:9} {took_s:5.0f} s  {outcome.said}")
    return outcome, took_s


def _title(name: str) -> str:
    return str(importlib.import_module(f"gpu_check.checks.{name}").__doc__).splitlines()[0]


def _described(machine: dict[str, Any]) -> str:
    gpus = ", ".join(f"{gpu['name']} ({gpu['uuid']})" for gpu in machine["gpus"]) or machine["problem"]
    versions = {name: machine[name] for name in ("python", "torch", "cuda", "nccl", "driver", "glibc") if machine[name]}
    return f"{gpus}\n{', '.join(f'{name} {version}' for name, version in versions.items())}"


def _write(path: Path, machine: dict[str, Any], device: str, results: list[dict[str, Any]]) -> None:
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    path.write_text(json.dumps({"at": at, "device": device, "machine": machine, "checks": results}, indent=2) + "\n")
    _say(f"wrote {path}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
