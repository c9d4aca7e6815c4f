"""Checks of the ranks over which models sum their gradients."""

import sys

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError

#: The module that runs the stages of a pipeline.
_MODULE = "torch.distributed.pipelining.stage"


def check_group(model: DistributedDataParallel) -> None:
    """Checks that a model sums its gradients over all ranks, because plans split each iteration over all ranks.

    Raises:
        UnsupportedError: the model's process group is a part of the ranks.
    """
    size, world_size = model.process_group.size(), dist.get_world_size()
    if size != world_size:
        raise UnsupportedError(
            f"the model's process group has {size} of the {world_size} ranks: must have all of them, because evenstep "
            "splits each iteration over all ranks; if some ranks get the same samples, as with tensor or pipeline "
            'parallelism, pass the others to evenstep.init(mesh=mesh["dp"])'
        )


def is_stage(model: DistributedDataParallel | None) -> bool:
    """Returns whether the model that begins a forward pass is a stage of a pipeline.

    Args:
        model: the model; None stands for one made with ``fully_shard``.

    Raises:
        UnsupportedError: it is a stage whose replicas could not have different numbers of passes.
    """
    if _MODULE not in sys.modules:
        return False
    frame = sys._getframe().f_back  # noqa: SLF001  # The public way reads the source of each frame.
    while frame and frame.f_globals.get("__name__") != _MODULE:
        frame = frame.f_back
    if frame and model is not None and not model.find_unused_parameters:
        raise UnsupportedError(
            "DistributedDataParallel in a pipeline rearranges its buckets in the second forward pass after a backward "
            "pass, and would wait for replicas that have fewer micro-batches: pass find_unused_parameters=True to it"
        )
    if frame and model is None:
        raise UnsupportedError(
            "fully_shard in a pipeline reduces gradients outside of backward passes, and they would have no weight: "
            "use DistributedDataParallel(stage, process_group=.., find_unused_parameters=True)"
        )
    return frame is not None


def check_passes(passes: int) -> int:
    """Checks the number of micro-batches before the last backward pass of a stage, and returns 0.

    Raises:
        UnsupportedError: there is one: the gradients of such a worker were wrong in an experiment.
    """
    if passes == 1:
        raise UnsupportedError(
            "a pipeline with one micro-batch: must have at least two in each iteration; raise min_local_batch in "
            "init(job_options=..), or make micro-batches smaller"
        )
    return 0
