"""Binds passes to batches: a state machine of the batches that a training loop reads, computes and trains.

It has two positions, of reading and of training. A loop that does not mark its batches has at most one batch to
compute: a forward pass is of the batch that was read last, and closes all earlier ones. The gradients that follow
belong to the batch of their forward pass, even if the loop reads the next one before them.

No event tells apart a loop with one pass for each batch from one that reads between two passes of a batch. The first
two batches of a process do: if the second one has more passes, and they end with the passes of the first one, then the
loop has read too early.
"""

from collections import deque
from collections.abc import Callable, Hashable
from itertools import takewhile
from typing import Any

from evenstep.errors import SettingError, UnsupportedError
from evenstep.run.given import turn_of
from evenstep.run.step import Step, Turn
from evenstep.samples.progress import Progress

#: Maximum number of batches that can be read before training begins their iteration.
READ_AHEAD_MAX = 4096

#: Advice for loops that read ahead.
_MARK = (
    "loops that read ahead or skip batches must mark each iteration with `with job.step(batch)`, also the skipped "
    "ones, where batch is what job.loader yielded, before .to(device)"
)

#: Why a batch has ended, and the advice for loops that mark it again.
_TRAINED = "is already trained: put all its passes into one block, and do not repeat batches, as itertools.cycle does"
_LEFT = "was dropped when a batch of a later epoch began: begin batches in the order in which they were read"
_FAILED = "did not fit into memory: read the next batch, which has a part of its samples"


