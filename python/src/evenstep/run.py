"""A run that has begun: which iteration this is, whose its samples are, and what is said of it when it is done."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import EvenstepError, SettingError
from evenstep.exchange import Exchange, Said
from evenstep.observer import Observer
from evenstep.order import Order
from evenstep.plan import Plan
from evenstep.report import Report
from evenstep.sensor import Sensor

#: Batches that may be read before the training begins their iteration.
READ_AHEAD_MAX = 4096

#: How long the end of an epoch waits until ranks have told each other of its last iterations, in seconds.
_SETTLE_S = 5.0

#: The form of checkpoints.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of one iteration."""

    #: Counts the optimizer's steps from the begin of the run.
    iteration: int
    #: The epoch, and which of its iterations this is.
    epoch: int
    position: int
    #: Samples of all ranks together.
    global_batch: int
    #: This rank takes samples ``offset .. offset + local_batch`` of the iteration's.
    offset: int
    local_batch: int
    #: In so many equally large micro-batches.
    micro_batches: int
    #: What the schedule's learning rate is multiplied by.
    lr_multiplier: float

    @property
    def weight(self) -> float:
        """Weight of the mean gradient over this rank's samples in the mean over all."""
        return self.local_batch / self.global_batch

    @property
    def batch_size(self) -> int:
        """Samples of one micro-batch."""
        return self.local_batch // self.micro_batches


@dataclass(slots=True)
class Turn:
    """A batch on its way through the training."""

    step: Step
    #: Which micro-batch of its iteration it is.
    micro: int
    #: Whether the training said itself that it begins.
    begun: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the iteration's gradients are complete with it."""
        return self.micro + 1 == self.step.micro_batches


