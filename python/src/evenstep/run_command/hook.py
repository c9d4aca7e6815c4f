"""The entry from PyTorch: each new DistributedDataParallel model comes here."""

import sys
from typing import Any

import torch.distributed as dist

from evenstep.run_command.options import Options
from evenstep.start import lines

#: Modules that are loaded only by scripts that use evenstep, or by the observation.
_USED, _OURS = "evenstep.job.job", "evenstep.run_command.script"


def made(model: Any) -> None:
    """Follows a model of the script; the first one begins the observation.

    Raises:
        SettingError: an option of `evenstep run` does not fit the number of ranks.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks == 1:
        return
    if _USED in sys.modules and _OURS not in sys.modules:
        if not rank:
            lines.show(["the script uses evenstep itself, so `evenstep run` does nothing"])
        return
    from evenstep.run_command.script import Script  # noqa: PLC0415  # It loads what scripts with evenstep load.

    if Script.current is None or Script.current.has_ended:
        options = Options.read()
        options.check(ranks)
        Script.current = Script(options, rank, ranks)
    Script.current.made(model)
