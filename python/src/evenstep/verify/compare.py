"""Comparison of the numbers of the uneven ranks and the one process."""

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from evenstep.verify.recording.items import recorded_checksums
from evenstep.verify.recording.record import difference
from evenstep.verify.recording.task import Recorded, summary_file, update_file

#: Minimum tolerance by the computing type: a gradient difference relative to the largest entry.
TOLERANCES: Mapping[str, float] = {
    "torch.float64": 1e-12,
    "torch.float32": 1e-5,
    "torch.float16": 2e-2,
    "torch.bfloat16": 1e-1,
}

#: Maximum difference that another order of additions makes, by type; larger ones come from random numbers. It is some
#: 1e-6 for most models in float32, and 1e-4 for convolutions of large images. A wrong weight makes 1e-2 and more.
_ROUNDING_MAX: Mapping[str, float] = {"torch.float64": 1e-9, "torch.float32": 3e-4}

#: The tolerance in multiples of this difference. Uneven batches differ from one process by 1 to 3 times as much.
_ROUNDING_FACTOR = 10.0

#: Gradients smaller than the model's largest one by this factor are compared relative to this fraction of it: gradients
#: that should be 0 (a bias before batch norm) are only rounding errors.
_SMALL = 0.1


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one parameter's gradient in one optimizer step."""

    iteration: int
    name: str
    #: Relative to the largest entry.
    relative: float
    #: The factor that best maps the one process's gradient to the ranks' gradient; None if the former is 0.
    factor: float | None = None


@dataclass(slots=True)
class Samples:
    """The result of comparing the samples of all iterations."""

    iterations: int = 0
    samples: int = 0
    #: Descriptions of iterations with repeated, missing or different samples.
    wrong: list[str] = field(default_factory=list)
    #: Number of samples that both the ranks and the one process read.
    compared: int = 0
    #: Samples whose content differed between ranks, or between ranks and the one process.
    unlike: list[int] = field(default_factory=list)
    #: Whether each rank reads the same content every time, but differs from another rank.
    differs_by_rank: bool = False


def load(folder: Path, world_size: int) -> list[Recorded]:
    """Loads the records of all ranks of a run."""
    files = [summary_file(folder, rank) for rank in range(world_size)]
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301  # Written by this program.


def tolerance(recorded: Recorded, repeated: Sequence[Difference]) -> tuple[str, float]:
    """Returns the computing type and the maximum gradient difference.

    Args:
        recorded: the records of a rank.
        repeated: differences between the two runs in one process, which add in different orders; the largest first.
    """
    dtypes = {*recorded.seen.types, *(update.dtype for update in recorded.updates)} & TOLERANCES.keys()
    dtype = max(dtypes, key=TOLERANCES.__getitem__, default="torch.float32")
    rounding = repeated[0].relative if repeated else 0.0
    if rounding > _ROUNDING_MAX.get(dtype, 0.0):
        rounding = 0.0
    return dtype.removeprefix("torch."), max(TOLERANCES[dtype], _ROUNDING_FACTOR * rounding)


def compare_samples(ranks: Sequence[Recorded], one: Recorded, folder: Path, folder_of_one: Path) -> Samples:
    """Checks that each sample of each iteration occurred once over all ranks, and that the one process read it too."""
    found = Samples()
    for iteration in ranks[0].iterations():
        theirs = Counter(sample for rank in ranks for sample in rank.samples.get(iteration, ()))
        own = Counter(one.samples.get(iteration, ()))
        found.iterations += 1
        found.samples += theirs.total()
        if theirs != own:
            twice = sorted(sample for sample, times in theirs.items() if times > own[sample])
            never = sorted(sample for sample, times in own.items() if times > theirs[sample])
            found.wrong.append(
                f"iteration {iteration}: {len(twice)} samples are repeated (such as {twice[:3]}), {len(never)} "
                f"are missing ({never[:3]})"
            )
    by_ranks, by_one = recorded_checksums(folder), recorded_checksums(folder_of_one)
    wanted = {sample for iteration in one.iterations() for sample in one.samples.get(iteration, ())}
    both = by_ranks.keys() & by_one.keys() & wanted
    found.compared = len(both)
    found.unlike = sorted(index for index in both if by_ranks[index] != by_one[index])
    probes = [rank.seen.probes for rank in ranks]
    is_repeatable = all(once == again for probe in probes for once, again in probe)
    found.differs_by_rank = is_repeatable and any(probe != probes[0] for probe in probes)
    return found


def unlike_between_ranks(ranks: Sequence[Recorded]) -> list[int]:
    """Returns the iterations after which gradients or parameters differed between ranks."""
    updates = [
        [(update.iteration, update.gradients, update.parameters) for update in recorded.updates] for recorded in ranks
    ]
    shortest = min(map(len, updates))
    unlike = [at[0][0] for at in zip(*(rank[:shortest] for rank in updates), strict=True) if len(set(at)) > 1]
    longer = [rank[shortest][0] for rank in updates if len(rank) > shortest]
    return sorted({*unlike, *longer})


def compare_gradients(folder: Path, folder_of_one: Path, recorded: Recorded, count: int) -> list[Difference]:
    """Returns the differences of all parameters in all steps, the largest first; infinite for a missing gradient."""
    found = []
    for number, update in enumerate(recorded.updates[:count]):
        theirs = torch.load(update_file(folder, number), weights_only=True)["gradients"]
        own = torch.load(update_file(folder_of_one, number), weights_only=True)["gradients"]
        largest = max((float(tensor.abs().max()) for tensor in own.values() if tensor.numel()), default=0.0)
        for name in theirs.keys() | own.keys():
            if name not in theirs or name not in own:
                found.append(Difference(update.iteration, name, float("inf")))
                continue
            relative = difference(theirs[name], own[name], _SMALL * largest)
            found.append(Difference(update.iteration, name, relative, _factor(theirs[name], own[name])))
    return sorted(found, key=lambda one: (-one.relative, one.iteration, one.name))


def _factor(theirs: torch.Tensor, own: torch.Tensor) -> float | None:
    if theirs.shape != own.shape:
        return None
    along, square = float((theirs.double() * own.double()).sum()), float((own.double() ** 2).sum())
    return along / square if square else None