@dataclass(slots=True)
class Progress:
    """What is done: iterations whose gradients are there."""

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
    #: None where plans are given and nobody needs to hear of anything.
    exchange: Exchange | None
    ahead: int
    sensor: Sensor
    progress: Progress = field(default_factory=Progress)
    observer: Observer = field(default_factory=lambda: Observer.current)
    #: Whether the current passes are those of a hedged step.
    is_hedging: bool = False
    _turns: deque[Turn] = field(default_factory=lambda: deque(maxlen=READ_AHEAD_MAX))
    _current: Turn | None = None
    #: The last plan that was checked, and for how many samples.
    _checked: tuple[Plan, int] | None = None
    #: Whether the training says itself which batch it begins.
    _explicit: bool = False
    #: How often an epoch was begun in this process.
    _readings: int = 0

    def step(self, iteration: int, epoch: int, position: int, size: int | None = None) -> Step:
        """This rank's part of an iteration.

        Raises:
            EvenstepError: ranks could not reach each other.
        """
        size = self.order.size(position) if size is None else size
        return self._part(self.plans(iteration).resized(size, self.quantum), iteration, epoch, position, size)

    def _part(self, plan: Plan, iteration: int, epoch: int, position: int, size: int) -> Step:
        # Most iterations have the plan of the one before.
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

    def steps_of_epoch(self) -> Iterator[Step]:
        """What is left of the epoch."""
        begun = self.progress
        iteration, epoch = begun.iteration, begun.epoch
        for ahead, position in enumerate(range(begun.position, self.order.steps)):
            yield self.step(iteration + ahead, epoch, position)

    def hedged_steps_of_epoch(self, planned: Callable[[Plan], Plan]) -> Iterator[tuple[Step, Plan]]:
        """What is left of the epoch, with the whole plans: their tails are claimed. ``planned`` may change them."""
        begun = self.progress
        iteration, epoch = begun.iteration, begun.epoch
        for ahead, position in enumerate(range(begun.position, self.order.steps)):
            size, plan = self.order.size(position), self.plans(iteration + ahead)
            plan = planned(plan if plan.size == size else plan.resized(size, self.quantum))
            yield self._part(plan, iteration + ahead, epoch, position, size), plan

    @contextmanager
    def hedging(self) -> Iterator[None]:
        """In here passes are those of a hedged step, which says itself what they come to."""
        self.is_hedging = True
        try:
            yield
        finally:
            self.is_hedging = False

    def read(self, turn: Turn) -> None:
        """A batch was handed to the training. Unless that says itself what it begins, it begins this."""
        self._turns.append(turn)
        if not self._explicit:
            self._make_current(turn)
        self.sensor.batch_arrived()
        self.observer.read(turn.step)

    def begin(self) -> Step:
        """The training begins the oldest batch that it has not begun, however many it has read.

        Raises:
            SettingError: none was read.
        """
        self._explicit = True
        turn = next((turn for turn in self._turns if not turn.begun), None)
        if turn is None:
            raise SettingError("step(): no batch was read that is not begun: read one from job.loader first")
        turn.begun = True
        self._make_current(turn)
        return turn.step

    def _make_current(self, turn: Turn) -> None:
        self._current = turn
        if not turn.micro:
            self.sensor.iteration_begins()

    @property
    def current(self) -> Turn:
        """The batch that is trained on.

        Raises:
            SettingError: none was read yet.
        """
        if self._current is None:
            raise SettingError("no iteration has begun: read a batch from job.loader, or use `with job.step()`")
        return self._current

    def is_expected(self, samples: list[int]) -> bool:
        """Whether inputs with these first dimensions can be of the current batch.

        Only sure enough to refuse where they are not, and are of another batch that was read.
        """
        current = self._current
        # A rank without samples computes some of weight 0.
        if current is None or self._explicit or _size(current) in (0, *samples):
            return True
        return not any(_size(turn) in samples for turn in self._turns if turn is not current)

    def gradients_ready(self) -> None:
        """All gradients of the current batch are there; with the last of an iteration that is done."""
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
        """Says how an iteration went, to whoever makes plans. The last of an epoch may be the last of all."""
        if self.exchange:
            order, position = self.order, step.position
            self.exchange.submit(
                Said(
                    step.iteration, report, lambda further: order.size(position + further), position + 1 == order.steps
                )
            )

    def settle(self) -> None:
        """Lets all ranks hear of what is due: scripts may end the process group after an epoch."""
        if self.exchange:
            self.exchange.settle(_SETTLE_S)

    def finish(self, step: Step) -> None:
        """An iteration is done."""
        is_end = step.position + 1 == self.order.steps
        epoch, position = (step.epoch + 1, 0) if is_end else (step.epoch, step.position + 1)
        self.progress = Progress(step.iteration + 1, epoch, position)
        while self._turns and self._turns[0].step.iteration <= step.iteration:
            self._turns.popleft()

    def begin_epoch(self) -> Callable[[], bool]:
        """An epoch is read from where the run stands; one that was left midway in this process is over.

        What was read of it and not trained on will not be.

        Returns:
            whether it is still this epoch's reading that goes on.
        """
        self._turns.clear()
        if self._readings and self.progress.position:
            self.progress = Progress(self.progress.iteration, self.progress.epoch + 1, 0)
        self._readings += 1
        self.observer.epoch_begins()
        mine = self._readings
        return lambda: self._readings == mine

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: the iterations whose gradients are there are done."""
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
    """Where a checkpoint stands, and the plan that was in force.

    Raises:
        SettingError: it is of another form, data set, seed or global batch: samples would come twice, or never.
    """
    if state.get("version") != _VERSION:
        raise SettingError(f"the state's version {state.get('version')!r} must be {_VERSION}")
    for name in ("seed", "samples", "global_batch"):
        if state[name] != getattr(order, name):
            raise SettingError(
                f"{name}: the state says {state[name]} and the loader {getattr(order, name)}; with another one samples "
                "would come twice, or never"
            )
    progress = Progress(state["iteration"], state["epoch"], state["position"])
    if not 0 <= progress.position < order.steps:
        raise EvenstepError(
            f"the state's position {progress.position} must be under the epoch's {order.steps} iterations"
        )
    return progress, Plan.from_json(state["plan"])


def _size(turn: Turn) -> int:
    return turn.step.batch_size
