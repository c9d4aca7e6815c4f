"""The process of one check."""

import importlib
import json
import sys
from pathlib import Path

from gpu_check.context import Context, RankError
from gpu_check.machine import Machine
from gpu_check.outcome import failed


def main() -> None:
    """Runs a check, and writes its outcome."""
    module, folder = sys.argv[1], Path(sys.argv[2])
    task = json.loads((folder / "task.json").read_text())
    context = Context(Machine(**task["machine"]), task["device"], folder)
    try:
        outcome = importlib.import_module(module).check(context)
    except RankError as error:
        outcome = failed(str(error))
    except Exception as error:  # noqa: BLE001  # A check must not hide the reason of its failure.
        outcome = failed(f"{type(error).__name__}: {error}")
    (folder / "outcome.json").write_text(json.dumps(outcome.to_dict()))


if __name__ == "__main__":
    main()
