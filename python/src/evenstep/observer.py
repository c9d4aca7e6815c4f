"""Who looks at a run from outside: nobody, unless `evenstep verify` runs the script."""

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from evenstep.hook import Loss
    from evenstep.opening import Wishes
    from evenstep.order import Order
    from evenstep.run import Step


class Observer:
    """Is told what a run does, and may change how it begins. This one does neither."""

    #: The one of this process. A script makes its job without naming anybody, so it is found here.
    current: ClassVar["Observer"]

    def job_made(self, wishes: "Wishes") -> "Wishes":
        """``evenstep.init`` was called; gives what is wished instead."""
        return wishes

    def global_batch(self, asked: int) -> int:
        """The loader is to have a global batch; gives the one that it has."""
        return asked

    def run_begins(self, order: "Order") -> None:
        """``job.loader`` was called."""

    def dataset(self, dataset: Any) -> Any:
        """What the loader is to read from in place of the data set."""
        return dataset

    def wrapped(self, loss: "Loss", *, has_inner: bool) -> None:
        """``job.wrap`` was called."""

    def scaled(self) -> None:
        """``job.scale`` was called."""

    def hedged(self) -> None:
        """Gradients are weighted by hedged steps."""

    def epoch_begins(self) -> None:
        """Nothing of the epoch is read yet."""

    def drawn(self, step: "Step", indices: list[int]) -> None:
        """Samples will be read for an iteration."""

    def read(self, step: "Step") -> None:
        """The training gets a batch of an iteration; also once for each hedged iteration, before its first batch."""

    def epoch_ends(self) -> None:
        """The training asks for more than the epoch has."""


Observer.current = Observer()