class Binding:
    """The batches of one rank, from the read to the trained position."""

    def __init__(
        self,
        trained: Progress | None = None,
        begins: Callable[[], object] = lambda: None,
        ends: Callable[[Step], object] | None = None,
    ) -> None:
        """Creates the state before the first batch.

        Args:
            trained: the position from which the run starts.
            begins: called when another iteration becomes the current one.
            ends: called with an iteration whose gradients are complete; it calls :meth:`finish`, the default.
        """
        #: The position after the last iteration whose gradients are complete.
        self.trained = trained or Progress()
        self._on_begin = begins
        self._on_end = ends or self.finish
        #: Called with an iteration before one of its batches begins; it may raise an error.
        self.check: Callable[[int], object] = lambda _: None
        #: Whether the training loop marks the begin of each batch itself.
        self.is_marked = False
        #: Whether the last epoch iterator was read to its end.
        self.is_read = False
        #: The last iteration that was computed.
        self.computed: Step | None = None
        #: The batch whose forward pass or mark began, and whose gradients are not complete.
        self.computing: Turn | None = None
        self._current: Turn | None = None
        #: A batch whose mark ended between its forward and its backward pass.
        self._left: Turn | None = None
        #: The batch that ends its iteration with the next batch: so far it has only passes that were not reduced.
        self._unreduced: Turn | None = None
        #: The batches that were read and are not trained, and the batches of the last iteration that ended.
        self._turns: deque[Turn] = deque(maxlen=READ_AHEAD_MAX)
        self._finished: list[Turn] = []
        #: Whether more batches were read than can be kept.
        self._has_dropped = False
        #: The position after the last batch that was read.
        self._read_to = self.trained
        #: The first iteration of the current epoch iterator; None before the first one.
        self._begins: Progress | None = None
        #: Whether this process has trained an iteration, and whether it had trained all when the iterator started.
        self.has_trained = self._is_level = False
        #: Whether the loop gives the batches that its marks begin.
        self._gives = False
        #: The maximum number of batches that had not begun at a mark.
        self._ahead = 0
        #: Whether a forward pass repeats a batch after the end of the epoch.
        self._repeats = False
        #: The models in the passes of the first two batches, and in the pass that has no gradients yet.
        self._passes: list[list[set[Hashable]]] = []
        self._passing = set[Hashable]()
        self._tracked: Turn | None = None
        #: Number of passes in the running step of an optimizer; None outside of one.
        self._passes_in_step: int | None = None
        #: Whether passes are observed. Otherwise the steps of optimizers show which batches are trained.
        self.is_observed: Callable[[], bool] = lambda: True
        #: The number of iterations that a loop whose passes are not observed reads ahead, 0 or 1, and the number of
        #: iterations that were read since the last step of an optimizer.
        self._lag: int | None = None
        self._fresh = 0

    def starts_at(self, trained: Progress) -> None:
        """Moves to the position of a checkpoint, before the first batch is read."""
        self.trained = self._read_to = trained

    @property
    def begins(self) -> Progress:
        """The first iteration of the current epoch iterator."""
        return self._begins or self.trained

    @property
    def next(self) -> Progress:
        """The position of the next iteration of a stream."""
        return _after(self._left.step) if self._left else self.trained

    @property
    def has_batch(self) -> bool:
        """Whether the training loop has read a batch."""
        return self._current is not None

    @property
    def next_pass(self) -> Turn | None:
        """The batch of a forward pass that begins now; None before the first batch."""
        # A copy: another thread may be reading batches.
        return [self._current, *([] if self.is_marked else self._turns)][-1]

    @property
    def is_between_epochs(self) -> bool:
        """Whether the loop has read an epoch to its end and computed all its batches."""
        return self.is_read and not self._turns

    @property
    def current(self) -> Turn:
        """The batch that is being computed, else the one that was read last.

        Raises:
            SettingError: no batch was read yet.
        """
        turn = self.computing or self._current
        if turn is None:
            raise SettingError("no iteration has begun: read a batch from job.loader, or use `with job.step()`")
        return turn

    def begin_epoch(self) -> None:
        """Starts an epoch iterator.

        An iterator that was read to its end moves the position, unless the loop only looked at its batches. The epoch
        of one that was left early is over if this process has trained something of it. Otherwise it starts again.
        """
        self.goes_on()
        trained, before = self.trained, self._begins
        has_trained = before is not None and trained.iteration > before.iteration
        # Without passes, nothing tells a look at an epoch from reading ahead before the first step.
        is_look = self._is_level or (self._lag is None and not self.is_marked and not self.is_observed())
        # A loop that gives its batches names the ones that it trains.
        is_ahead = self._gives or (self.is_marked or bool(self._lag) if has_trained else not is_look)
        if self.is_read and not self._has_dropped and (is_ahead or self.computing is not None):
            # The loop reads ahead, over the end of the epoch. Its last iterations are still to be computed.
            self._begins = self._read_to
        else:
            self._turns.clear()
            self.computing, self._has_dropped = None, False
            if not self.has_trained:
                self._passes.clear()
                self._passing.clear()
                self._tracked = None
            if has_trained and trained.position:
                self.trained = Progress(trained.iteration, trained.epoch + 1)
            self._begins = self.trained
        self._is_level = self.has_trained and self._begins == self.trained
        # A loop that reads ahead begins with two.
        self._fresh = -1
        self.is_read = False

    def looks(self) -> None:
        """Records a forward pass without gradients: batches of which none is trained may be read for it only."""
        self._is_level |= not self.is_marked

    def read(self, turn: Turn) -> None:
        """Records that the training loop got a batch. It does not change the batch that is being computed."""
        turns = self._turns
        # A stream repeats an iteration that it left with an error. Its earlier batch does not count.
        while not turn.micro and turns and turns[-1].step.iteration == turn.step.iteration:
            turns.pop()
        # Loops that only look at batches may read any number of them.
        self._has_dropped = bool(turns) and (self._has_dropped or len(turns) == turns.maxlen)
        turns.append(turn)
        self._read_to = _after(turn.step)
        self._fresh += turn.is_last
        if self.computing is None and not self.is_marked:
            self._make_current(turn)

    def given(self, batch: Any) -> Turn:
        """Returns the batch to which an object belongs.

        Raises:
            SettingError: no batch that was read and not trained has the object, or several have it.
        """
        return turn_of(batch, [*self._finished, *self._turns])

    def mark(self, given: Turn | None = None) -> Turn:
        """Begins a batch, or begins it again; by default the oldest one that was read and not begun.

        Raises:
            SettingError: there is no such batch, it has ended, or it is unknown because too many were read.
            UnsupportedError: the loop skips batches, or may have dropped some of an earlier epoch.
        """
        self.is_marked = True
        if self._has_dropped:
            raise SettingError(
                f"step(): more than {self._turns.maxlen} batches were read before their iterations began, and the "
                f"oldest are unknown now: read at most {self._turns.maxlen} ahead"
            )
        # A copy: another thread may be reading batches.
        waiting = [turn for turn in list(self._turns) if not turn.begun]
        turn = self._oldest(waiting) if given is None else self._next(given, waiting)
        self._gives |= given is not None
        self._ahead = max(self._ahead, len(waiting))
        if turn.done:
            # Further passes follow.
            turn.forwarded = turn.done = False
        self._begin(turn)
        return turn

    def _oldest(self, waiting: list[Turn]) -> Turn:
        """Returns the oldest batch that has not begun, if the loop cannot have dropped it."""
        if not waiting:
            raise SettingError(
                "step(): every batch read so far has already begun: read the next batch from job.loader first"
            )
        turn = waiting[0]
        # A resumed loop may read the rest of its epoch at once.
        is_known = not self._ahead and (turn.step.position or turn.micro)
        if turn.step.iteration < self.begins.iteration and self._ahead < len(waiting) and not is_known:
            raise UnsupportedError(
                f"step(): {len(waiting)} batches have not begun, more than ever, and the oldest one is of epoch "
                f"{turn.step.epoch}, which was read to its end: it is unknown whether the loop has dropped it or has "
                "only looked at it; use `with job.step(batch)`, where batch is what job.loader yielded, and read the "
                "data set itself to look at its samples"
            )
        return turn

    def _next(self, given: Turn, waiting: list[Turn]) -> Turn:
        """Returns a batch if it may begin; earlier ones of an epoch that the loop has left are dropped."""
        name = f"step(batch): iteration {given.step.iteration} of epoch {given.step.epoch}"
        if given.ended:
            raise SettingError(f"{name} {given.ended}")
        earlier = [] if given.begun else list(takewhile(lambda turn: turn is not given, waiting))
        if any(turn.step.epoch == given.step.epoch for turn in earlier):
            raise UnsupportedError(
                f"{name} begins, but iteration {earlier[-1].step.iteration} was read before it and has not begun: "
                "begin batches in the order in which they were read, also skipped ones: `continue` inside of the block"
            )
        if earlier and (self.computed is None or any(turn.step.epoch != self.computed.epoch for turn in earlier)):
            raise UnsupportedError(
                f"{name} begins, but no batch of epoch {earlier[-1].step.epoch} has: train each epoch that you read, "
                "and read the data set itself to look at its samples"
            )
        for turn in earlier:
            # The loop has left their epoch early.
            turn.begun, turn.ended = True, _LEFT
        return given

    def leave(self) -> None:
        """Ends the mark of a batch, and its iteration, unless its backward pass is still to come."""
        turn = self._current
        if self._left is not turn:
            self._end_left()
        if turn is self.computing and turn is not None and turn.forwarded and not turn.done:
            self._left = turn
        else:
            self.complete()

    def forward(self, model: Hashable = None) -> list[Turn]:
        """Begins a forward pass.

        Without marks, it is of the batch that was read last.

        Returns:
            other micro-batches of the iteration whose gradients may be computed in the same backward pass, or that this
            one may be.

        Raises:
            UnsupportedError: the loop read batches ahead, so it is unknown which batch this is.
        """
        turn, turns = self.next_pass, list(self._turns)
        if turn is None:
            return []
        if not self.is_marked:
            for other in turns:
                if not other.begun and other.step.iteration != turn.step.iteration:
                    raise UnsupportedError(
                        f"iterations {other.step.iteration} and {turn.step.iteration} were read before the forward "
                        f"pass of either: {_MARK}; read the data set itself to look at its samples"
                    )
            self._repeats = self.is_between_epochs and (self._repeats or self.computing is None)
        if self._left is not turn:
            self._end_left()
        self._begin(turn)
        turn.forwarded = True
        others = [
            other
            for other in turns
            if other is not turn and other.step is turn.step and not other.done and (other.begun or not self.is_marked)
        ]
        self._track(turn, model, is_alone=not others)
        return others

    def backward(self) -> Turn:
        """Begins to compute gradients, and returns the batch to which they belong.

        Without a forward pass that was observed, it is the batch that was read last.

        Raises:
            UnsupportedError: the loop read batches ahead or between two passes, or repeats batches after the end of
                the epoch.
        """
        if not self.current.begun:
            self.forward()
        turn = self.current
        if self._repeats and not self.is_marked:
            raise UnsupportedError(
                "gradients after the epoch was read to its end and all its batches were trained: it is unknown of "
                "which batch they are; do not repeat batches, as itertools.cycle does, but read job.loader again: "
                "`while True: yield from loader`; gradients for a validation: torch.autograd.grad(loss, inputs), or a "
                "backward pass of the module that DistributedDataParallel got, and zero_grad() after it"
            )
        turn.done = True
        self._check_passes()
        return turn

    def complete(self, *, is_reduced: bool = True) -> None:
        """Records that gradients of the current batch are complete; the last batch ends its iteration.

        If they were not reduced over ranks, another backward pass of the batch may follow.
        """
        turn = self.current
        self.computing = None
        if turn is self._left:
            # The next batch has its mark already.
            self._left, self.computing = None, None if self._current is turn else self._current
        if not turn.is_last or turn.failed or turn.step.iteration < self.trained.iteration:
            return
        self._unreduced = None if is_reduced else turn
        if is_reduced:
            self._on_end(turn.step)

    def goes_on(self) -> None:
        """Records that the loop continues with another batch, so that no pass of the current one follows."""
        turn, self._unreduced = self._unreduced, None
        if turn is not None:
            self._on_end(turn.step)

    def saves(self) -> Progress:
        """Returns the trained position, when no pass of an earlier batch follows."""
        self.goes_on()
        self._end_left()
        return self.trained

    def repeats(self) -> None:
        """Records that the batch did not fit into memory: the loop reads its iteration again."""
        turn = self.current
        turn.failed, turn.begun, turn.ended, self.computing = True, True, _FAILED, None
        self._passing.clear()
        if turn is self._tracked and len(self._passes) <= 2:
            # Its repetition is another first batch.
            self._tracked, self._passes = None, self._passes[:-1]

    def finish(self, step: Step) -> None:
        """Marks an iteration as trained, with the samples that this rank computed."""
        self.computed = step
        if self.computing is not None and self.computing.step.iteration <= step.iteration:
            self.computing = None
        self._advance(step)

    def step_begins(self) -> None:
        """Records that an optimizer begins its step, which may compute passes in a closure."""
        self._passes_in_step = 0

    def step_ends(self) -> None:
        """Records that an optimizer has made its step.

        If passes are not observed, it trains the batches that were read. A loop with two iterations before its first
        step may read one ahead, unless it reads several before another step, because it adds their gradients.
        """
        self._passes_in_step = None
        if self.is_marked or self.is_observed():
            return
        ends = [turn.step for turn in list(self._turns) if turn.is_last]
        if self._lag is None:
            self._lag = 1 if len(ends) == 2 else 0
        elif self._fresh > 1:
            self._lag = 0
        self._fresh = 0
        # After the end nothing is read ahead.
        if trained := ends[: len(ends) - (0 if self.is_read else self._lag)]:
            self._advance(trained[-1])

    def count(self, items: Any) -> None:
        """Records the number of items in the batch that is being computed, else in the one that comes next.

        Raises:
            SettingError: there is no such batch, or its items are counted already.
        """
        turn = self.computing
        if turn is None or turn.items is not None:
            turn = next((turn for turn in list(self._turns) if not turn.begun and turn.items is None), None)
        if turn is None:
            raise SettingError(
                f"count({items}): the items of every batch read so far are counted: call it once for each batch"
            )
        turn.items = items

    def items(self) -> list[Any]:
        """Returns the numbers of items of the current iteration's batches; none if this rank has no samples.

        Raises:
            SettingError: a batch is not counted.
        """
        step = self.current.step
        if not step.local_batch:
            return []
        turns = [turn for turn in (*self._finished, *self._turns) if turn.step.iteration == step.iteration]
        # A micro-batch without samples has others, which do not count.
        turns = [turn for turn in turns if turn.samples]
        return [turn.counted for turn in turns]

    def _begin(self, turn: Turn) -> None:
        self.check(turn.step.iteration)
        if turn is not self._current:
            if self._unreduced and self._unreduced.step is not turn.step:
                self.goes_on()
            self._make_current(turn)
        turn.begun = True
        if self._left is None:
            self.computing, self.computed = turn, turn.step

    def _make_current(self, turn: Turn) -> None:
        self._current = turn
        if not turn.micro and self._left is None:
            self._on_begin()

    def _end_left(self) -> None:
        """Ends the iteration of a batch that was left without a backward pass."""
        turn, self._left = self._left, None
        if turn is None:
            return
        self.computing = None if self._current is turn else self._current
        if turn.is_last and turn.step.iteration >= self.trained.iteration:
            self._on_end(turn.step)

    def _advance(self, step: Step) -> None:
        self.has_trained = True
        self.trained = _after(step)
        self._finished.clear()
        while self._turns and self._turns[0].step.iteration <= step.iteration:
            turn = self._turns.popleft()
            turn.ended = turn.ended or _TRAINED
            self._finished.append(turn)

    def _track(self, turn: Turn, model: Hashable, *, is_alone: bool) -> None:
        """Collects the passes of the first two batches, unless their micro-batches were read together."""
        if len(self._passes) > 2:
            return
        if turn is not self._tracked:
            self._tracked = turn
            # A batch without gradients does not count.
            self._passes = [*filter(None, self._passes), []] if is_alone else [[], [], []]
            self._passing.clear()
        self._passing.add(model)

    def _check_passes(self) -> None:
        """Checks that the loop does not read between the passes of a batch.

        Raises:
            UnsupportedError: the second batch has more passes, and they end with the passes of the first one.
        """
        if self._passing and not self._passes_in_step:
            self._passes[-1].append(set(self._passing))
        self._passing.clear()
        if self._passes_in_step is not None:
            self._passes_in_step += 1
        if self.is_marked or len(self._passes) != 2:
            return
        first, second = self._passes
        if first and len(second) > len(first) and second[-len(first) :] == first:
            raise UnsupportedError(
                f"the first batch had {len(first)} backward passes before the next one was read, and the second batch "
                f"has {len(second)}: a loop without marks must read the next batch after the last forward pass of a "
                f"batch; if it does, and its batches have different numbers of passes, mark them; {_MARK}"
            )


def _after(step: Step) -> Progress:
    """Returns the position after an iteration."""
    if step.is_last:
        return Progress(step.iteration + 1, step.epoch + 1)
    return Progress(step.iteration + 1, step.epoch, step.position + 1, step.begin + step.global_batch)
