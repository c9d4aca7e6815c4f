"""A rank's part of an iteration, and its batches in the training loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from evenstep.errors import SettingError
from evenstep.samples.work import Work


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of one iteration.

    Example:
        >>> from evenstep import Step
        >>> step = Step(
        ...     iteration=7, epoch=0, position=7, global_batch=512, offset=192, local_batch=320, micro_batches=4,
        ...     lr_multiplier=1.0,
        ... )
        >>> step.weight, step.batch_size
        (0.625, 80)
    """

    #: Number of optimizer steps since the start of the run.
    iteration: int
    #: The epoch, and the position of the iteration in it.
    epoch: int
    position: int
    #: Number of samples over all ranks.
    global_batch: int
    #: This rank takes samples ``offset .. offset + local_batch`` of the iteration; none if it is 0.
    offset: int
    local_batch: int
    #: Number of micro-batches, of equal sizes unless samples have costs or a remainder does not divide.
    micro_batches: int
    #: Factor for the schedule's learning rate.
    lr_multiplier: float
    #: Position of the iteration's first sample in the order of its epoch.
    begin: int = 0
    #: Whether the iteration is the last one of its epoch.
    is_last: bool = False
    #: Numbers of samples of the micro-batches, if they differ.
    passes: tuple[int, ...] = ()
    #: The largest and the smallest local batch of a rank.
    largest_batch: int = 0
    smallest_batch: int = 0
    #: The first rank that has it.
    source: int = 0
    #: The work of this rank's samples, with padding; None without costs.
    work: Work | None = None
    #: Whether the rank has its own number of passes, whose losses are not divided by it.
    has_own_passes: bool = False

    @property
    def weight(self) -> float:
        """The weight of this rank's mean gradient in the mean over all samples."""
        return self.local_batch / self.global_batch

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of samples of the micro-batches."""
        return self.passes or [self.local_batch // self.micro_batches] * self.micro_batches

    @property
    def batch_size(self) -> int:
        """The number of samples of one micro-batch; if they differ, of the largest one."""
        return max(self.passes, default=self.local_batch // self.micro_batches)


@dataclass(slots=True)
class Turn:
    """A batch and its state in the training loop."""

    step: Step
    #: Index of the micro-batch in its iteration.
    micro: int
    #: Whether the training loop began to compute it.
    begun: bool = False
    #: Whether a forward pass of it began, and whether its gradients were computed.
    forwarded: bool = False
    done: bool = False
    #: Why no pass of it may begin any more; empty before.
    ended: str = ""
    #: The objects by which the training loop can name it.
    objects: Sequence[ref[Any]] = ()
    #: The number of items in it, such as tokens, if the training loop counts them.
    items: Any = None
    #: The number of samples in the current pass of a hedged step; None for other batches.
    passing: int | None = None
    #: Whether it did not fit into memory, so that its iteration is computed again.
    failed: bool = False

    @property
    def samples(self) -> int:
        """The number of samples in this batch; 0 if it has weight 0."""
        return self.step.passes[self.micro] if self.step.passes else self.step.batch_size

    @property
    def factor(self) -> float:
        """The weight of the mean over this batch, relative to equal micro-batches. With costs, it is 1."""
        step = self.step
        if step.has_own_passes and step.local_batch:
            return self.samples / step.local_batch
        if step.work is not None or not step.passes:
            return 1.0
        return self.samples * step.micro_batches / step.local_batch

    @property
    def is_last(self) -> bool:
        """Whether the iteration's gradients are complete after it."""
        return self.micro + 1 == self.step.micro_batches

    @property
    def counted(self) -> Any:
        """The number of items in this batch.

        Raises:
            SettingError: it is not counted.
        """
        if self.items is None:
            raise SettingError(
                f'iteration {self.step.iteration}: job.wrap(loss="tokens") requires job.count(number of tokens) before '
                "each backward pass"
            )
        return self.items
