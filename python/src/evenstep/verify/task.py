"""What a process of `evenstep verify` is to do, and what it says afterwards."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

#: Uneven ranks; the same in one process; once more in one process, with other random numbers.
Role = Literal["ranks", "one", "again"]

#: The parameters and buffers that all roles begin with.
INITIAL = "initial.pt"


@dataclass(frozen=True, slots=True)
class Task:
    """What one process records."""

    role: Role
    #: Where this role's records go.
    folder: Path
    rank: int
    world_size: int
    #: Iterations that are looked at.
    steps: int
    #: Proportions of the ranks, iteration for iteration, over and over.
    plans: tuple[tuple[int, ...], ...]
    #: Whether dropout is off and batch norm uses its running statistics.
    is_plain: bool
    #: Of what the uneven ranks recorded; None for themselves.
    reference: "Reference | None" = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What the one process takes over from the uneven ranks."""

    folder: Path
    global_batch: int


@dataclass(frozen=True, slots=True)
class Update:
    """A step of an optimizer, as one rank saw it."""

    iteration: int
    #: Checksums of the gradients and of the parameters after the step.
    gradients: int
    parameters: int
    #: How far the step led from where the reference's led, relative to the way: the median over parameters.
    apart: float = 0.0
    #: The least precise type among the parameters.
    dtype: str = ""


@dataclass(slots=True)
class Seen:
    """What the script does, as far as one rank can tell."""

    has_init: bool = False
    has_loader: bool = False
    loss: str | None = None
    has_inner: bool = False
    has_scale: bool = False
    is_hedged: bool = False
    global_batch: int = 0
    accumulate: int = 1
    #: Names of modules in training that draw random numbers, or that mix the samples of a batch.
    dropouts: list[str] = field(default_factory=list)
    batch_norms: list[str] = field(default_factory=list)
    #: The type that autocast computes in.
    autocast: str | None = None
    #: An iteration, how many samples were read, and how many others the model was given.
    strange_batch: tuple[int, int, int] | None = None
    #: Checksums of some samples, each read twice.
    probes: list[tuple[int, int]] = field(default_factory=list)
    #: Whether the initial parameters were recorded, or taken over.
    is_begun_alike: bool = False

    @property
    def is_weighted(self) -> bool:
        """Whether anything of evenstep weights gradients."""
        return self.loss is not None or self.has_scale or self.is_hedged


@dataclass(slots=True)
class Recorded:
    """What one rank says at its end."""

    seen: Seen = field(default_factory=Seen)
    #: Local batch of this rank by iteration.
    batches: dict[int, int] = field(default_factory=dict)
    #: Samples that this rank read, by iteration; without those of weight 0. None where data comes as a stream.
    samples: dict[int, list[int]] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)

    def iterations(self) -> list[int]:
        """Iterations after which an optimizer stepped, in their order."""
        return list(dict.fromkeys(update.iteration for update in self.updates))


def update_file(folder: Path, number: int) -> Path:
    """Gradients and parameters of an optimizer's step, the first being 0."""
    return folder / f"update-{number}.pt"


def summary_file(folder: Path, rank: int) -> Path:
    """What a rank says at its end."""
    return folder / f"rank-{rank}.pickle"
