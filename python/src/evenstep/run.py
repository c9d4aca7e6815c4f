"""A started run: its current iteration, the samples of each rank, and the report after each iteration."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import EvenstepError, SettingError
from evenstep.exchange import Exchange, Submission
from evenstep.observer import Observer
from evenstep.order import Order
from evenstep.plan import Plan
from evenstep.report import Report
from evenstep.sensor import Sensor

#: Maximum number of batches that can be read before training begins their iteration.
READ_AHEAD_MAX = 4096

#: Maximum time that the end of an epoch waits for the exchange of its last iterations, in seconds.
_SETTLE_S = 5.0

#: Format version of checkpoints.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of one iteration."""

    #: Number of optimizer steps since the start of the run.
    iteration: int
    #: The epoch, and the position of the iteration in it.
    epoch: int
    position: int
    #: Number of samples over all ranks.
    global_batch: int
    #: This rank takes samples ``offset .. offset + local_batch`` of the iteration.
    offset: int
    local_batch: int
    #: Number of micro-batches, all of equal size.
    micro_batches: int
    #: Factor for the schedule's learning rate.
    lr_multiplier: float

    @property
    def weight(self) -> float:
        """The weight of this rank's mean gradient in the mean over all samples."""
        return self.local_batch / self.global_batch

    @property
    def batch_size(self) -> int:
        """The number of samples of one micro-batch."""
        return self.local_batch // self.micro_batches


@dataclass(slots=True)
class Turn:
    """A batch and its state in the training loop."""

    step: Step
    #: Index of the micro-batch in its iteration.
    micro: int
    #: Whether the training loop marked its begin explicitly.
    begun: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the iteration's gradients are complete after it."""
        return self.micro + 1 == self.step.micro_batches


@dataclass(slots=True)
class Progress:
    """The position after the last iteration whose gradients are complete."""

    iteration: int = 0
    epoch: int = 0
    position: int = 0


