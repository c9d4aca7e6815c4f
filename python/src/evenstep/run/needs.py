"""How batches must be cut for the models of all ranks."""

from collections.abc import Collection
from dataclasses import dataclass

from evenstep.run.losses import Loss


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of the models of some ranks; ``|`` joins them. At its start, a run joins the ones of all ranks."""

    #: The reductions of the losses.
    losses: frozenset[Loss] = frozenset()
    #: Whether a model cannot compute a batch of a single sample.
    avoids_singles: bool = False
    #: Whether a model cannot compute a batch of length 0.
    needs_samples: bool = False
    #: Whether each worker must have samples, as in a pipeline.
    fills_all: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        """Returns the needs of both."""
        return Needs(
            self.losses | other.losses,
            self.avoids_singles or other.avoids_singles,
            self.needs_samples or other.needs_samples,
            self.fills_all or other.fills_all,
        )

    @property
    def equal_passes(self) -> bool:
        """Whether the loss of a micro-batch is a mean, so that all must have the same number of samples."""
        return "mean" in self.losses

    @property
    def sums(self) -> Collection[Loss]:
        """The reductions of the losses, if all are sums, so that a rank without samples gets a batch of length 0."""
        return () if self.needs_samples or self.avoids_singles or self.equal_passes else self.losses
