"""The observer of a run. It does nothing unless `evenstep verify` runs the script."""

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from evenstep.run.losses import Loss
    from evenstep.run.step import Step
    from evenstep.samples.order import Order
    from evenstep.settings.options import RunOptions


class Observer:
    """Receives the events of a run and may change how it starts. This base class does neither."""

    #: The observer of this process, global because scripts create their job without naming one.
    current: ClassVar["Observer"]

    def job_made(self, job_options: "RunOptions") -> "RunOptions":
        """Called by ``evenstep.init``; returns the options to use."""
        return job_options

    def global_batch(self, asked: int) -> int:
        """Called with the loader's global batch; returns the one to use."""
        return asked

    def order(self, order: "Order") -> "Order":
        """Called by ``job.loader`` and ``job.steps``; returns the order to use."""
        return order

    def dataset(self, dataset: Any) -> Any:
        """Returns the data set that the loader reads instead of the given one."""
        return dataset

    def wrapped(self, loss: "Loss", *, has_inner: bool) -> None:
        """Called by ``job.wrap``."""

    def scaled(self) -> None:
        """Called by ``job.scale``."""

    def not_a_mean(self, told: str) -> None:
        """Called with the description of a loss that is not a mean over samples."""

    def hedged(self) -> None:
        """Called when hedged steps weight the gradients."""

    def epoch_begins(self) -> None:
        """Called before the first batch of an epoch is read."""

    def drawn(self, step: "Step", indices: list[int]) -> list[int]:  # noqa: ARG002  # For subclasses.
        """Called before samples are read for an iteration; returns them in the order to read."""
        return indices

    def read(self, step: "Step") -> None:
        """Called when the training gets a batch of an iteration.

        In a hedged iteration it is also called once, before the first batch.
        """

    def epoch_ends(self) -> None:
        """Called when the training requests a batch after the end of the epoch."""


Observer.current = Observer()
