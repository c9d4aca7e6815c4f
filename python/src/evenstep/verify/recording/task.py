"""The task of a process of `evenstep verify`, and its records."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

#: The uneven ranks; one process; one process again, with other random numbers and each batch in reverse order.
Role = Literal["ranks", "one", "again"]

#: File of the initial parameters and buffers, the same for all roles.
INITIAL = "initial.pt"


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one process."""

    role: Role
    #: Folder of this role's records.
    folder: Path
    rank: int
    world_size: int
    #: Number of iterations to record.
    steps: int
    #: Proportions of the ranks for successive iterations, repeated cyclically.
    plans: tuple[tuple[int, ...], ...]
    #: Whether dropout is off and batch norm uses its running statistics.
    is_plain: bool
    #: Maximum number of samples in a pass of the one process; None for the whole batch.
    micro_batch: int | None = None
    #: The records of the uneven ranks; None for the ranks themselves.
    reference: "Reference | None" = None


@dataclass(frozen=True, slots=True)
class Reference:
    """The values that the one process takes over from the uneven ranks."""

    folder: Path
    global_batch: int


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step, as recorded by one rank."""

    iteration: int
    #: Checksums of the gradients, and of the parameters after the step.
    gradients: int
    parameters: int
    #: Distance between the results of this step and the reference's, relative to the step's length: the median over
    #: parameters.
    apart: float = 0.0
    #: The least precise type among the parameters.
    dtype: str = ""


@dataclass(slots=True)
class Observations:
    """The facts about the script that one rank can observe."""

    has_init: bool = False
    has_loader: bool = False
    loss: str | None = None
    has_inner: bool = False
    has_scale: bool = False
    is_hedged: bool = False
    global_batch: int = 0
    accumulate: int = 1
    #: Names of modules in training mode that draw random numbers, or that mix the samples of a batch.
    dropouts: list[str] = field(default_factory=list)
    batch_norms: list[str] = field(default_factory=list)
    #: The computing types of the models: of autocast, and of the parameters in forward passes.
    types: set[str] = field(default_factory=set)
    #: An iteration, the number of samples read, and the different number that the model got.
    mismatched_batch: tuple[int, int, int] | None = None
    #: A loss that is not a mean over samples.
    not_a_mean: str = ""
    #: Whether the script made many steps without reading a batch, and whether it ended after a shortened epoch.
    is_unread: bool = False
    lacks_epoch: bool = False
    #: Checksums of samples that were read twice.
    probes: list[tuple[int, int]] = field(default_factory=list)
    #: Whether a model computed a batch in micro-batches.
    is_split: bool = False
    #: Whether the initial parameters were recorded or restored.
    has_same_start: bool = False

    @property
    def is_weighted(self) -> bool:
        """Returns whether any part of evenstep weights gradients."""
        return self.loss is not None or self.has_scale or self.is_hedged


@dataclass(slots=True)
class Recorded:
    """The summary that one rank writes at its end."""

    seen: Observations = field(default_factory=Observations)
    #: Local batch of this rank by iteration.
    batches: dict[int, int] = field(default_factory=dict)
    #: Samples that this rank read, by iteration, without those of weight 0; None for data streams.
    samples: dict[int, list[int]] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)

    def iterations(self) -> list[int]:
        """Returns the iterations with an optimizer step, in order."""
        return list(dict.fromkeys(update.iteration for update in self.updates))


def update_file(folder: Path, number: int) -> Path:
    """Returns the file with gradients and parameters of an optimizer step; steps count from 0."""
    return folder / f"update-{number}.pt"


def summary_file(folder: Path, rank: int) -> Path:
    """Returns the file of a rank's summary."""
    return folder / f"rank-{rank}.pickle"