@dataclass(slots=True)
class Run:
    """The state of one rank."""

    order: Order
    rank: int
    world_size: int
    quantum: int
    #: Plans by iteration, the same on all ranks.
    plans: Callable[[int], Plan]
    #: The exchange with other ranks; None if plans are given, so that no reports are needed.
    exchange: Exchange | None
    ahead: int
    sensor: Sensor
    progress: Progress = field(default_factory=Progress)
    observer: Observer = field(default_factory=lambda: Observer.current)
    #: Whether the current passes belong to a hedged step.
    is_hedging: bool = False
    _read_batches: deque[Turn] = field(default_factory=lambda: deque(maxlen=READ_AHEAD_MAX))
    _current: Turn | None = None
    #: The last plan that was checked, and the number of samples it was checked for.
    _checked: tuple[Plan, int] | None = None
    #: Whether the training loop marks the begin of each batch itself.
    _explicit: bool = False
    #: Number of epoch iterators started in this process.
    _epoch_iterators: int = 0

    def step(self, iteration: int, epoch: int, position: int, size: int | None = None) -> Step:
        """Returns this rank's part of an iteration.

        Raises:
            EvenstepError: the exchange between ranks failed.
        """
        size = self.order.size(position) if size is None else size
        return self._part(self.plans(iteration).resized(size, self.quantum), iteration, epoch, position, size)

    def _part(self, plan: Plan, iteration: int, epoch: int, position: int, size: int) -> Step:
        # Most iterations have the same plan as the previous one.
        if not (self._checked and self._checked[0] is plan and self._checked[1] == size):
            self._checked = plan.checked(size), size
        share = plan.shares[self.rank]
        return Step(
            iteration=iteration,
            epoch=epoch,
            position=position,
            global_batch=size,
            offset=share.offset,
            local_batch=share.local_batch,
            micro_batches=self.order.accumulate,
            lr_multiplier=plan.rate.at(iteration),
        )

    def epoch_steps(self) -> Iterator[Step]:
        """Yields the remaining steps of the epoch."""
        begun = self.progress
        iteration, epoch = begun.iteration, begun.epoch
        for ahead, position in enumerate(range(begun.position, self.order.steps)):
            yield self.step(iteration + ahead, epoch, position)

    def hedged_epoch_steps(self, planned: Callable[[Plan], Plan]) -> Iterator[tuple[Step, Plan]]:
        """Yields the remaining steps of the epoch with their complete plans, including tails.

        ``planned`` may change the plans.
        """
        begun = self.progress
        iteration, epoch = begun.iteration, begun.epoch
        for ahead, position in enumerate(range(begun.position, self.order.steps)):
            size, plan = self.order.size(position), self.plans(iteration + ahead)
            plan = planned(plan if plan.size == size else plan.resized(size, self.quantum))
            yield self._part(plan, iteration + ahead, epoch, position, size), plan

    @contextmanager
    def hedging(self) -> Iterator[None]:
        """Context manager for the passes of a hedged step, which reports its work itself."""
        self.is_hedging = True
        try:
            yield
        finally:
            self.is_hedging = False

    def read(self, turn: Turn) -> None:
        """Records that the training loop got a batch, which begins now unless the loop marks iterations itself."""
        self._read_batches.append(turn)
        if not self._explicit:
            self._make_current(turn)
        self.sensor.batch_arrived()
        self.observer.read(turn.step)

    def begin(self) -> Step:
        """Begins the oldest batch that was read and not begun.

        Raises:
            SettingError: there is no such batch.
        """
        self._explicit = True
        turn = next((turn for turn in self._read_batches if not turn.begun), None)
        if turn is None:
            raise SettingError(
                "step(): every batch read so far has already begun: read the next batch from job.loader first"
            )
        turn.begun = True
        self._make_current(turn)
        return turn.step

    def _make_current(self, turn: Turn) -> None:
        self._current = turn
        if not turn.micro:
            self.sensor.iteration_begins()

    @property
    def current(self) -> Turn:
        """The batch that is being trained on.

        Raises:
            SettingError: no batch was read yet.
        """
        if self._current is None:
            raise SettingError("no iteration has begun: read a batch from job.loader, or use `with job.step()`")
        return self._current

    def is_expected(self, samples: list[int]) -> bool:
        """Whether inputs with these first dimensions may belong to the current batch.

        Returns False only if they match another batch that was read, and not the current one.
        """
        current = self._current
        # A rank without samples computes a batch of weight 0.
        if current is None or self._explicit or _size(current) in (0, *samples):
            return True
        return not any(_size(turn) in samples for turn in self._read_batches if turn is not current)

    def gradients_ready(self) -> None:
        """Records that all gradients of the current batch are complete; the last batch finishes its iteration."""
        turn = self.current
        step = turn.step
        if not turn.is_last or step.iteration < self.progress.iteration:
            return
        compute_time_s, loader_wait_s = self.sensor.computed()
        if self.exchange:
            peak = self.sensor.peak_memory_bytes()

            def report() -> Report:
                return Report(
                    iteration=step.iteration,
                    local_batch=step.local_batch,
                    compute_time_s=compute_time_s(),
                    loader_wait_s=loader_wait_s,
                    micro_batches=step.micro_batches,
                    peak_memory_bytes=peak,
                )

            self.submit(step, report)
        self.finish(step)

    def submit(self, step: Step, report: Callable[[], Report]) -> None:
        """Submits the report of an iteration to the exchange. The last one of an epoch may be the last of the run."""
        if self.exchange:
            order, position = self.order, step.position
            self.exchange.submit(
                Submission(
                    step.iteration, report, lambda further: order.size(position + further), position + 1 == order.steps
                )
            )

    def settle(self) -> None:
        """Waits for due exchanges, because scripts may destroy the process group after an epoch."""
        if self.exchange:
            self.exchange.settle(_SETTLE_S)

    def finish(self, step: Step) -> None:
        """Marks an iteration as done."""
        is_end = step.position + 1 == self.order.steps
        epoch, position = (step.epoch + 1, 0) if is_end else (step.epoch, step.position + 1)
        self.progress = Progress(step.iteration + 1, epoch, position)
        while self._read_batches and self._read_batches[0].step.iteration <= step.iteration:
            self._read_batches.popleft()

    def begin_epoch(self) -> Callable[[], bool]:
        """Starts reading an epoch at the current position.

        If this process left an epoch before its end, that epoch is over: batches that were read and not trained on are
        skipped.

        Returns:
            a function that tells whether this reading of the epoch is still the current one.
        """
        self._read_batches.clear()
        if self._epoch_iterators and self.progress.position:
            self.progress = Progress(self.progress.iteration, self.progress.epoch + 1, 0)
        self._epoch_iterators += 1
        self.observer.epoch_begins()
        mine = self._epoch_iterators
        return lambda: self._epoch_iterators == mine

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last iteration whose gradients are complete."""
        done, order = self.progress, self.order
        plan = self.plans(max(0, done.iteration - 1))
        return {
            "version": _VERSION,
            "iteration": done.iteration,
            "epoch": done.epoch,
            "position": done.position,
            "seed": order.seed,
            "samples": order.samples,
            "global_batch": order.global_batch,
            "plan": plan.to_json(),
        }


def resumed(state: dict[str, Any], order: Order) -> tuple[Progress, Plan]:
    """Returns the progress and the plan stored in a checkpoint.

    Raises:
        SettingError: the checkpoint has another format, data set size, seed or global batch, so that samples would
            repeat or be missed.
    """
    if state.get("version") != _VERSION:
        raise SettingError(f"the state has version {state.get('version')!r}: must be {_VERSION}")
    for name in ("seed", "samples", "global_batch"):
        if state[name] != getattr(order, name):
            raise SettingError(
                f"{name}: the state has {state[name]} but the loader has {getattr(order, name)}; use the same "
                "value, or samples would be repeated or missed"
            )
    progress = Progress(state["iteration"], state["epoch"], state["position"])
    if not 0 <= progress.position < order.steps:
        raise EvenstepError(
            f"the state's position {progress.position} must be below the epoch's {order.steps} iterations"
        )
    return progress, Plan.from_json(state["plan"])


def _size(turn: Turn) -> int:
    return turn.step.batch_size
