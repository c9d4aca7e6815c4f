"""The iterations of an epoch for a training loop: passes over a base batch and claimed chunks, then one all-reduce."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import default_collate

from evenstep._native import Plan, Share
from evenstep.errors import DivergedError, SettingError
from evenstep.exchange.report import Report, TailWork
from evenstep.gradients import hook
from evenstep.hedge.claims import Additions, Claims, Turn
from evenstep.hedge.part_costs import PartCosts
from evenstep.hedge.reduce import Reducer
from evenstep.hedge.trainee import TrainedModel
from evenstep.hedge.watch import PassTimer
from evenstep.run.run import Run
from evenstep.run.step import Step
from evenstep.run.step import Turn as Batch
from evenstep.samples.costs import CutIteration
from evenstep.settings.chunks import SharedTail

#: Samples, claims, leaves and tokens: the numbers that ranks exchange in an iteration.
_NUMBERS = 4
_TOKENS = 3

#: Numbers of tokens are below this one.
_TOKENS_END = 2**32


@dataclass(frozen=True, slots=True)
class _Rank:
    """The objects that a rank uses in all iterations of an epoch."""

    run: Run
    trainee: TrainedModel
    reducer: Reducer
    claims: Claims
    #: Maximum number of samples per pass.
    micro_batch: int | None


class Steps:
    """An iterable over the iterations of an epoch; after a resume, over the remaining ones.

    Each iteration is an iterable of this rank's batches. When it ends, the parameters have the gradient of the whole
    iteration, the same on all ranks, and the optimizer can step.
    """

    def __init__(
        self,
        run: Run,
        dataset: Any,
        trainee: Callable[[], TrainedModel],
        claims: Callable[[TrainedModel], Claims],
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch: int | None = None,
        tail: SharedTail | None = None,
    ) -> None:
        """Creates the iterations of a started run.

        Args:
            run: the run of this rank.
            dataset: a map-style data set.
            trainee: returns the model, which may be wrapped later than this call.
            claims: returns this rank's claims, the same in every epoch; all ranks call it together.
            collate_fn: makes a batch from a list of samples.
            micro_batch: maximum number of samples per pass.
            tail: the tail of plans without one.
        """
        self._run = run
        self._dataset = run.observer.dataset(dataset)
        self._trained_model = trainee
        self._claims = claims
        self._collate = collate_fn or default_collate
        self._micro_batch = micro_batch
        self._tail = tail

    def __len__(self) -> int:
        """The number of iterations in an epoch."""
        return self._run.iterations

    def __iter__(self) -> "Iterator[Iteration]":
        """Yields the remaining iterations of the epoch.

        Raises:
            DivergedError: the loop left an iteration before its end.
        """
        run, trainee = self._run, self._trained_model()
        run.observer.hedged()
        trainee.check(run.world_size)
        claims = self._claims(trainee)
        goes_on = run.begin_epoch()
        reducer = Reducer(trainee.parameters(), trainee.buffers(), trainee.group, _NUMBERS)
        run.sensor.computes_on(reducer.device)
        own = _Rank(run, trainee, reducer, claims, self._micro_batch)
        for step, plan, indices, cut in run.hedged_epoch_steps(self._planned):
            iteration = Iteration(own, step, plan, partial(self._load, step, indices), cut)
            run.read(Batch(step, 0))
            yield iteration
            if not iteration.is_done:
                raise DivergedError(
                    f"iteration {step.iteration} was left before its end: `for batch in step` must run to the "
                    "end, or the gradient would lack samples"
                )
            if not goes_on():
                raise SettingError(
                    "a second iterator has started the epoch again: read a job's data with one iterator at a time"
                )
        run.settle()
        run.observer.epoch_ends()

    def _planned(self, plan: Plan) -> Plan:
        return (
            plan
            if plan.tail or self._tail is None
            else plan.with_tail(self._tail.share, self._tail.min_chunk, self._run.quantum)
        )

    def _load(self, step: Step, indices: list[int], share: Share) -> Any:
        wanted = indices[share.offset : share.offset + share.local_batch]
        wanted = self._run.observer.drawn(step, wanted)
        if getattr(self._dataset, "__getitems__", None):
            return self._collate(self._dataset.__getitems__(wanted))
        return self._collate([self._dataset[index] for index in wanted])


class Iteration:
    """This rank's batches of one optimizer step: its base batch, then the chunks that it claims. Iterate it once."""

    def __init__(
        self, own: _Rank, step: Step, plan: Plan, load: Callable[[Share], Any], cut: CutIteration | None = None
    ) -> None:
        """Creates one rank's iteration; ``load`` returns a batch of samples of the iteration.

        With costs, ``cut`` has the passes of each share and chunk.
        """
        #: The iteration, with this rank's base batch.
        self.step = step
        #: The shares of all ranks and the tail.
        self.plan = plan
        #: Whether the parameters have the gradient of the whole iteration.
        self.is_done = False
        self._own = own
        self._load = load
        self._watch = PassTimer(own.reducer.device)
        self._loader_wait_s = 0.0
        self._is_begun = False
        #: Numbers of tokens of the passes, if the loss is a sum over them; on the device or not.
        self._tokens: list[Any] = []
        self._costs = None if cut is None else PartCosts(cut)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches for forward and backward passes. Their number is known only at the end and may be 0.

        Raises:
            SettingError: the iteration was iterated before.
            DivergedError: the ranks did not compute each sample of the iteration once; all ranks raise it.
            EvenstepError: the store is unreachable.
        """
        if self._is_begun:
            raise SettingError(
                f"iteration {self.step.iteration} was already iterated: take the next one from job.steps"
            )
        self._is_begun = True
        rank = self._own.run.rank
        turn = self._own.claims.turn(self.plan, rank)
        has_tail, base_s = not turn.is_over, 0.0
        part: Share | None = self.plan.shares[rank]
        with self._own.trainee.without_sync() as computing, self._own.run.hedging():
            self._own.reducer.begin(computing)
            while part:
                yield from self._passes(part, turn)
                if self._costs:
                    self._costs.compute(part, is_claimed=turn.chunks > 0)
                if has_tail and not turn.chunks:
                    base_s = self._watch.total_s()
                part = turn.next(self._pace_s(turn))
        self._submit(turn, base_s)
        self._reduce(turn)

    def _passes(self, part: Share, turn: Turn) -> Iterator[Any]:
        """Yields the batches of a base batch or chunk; requests the next chunk during the last of them."""
        offset, end = part.offset, part.offset + part.local_batch
        for samples in self._costs.passes(part) if self._costs else self._sizes(part.local_batch):
            loading = time.perf_counter()
            batch = self._load(Share(offset, samples))
            self._loader_wait_s += time.perf_counter() - loading
            if offset + samples == end:
                turn.request_ahead(samples, self._pace_s(turn))
            self._own.run.current.passing = samples
            self._watch.begin()
            yield batch
            own, iteration_size = self._own, self.step.global_batch
            if own.trainee.loss == "tokens":
                current = own.run.current
                self._tokens.append(current.counted)
                # The next pass counts its own.
                current.items = None
            own.reducer.add(hook.weight(own.trainee.loss, samples, iteration_size, own.run.world_size))
            self._watch.end(samples)
            offset += samples

    def _sizes(self, samples: int) -> Iterator[int]:
        """Yields the numbers of samples of equal passes; the last one may be smaller."""
        size = self._own.micro_batch or max(samples, 1)
        for begin in range(0, samples, size):
            yield min(size, samples - begin)

    def _pace_s(self, turn: Turn) -> float | None:
        """Without a tail the pace is not needed, and waiting for the device is avoided."""
        return None if turn.is_over else self._watch.pace_s()

    def _submit(self, turn: Turn, base_s: float) -> None:
        """Submits the report before waiting for the other ranks."""
        watch, loader_wait_s, costs = self._watch, self._loader_wait_s, self._costs
        peak, loss = watch.peak_memory_bytes(), self._own.run.losses.take(self.step.iteration)

        def report() -> Report:
            compute_time_s = watch.total_s()
            claimed = costs.claimed if costs else None
            tail = TailWork(turn.chunks, turn.samples, compute_time_s - base_s, turn.claim_time_s, claimed)
            return Report(
                iteration=self.step.iteration,
                local_batch=watch.samples,
                compute_time_s=compute_time_s,
                loader_wait_s=loader_wait_s,
                micro_batches=watch.passes,
                peak_memory_bytes=peak,
                tail=tail if turn.chunks else None,
                work=costs.computed if costs else None,
                loss=loss(),
            )

        self._own.run.submit(self.step, report)

    def _reduce(self, turn: Turn) -> None:
        added = turn.additions
        is_counted = self._own.trainee.loss == "tokens"
        numbers = [self._watch.samples, added.claims, added.leaves, _whole(self._tokens)]
        told = self._own.reducer.reduce(numbers, self.step.source, divisor=_TOKENS if is_counted else None)
        samples = sum(numbers[0] for numbers in told)
        if samples != self.step.global_batch:
            raise DivergedError(
                f"iteration {self.step.iteration}: the ranks computed {[numbers[0] for numbers in told]} samples; "
                f"the sum must be {self.step.global_batch}"
            )
        additions = [Additions(claims, leaves) for _, claims, leaves, _ in told]
        self._own.claims.settle(self.plan, additions, self._watch.pace_s())
        self._own.run.binding.finish(replace(self.step, local_batch=self._watch.samples))
        self.is_done = True


def _whole(tokens: Sequence[Any]) -> int:
    """Returns the sum of whole numbers; waits for the device if it holds them.

    Raises:
        SettingError: the sum is not a whole number.
    """
    counted = float(sum(tokens))
    if not counted.is_integer() or not 0 <= counted < _TOKENS_END:
        raise SettingError(
            f"count: the items of an iteration sum to {counted:g}: must be a whole number below 2^32 with job.steps"
        )
    return int(counted)
