"""A started run: its current iteration, the samples of each rank, and the report after each iteration."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from evenstep._native import Plan
from evenstep.errors import SettingError
from evenstep.exchange.exchange import Exchange, Submission
from evenstep.exchange.report import Report
from evenstep.measure.sensor import Sensor
from evenstep.run.binding import Binding
from evenstep.run.given import references
from evenstep.run.losses import Losses
from evenstep.run.needs import Needs
from evenstep.run.observer import Observer
from evenstep.run.passes import Passes
from evenstep.run.step import Step, Turn
from evenstep.samples import shares
from evenstep.samples.checksums import check_begin, check_order
from evenstep.samples.costs import Costs, CutIteration, CutRules
from evenstep.samples.epoch import Epoch, Place
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress, state_of
from evenstep.settings.workers import Workers

log = logging.getLogger("evenstep")

#: Maximum time that the end of an epoch waits for the exchange of its last iterations, in seconds.
_SETTLE_S = 5.0


@dataclass(slots=True)
class Run:
    """The state of one rank."""

    order: Order
    #: The worker of this rank, and the number of workers. Without a mesh, each rank is a worker.
    rank: int
    world_size: int
    quantum: int
    #: Plans by iteration, the same on all ranks.
    plans: Callable[[int], Plan]
    #: The quadratic share of the work by iteration, the same on all ranks; it counts only if samples have costs.
    quadratic_share: Callable[[int], float]
    #: The exchange with other ranks; None if plans are given, so that no reports are needed.
    exchange: Exchange | None
    ahead: int
    sensor: Sensor
    #: The position from which the run starts.
    resumed: Progress = field(default_factory=Progress)
    observer: Observer = field(default_factory=lambda: Observer.current)
    #: The losses of the current iteration that the training loop records.
    losses: Losses = field(default_factory=Losses)
    #: Whether the current passes belong to a hedged step.
    is_hedging: bool = False
    #: Whether the run has hedged steps.
    has_hedged: bool = False
    #: How batches must be cut; from the start the same on all ranks.
    needs: Needs = field(default_factory=Needs)
    #: Maximum numbers of samples by rank; None for no cap. Empty if no rank has one.
    caps: Sequence[int | None] = ()
    #: Whether this rank has stages of a pipeline; None if it is unknown.
    has_stages: bool | None = None
    #: The models of this rank that are stages, and whose gradients of the iteration are not complete.
    open_stages: set[Any] = field(default_factory=set)
    #: The workers of all ranks.
    workers: Workers = field(default_factory=Workers)
    #: The kind of device of each rank.
    devices: Sequence[str] = ("",)
    #: A name of the run that no other one has, also before a restart; the same on all ranks.
    name: str = ""
    #: Whether the run has logged that speeds cannot be measured.
    is_told: bool = False
    #: The passes of this rank, if it has its own number of them.
    passes: Passes | None = None
    #: The id of the job at the predictor; None without a predictor.
    job: str | None = None
    #: Gets the first plans, together with the other ranks; None once the run has started.
    starts: Callable[[], None] | None = None
    #: The batches that the loop reads, computes and trains.
    binding: Binding = field(init=False)
    #: The limits of passes in the checkpoint, by kind of device.
    _known: dict[str, list[int]] = field(default_factory=dict)
    #: The newest epoch whose first iteration was compared with other ranks.
    _compared: int = -1
    #: The last plan that was checked, and the number of samples it was checked for.
    _checked: tuple[Plan, int] | None = None
    #: An epoch and its number of iterations.
    _iterations: tuple[int, int] | None = None
    #: Number of epoch iterators started in this process.
    _epoch_iterators: int = 0
    #: The epoch whose first iteration is not submitted yet, and when the loop requested it.
    _requested: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        """Creates the binding, which tells the run about the ends of its iterations."""
        self.binding = Binding(self.resumed, self.sensor.iteration_begins, self._ends)

    def step(self, place: Place) -> Step:
        """Returns this rank's part of an iteration without costs.

        Raises:
            SettingError: a given plan has fewer samples than the iteration.
            EvenstepError: the exchange between ranks failed.
        """
        # Without hedged steps, no rank claims a tail.
        plan = self._plan(place).resized(place.size, self.quantum)
        if self.needs.fills_all or not self.needs.avoids_singles:
            wanted = None if self.needs.fills_all else self.plans(place.iteration)
            plan = shares.without_empty(plan, wanted, self.quantum, self.caps)
        return self._part(self._allowed(plan), place)

    def _plan(self, place: Place) -> Plan:
        plan, size = self.plans(place.iteration), place.size
        # The plan of a remainder is far from balanced, and scaled up it could exceed the memory of a rank.
        if plan.size < size:
            raise SettingError(
                f"plan={plan.batches} of iteration {place.iteration} sums to {plan.size}, but the iteration has {size} "
                "samples: make them equal"
            )
        return plan if plan.size == size else plan.resized(size, self.quantum)

    def _allowed(self, plan: Plan) -> Plan:
        if not self.needs.avoids_singles:
            return plan
        # The micro-batches of a remainder have unequal sizes.
        passes = 1 if plan.size % self.order.accumulate else self.order.accumulate
        return shares.without_singles(plan, passes, self.caps)

    def _part(self, plan: Plan, place: Place) -> Step:
        # Most iterations have the same plan as the previous one.
        if not (self._checked and self._checked[0] is plan and self._checked[1] == place.size):
            self._checked = plan.checked(place.size), place.size
        share, count = plan.shares[self.rank], self.order.accumulate
        passes: tuple[int, ...] = ()
        if self.passes:
            passes = self.passes.cut(share.local_batch, self.least)
            count = max(1, len(passes))
        elif share.local_batch and (share.local_batch % count or place.size % count):
            passes = shares.micro_batches(share.local_batch, count, self.least)
        return Step(
            iteration=place.iteration,
            epoch=place.epoch,
            position=place.position,
            global_batch=place.size,
            offset=share.offset,
            local_batch=share.local_batch,
            micro_batches=count,
            lr_multiplier=plan.rate.at(place.iteration),
            begin=place.begin,
            is_last=place.is_last,
            passes=passes,
            largest_batch=max(plan.batches),
            smallest_batch=min(plan.batches),
            source=plan.batches.index(max(plan.batches)),
            has_own_passes=self.passes is not None,
        )

    def cut_again(self, step: Step) -> Step:
        """Returns the same samples of this rank in smaller passes."""
        passes = self.passes.cut(step.local_batch, self.least) if self.passes else step.passes
        return replace(step, passes=passes, micro_batches=len(passes))

    @property
    def least(self) -> int:
        """The minimum number of samples in a pass."""
        # With passes of single samples, these are ready-made batches.
        is_ready = self.passes is not None and self.passes.setting == 1
        return 2 if self.needs.avoids_singles and not is_ready else 1

    def _cut(
        self, costs: Costs, epoch: Epoch, place: Place, planned: Callable[[Plan], Plan], *, is_equal: bool
    ) -> tuple[Step, CutIteration, list[int]]:
        """Cuts an iteration whose samples have costs; returns its samples in the order of their parts."""
        indices = epoch.indices(place.begin, place.size)
        plan = planned(self.plans(place.iteration))
        if self.needs.fills_all:
            plan = shares.without_empty(plan, None, self.quantum, self.caps)
        rules = CutRules(self.order.accumulate, self.least, is_equal)
        cut = costs.cut(plan, costs.at(indices), self.quadratic_share(place.iteration), rules)
        step = self._part(cut.plan, place)
        passes = cut.passes[self.rank]
        if is_equal and len(passes) > 1 and self.needs.equal_passes:
            raise SettingError(
                f"iteration {place.iteration}: {self.workers.noun} {self.rank} has {len(passes)} passes with "
                f"{list(passes)} samples, "
                'and means over them have unequal weights: use job.wrap(.., loss="tokens") and job.count'
            )
        # All ranks have as many passes, if not zero. Hedged steps count their passes themselves.
        micro_batches = max(map(len, cut.passes[: self.world_size])) if is_equal else 1
        step = replace(step, micro_batches=micro_batches, passes=passes, work=cut.works[self.rank])
        return step, cut, [indices[at] for at in cut.positions]

    def epoch(self) -> Epoch:
        """Returns the current epoch.

        Ranks compare the order that a function of the script returns.

        Raises:
            DivergedError: another rank has another order.
            SettingError: the script's function returned indices that break a rule.
        """
        number = self.binding.begins.epoch
        epoch = Epoch(self.order, number)
        if self.world_size > 1 and epoch.whole is not None and self.order.given and callable(self.order.given.indices):
            check_order(epoch.whole, number, self.name)
        return epoch

    def epoch_steps(self) -> Iterator[tuple[Step, list[int]]]:
        """Yields the remaining steps of the epoch with the indices of their samples; each rank's are successive."""
        epoch = self.epoch()
        for place in epoch.places(self.binding.begins):
            if costs := self.order.costs:
                step, _, indices = self._cut(costs, epoch, place, _without_tail, is_equal=True)
                yield step, indices
            else:
                yield self.step(place), epoch.indices(place.begin, place.size)

    def hedged_epoch_steps(
        self, planned: Callable[[Plan], Plan]
    ) -> Iterator[tuple[Step, Plan, list[int], CutIteration | None]]:
        """Yields the remaining steps of the epoch, their complete plans with tails, and the indices of their samples.

        With costs, the cut follows. ``planned`` may change the plans.
        """
        epoch = self.epoch()
        for place in epoch.places(self.binding.begins):
            if costs := self.order.costs:
                step, cut, indices = self._cut(costs, epoch, place, planned, is_equal=False)
                yield step, cut.plan, indices, cut
            else:
                plan = self._allowed(planned(self._plan(place)))
                yield self._part(plan, place), plan, epoch.indices(place.begin, place.size), None

    @contextmanager
    def hedging(self) -> Iterator[None]:
        """Context manager for the passes of a hedged step, which reports its work itself."""
        self.binding.forward()
        self.is_hedging = self.has_hedged = True
        try:
            yield
        finally:
            self.is_hedging = False

    def mark(self, batch: Any = ...) -> Turn:
        """Begins a batch of the loop, by default the oldest one that has not begun.

        Raises:
            DivergedError: ranks have dropped different numbers of iterations.
            SettingError: there is no such batch, or it has ended.
            UnsupportedError: the loop skips batches, or may have dropped some.
        """
        if batch is ...:
            return self.binding.mark()
        turn = self.binding.given(batch)
        if self.world_size > 1 and turn.step.epoch > self._compared:
            # If the loop has left an epoch early, a rank that had read it to its end has other iterations.
            check_begin(turn.step.iteration - turn.step.position, turn.step.epoch, self.name)
            self._compared = turn.step.epoch
        return self.binding.mark(turn)

    def read(self, turn: Turn, batch: Any = None) -> None:
        """Records that the training loop got a batch. It does not change the batch that is being computed."""
        turn.objects = references(batch)
        self.binding.read(turn)
        self.sensor.batch_arrived()
        self.observer.read(turn.step)

    @property
    def iterations(self) -> int:
        """The number of iterations in the current epoch. With a token budget, all costs are read once."""
        if self.order.costs is None or self.order.costs.budget is None:
            return self.order.steps
        if self._iterations is None or self._iterations[0] != self.binding.begins.epoch:
            self._iterations = self.binding.begins.epoch, len(Epoch(self.order, self.binding.begins.epoch))
        return self._iterations[1]

    @property
    def accumulates(self) -> bool:
        """Whether an iteration may have several micro-batches."""
        order = self.order
        return order.accumulate > 1 or order.has_own_passes or bool(order.costs and order.costs.pass_max)

    @property
    def current(self) -> Turn:
        """The batch that is being computed, else the one that was read last.

        Raises:
            SettingError: no batch was read yet.
        """
        return self.binding.current

    def _ends(self, step: Step) -> None:
        """Reports an iteration whose gradients are complete."""
        compute_time_s, loader_wait_s = self.sensor.computed()
        if self.exchange:
            peak, loss = self.sensor.peak_memory_bytes(), self.losses.take(step.iteration)

            def report() -> Report:
                return Report(
                    iteration=step.iteration,
                    local_batch=step.local_batch,
                    compute_time_s=compute_time_s(),
                    loader_wait_s=loader_wait_s,
                    micro_batches=max(1, sum(map(bool, step.sizes))) if self.passes else step.micro_batches,
                    peak_memory_bytes=peak,
                    work=step.work,
                    # After the compute time, which waits for the device.
                    loss=loss(),
                )

            self.submit(step, report)
        if self.passes and self.binding.has_trained:
            # The optimizer has its memory since the first iteration.
            self.passes.trained(step.batch_size)
        self.binding.finish(step)

    def submit(self, step: Step, report: Callable[[], Report]) -> None:
        """Submits the report of an iteration to the exchange. The last one of an epoch may be the last of the run."""
        if self.exchange:
            begun_s = None
            if self._requested and self._requested[0] == step.epoch:
                begun_s, self._requested = self._requested[1], None
            limits = self.passes.limits if self.passes else (0, 0)
            self.exchange.submit(Submission(step.iteration, report, step.is_last, step.global_batch, limits, begun_s))

    def settle(self) -> None:
        """Waits for due exchanges, because scripts may destroy the process group after an epoch."""
        if self.exchange:
            self.exchange.settle(_SETTLE_S)

    def start(self) -> None:
        """Starts the run before its first batch is read, together with all ranks. Later calls have no effect."""
        if self.starts:
            self.starts()
            self.starts = None

    def begin_epoch(self) -> Callable[[], bool]:
        """Starts an epoch iterator.

        Returns a function that tells whether this reading of the epoch is still the current one.
        """
        self.start()
        self.binding.begin_epoch()
        self._requested = (self.binding.begins.epoch, time.perf_counter())
        self._epoch_iterators += 1
        self.observer.epoch_begins()
        mine = self._epoch_iterators
        return lambda: self._epoch_iterators == mine

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last iteration whose gradients are complete."""
        progress = self.binding.saves()
        last = max(0, progress.iteration - 1)
        state = state_of(progress, self.order, self.plans(last), self.quadratic_share(last), self.job)
        if self.passes:
            state |= {"passes": self._limits(self.passes.limits), "micro_batch": self.passes.setting}
        return state

    def limits_of(self, state: Mapping[str, Any]) -> None:
        """Starts with the sizes of passes that a checkpoint has for this kind of device.

        A number of the script is not changed, unless the checkpoint has the same one.
        """
        passes, self._known = self.passes, dict(state.get("passes", {}))
        limits = self._known.get(self.devices[self.rank])
        if passes and limits and (passes.searches or passes.setting == state.get("micro_batch")):
            passes.starts_with(limits)
            log.info("passes of rank %s begin with %s samples, as the checkpoint says", self.rank, passes.size)

    def _limits(self, own: tuple[int, int]) -> dict[str, list[int]]:
        """Returns the limits of passes by kind of device, of the rank with the least memory, and earlier ones."""
        of_ranks = list(self.exchange.limits if self.exchange else ()) or [(0, 0)] * self.world_size
        of_ranks[self.rank] = own
        found: dict[str, list[int]] = {}
        for device, limits in zip(self.devices, of_ranks, strict=True):
            both = zip(found.get(device, limits), limits, strict=True)
            # An unknown limit is 0.
            found[device] = [min(one, other) or max(one, other) for one, other in both]
        known = {device: limits for device, limits in found.items() if any(limits)}
        return found | self._known | known


def _without_tail(plan: Plan) -> Plan:
    return plan.resized(plan.size, 1)
