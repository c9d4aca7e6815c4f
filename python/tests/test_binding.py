"""Which batch a pass belongs to, by a plain model: the loop itself knows the batch that it computes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import EvenstepError, UnsupportedError
from evenstep.run.binding import Binding
from evenstep.run.step import Step, Turn
from evenstep.samples.progress import Progress


@dataclass
class Loop:
    """A training loop, and the batches of the iterations that it has trained."""

    iterations: int
    micro_batches: int = 1
    #: Number of batches that it holds besides the one that it computes.
    depth: int = 0
    marks: bool = False
    #: Whether a mark gets its batch.
    gives: bool = False
    passes: int = 1
    #: Whether it reads the next batch between the last forward and backward pass.
    reads_early: bool = False
    binding: Binding = field(default_factory=Binding)
    trained: list[tuple[int, int, int]] = field(default_factory=list)

    def epoch(self) -> Iterator[Turn]:
        """Reads an epoch, as the loader does."""
        binding = self.binding
        binding.begin_epoch()
        begins = binding.begins
        for position in range(begins.position, self.iterations):
            iteration = begins.iteration + position - begins.position
            is_last = position + 1 == self.iterations
            step = Step(
                iteration, begins.epoch, position, 1, 0, 1, self.micro_batches, 1.0, begin=position, is_last=is_last
            )
            for micro in range(self.micro_batches):
                binding.goes_on()
                turn = Turn(step, micro)
                binding.read(turn)
                yield turn
        binding.goes_on()
        binding.is_read = True

    def cycle(self) -> Iterator[Turn]:
        while True:
            yield from self.epoch()

    def train(self, source: Iterator[Turn], count: int | None = None) -> None:
        """Trains ``count`` batches of a source, or all of them."""
        held = deque[Turn | None](next(source, None) for _ in range(self.depth + 1))
        while (turn := held.popleft()) is not None and count != 0:
            if self.marks:
                assert self.binding.mark(turn if self.gives else None) is turn
            for at in range(self.passes):
                self.binding.forward("model")
                if self.reads_early and at + 1 == self.passes:
                    held.append(next(source, None))
                assert self.binding.backward() is turn, "the gradients belong to the batch that the loop computes"
                self.binding.complete()
            if self.marks:
                self.binding.leave()
            self.trained.append((turn.step.epoch, turn.step.position, turn.micro))
            if not self.reads_early:
                held.append(next(source, None))
            count = None if count is None else count - 1

    def resumed(self) -> "Loop":
        """Returns the same loop in a new process, from the state of this one."""
        state = self.binding.saves()
        binding = Binding(Progress(state.iteration, state.epoch, state.position, state.sample))
        return replace(self, binding=binding)


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    depth = draw(st.integers(0, 6))
    marks = depth > 0 or draw(st.booleans())
    return Loop(
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        depth,
        marks=marks,
        gives=marks and draw(st.booleans()),
        passes=draw(st.integers(1, 3)),
        reads_early=draw(st.booleans()),
    )


def of_epochs(loop: Loop, epochs: int) -> list[tuple[int, int, int]]:
    places = [(at, micro) for at in range(loop.iterations) for micro in range(loop.micro_batches)]
    return [(epoch, *place) for epoch in range(epochs) for place in places]


@given(loop=loops(), stop=st.integers(0, 8), looks=st.integers(0, 4), cycles=st.booleans())
def test_each_batch_is_trained_once_in_its_epoch(loop: Loop, stop: int, looks: int, cycles: bool) -> None:
    """A loop trains three epochs, and is resumed once after any iteration; before, it looks at some batches."""
    stop = min(stop, 3 * loop.iterations)
    for whole in (stop, 3 * loop.iterations - stop):
        count = whole
        left = loop.iterations - loop.binding.trained.position
        source = loop.epoch()
        for _ in range(min(looks, left - 1)):
            next(source)
        if cycles:
            is_whole = count > 0 and loop.binding.trained.position == 0
            if loop.marks and not loop.gives and is_whole and loop.depth >= loop.iterations * loop.micro_batches:
                with pytest.raises(UnsupportedError, match="more than ever"):
                    loop.train(loop.cycle(), count * loop.micro_batches)
                return
            loop.train(loop.cycle(), count * loop.micro_batches)
        while loop.binding.trained.epoch < 3 and not cycles:
            before = loop.binding.trained.iteration
            if not (batches := count * loop.micro_batches):
                break
            loop.train(loop.epoch(), batches)
            count -= loop.binding.saves().iteration - before
        loop = loop.resumed()
    assert loop.trained == of_epochs(loop, 3)
    assert loop.binding.trained == Progress(3 * loop.iterations, 3)


@given(loop=loops(), stops=st.lists(st.integers(1, 4), min_size=1, max_size=4), depths=st.data())
def test_an_epoch_that_is_left_early_is_over(loop: Loop, stops: list[int], depths: st.DataObject) -> None:
    """Batches that were read before the loop left it are dropped. After its end, that is an error without the batch."""
    expected = []
    for epoch, stop in enumerate(stops):
        try:
            loop.train(loop.epoch(), stop * loop.micro_batches)
        except UnsupportedError:
            assert not loop.gives
            assert stops[epoch - 1] < loop.iterations <= stops[epoch - 1] + loop.depth
            break
        loop.depth = depths.draw(st.integers(0, 6)) if loop.gives else loop.depth
        expected += [place for place in of_epochs(loop, epoch + 1) if place[0] == epoch and place[1] < stop]
    assert loop.trained == expected


@pytest.mark.parametrize("early", [1, 2, 3])
def test_a_loop_that_reads_between_its_passes_is_refused_at_the_second_batch(early: int) -> None:
    """Each batch has some passes before the next one is read, and one after."""
    loop = Loop(4)
    source = loop.epoch()

    def one_pass() -> None:
        loop.binding.forward("model")
        loop.binding.backward()
        loop.binding.complete()

    for _ in range(2):
        next(source)
        for _ in range(early):
            one_pass()
    with pytest.raises(UnsupportedError, match="must read the next batch after the last forward pass"):
        one_pass()


def test_numbers_of_passes_that_vary_are_allowed() -> None:
    """A step with a closure; and a penalty now and then, but not first in the second batch."""
    loop = Loop(9)
    for at, turn in enumerate(loop.epoch()):
        loop.binding.step_begins()
        for _ in range(1 + at % 3):
            loop.binding.forward()
            assert loop.binding.backward() is turn
            loop.binding.complete()
        loop.binding.step_ends()
    loop = Loop(9)
    for at, turn in enumerate(loop.epoch()):
        for _ in range(2 if at % 4 == 0 else 1):
            loop.binding.forward()
            assert loop.binding.backward() is turn
            loop.binding.complete()


def test_two_models_tell_apart_more_passes() -> None:
    """A critic trains on each batch, a generator on each second one."""
    loop = Loop(8)
    for at, turn in enumerate(loop.epoch()):
        for models in (["critic"], ["generator", "critic"])[: 1 + at % 2]:
            for model in models:
                loop.binding.forward(model)
            assert loop.binding.backward() is turn
            loop.binding.complete()


@pytest.mark.parametrize("marks", [False, True])
def test_two_batches_ahead_without_marks_are_refused(marks: bool) -> None:
    for iterations in (1, 4):
        loop = Loop(iterations, depth=1, marks=marks)
        if marks and iterations > 1:
            loop.train(loop.cycle(), 9)
            continue
        told = "has only looked at it" if marks else "must mark each iteration"
        with pytest.raises(UnsupportedError, match=told):
            loop.train(loop.cycle(), 9)
        assert not loop.trained


def test_batches_repeated_after_the_epoch_are_refused() -> None:
    loop = Loop(3)
    loop.train(loop.epoch())
    for _ in range(2):
        # A validation with gradients, but without a backward pass.
        loop.binding.forward()
    assert loop.binding.is_between_epochs
    with pytest.raises(UnsupportedError, match=r"as itertools\.cycle does"):
        loop.binding.backward()
    loop.train(loop.epoch())
    assert loop.trained == of_epochs(loop, 2)


@pytest.mark.parametrize("marks", [False, True])
def test_looking_at_a_whole_epoch_trains_nothing(marks: bool) -> None:
    """For example an evaluation on the training data, first and after each epoch."""
    loop = Loop(3, marks=marks)
    for _ in loop.epoch():
        loop.binding.looks()
    for _ in range(3):
        loop.train(loop.epoch())
        assert len(list(loop.epoch())) == 3
    assert loop.trained == of_epochs(loop, 3)


def test_a_forward_pass_alone_trains_nothing() -> None:
    loop = Loop(3)
    next(loop.epoch())
    loop.binding.forward()
    loop.train(loop.epoch())
    assert loop.trained == of_epochs(loop, 1)


def test_a_mark_that_is_left_before_the_backward_pass() -> None:
    """A stream that marks in its generator, in a loop that reads between the passes; one pass is skipped."""
    binding = Binding()

    def stream() -> Iterator[Turn]:
        while True:
            place = binding.next
            binding.read(Turn(Step(place.iteration, 0, place.position, 1, 0, 1, 1, 1.0), 0))
            yield binding.mark()
            binding.leave()

    source = stream()
    turn = next(source)
    for at in range(6):
        binding.forward()
        following = next(source)
        assert following.step.iteration == at + 1
        if at != 3:
            assert binding.current is turn
            assert binding.backward() is turn
            binding.complete()
            assert binding.computed is turn.step
        assert binding.saves().iteration == at + 1
        turn = following


@pytest.mark.parametrize("ahead", [0, 1])
def test_passes_that_are_not_observed(ahead: int) -> None:
    """One process trains without wrap; each step of the optimizer trains an iteration."""
    loop, done = Loop(4), 0
    loop.binding.is_observed = lambda: False
    assert len(list(loop.epoch())) == 4
    for _ in range(3):
        held = deque[Turn | None]()
        source = loop.epoch()
        held.extend(next(source, None) for _ in range(1 + ahead))
        while (turn := held.popleft()) is not None:
            for _ in range(2):
                loop.binding.step_begins()
                loop.binding.step_ends()
                if ahead:
                    break
            done += 1
            assert loop.binding.trained.iteration == turn.step.iteration + 1 == done
            held.append(next(source, None))
        assert loop.binding.trained == Progress(done, done // 4)
    loop.train(loop.epoch(), 0)
    assert loop.binding.trained.epoch == 3, "looking trains nothing"


@pytest.mark.parametrize(
    ("accumulated", "first", "right"),
    [(4, 1, [4, 8, 10]), (2, 1, [1, 4, 6, 8, 10]), (1, 3, [3, *range(4, 11)])],
)
def test_steps_over_several_batches_that_are_not_observed(accumulated: int, first: int, right: list[int]) -> None:
    """A loop adds gradients, or a scaler skips its first steps."""
    loop, trained = Loop(10), list[int]()
    loop.binding.is_observed = lambda: False
    for at, turn in enumerate(loop.epoch()):
        if (at + 1 >= first and (at + 1) % accumulated == 0) or turn.step.is_last:
            loop.binding.step_begins()
            loop.binding.step_ends()
            trained.append(loop.binding.trained.iteration)
    assert trained == right


@pytest.mark.parametrize("looks", [False, True])
def test_batches_without_gradients_do_not_hide_a_read_between_passes(looks: bool) -> None:
    loop = Loop(4)

    def one_pass() -> None:
        loop.binding.forward("model")
        loop.binding.backward()
        loop.binding.complete()

    if looks:
        next(loop.epoch())
        loop.binding.forward("model")
    source = loop.epoch()
    if not looks:
        next(source)
        loop.binding.forward("model")
    next(source)
    one_pass()
    next(source)
    one_pass()
    with pytest.raises(UnsupportedError, match="must read the next batch after the last forward pass"):
        one_pass()


@pytest.mark.parametrize(("gives", "told"), [(False, "has only looked at it"), (True, "no batch of epoch 0 has")])
def test_marks_after_reading_a_whole_epoch_are_refused(gives: bool, told: str) -> None:
    """The loop may compute the first epoch's batches, or may only have looked at them."""
    loop = Loop(3, marks=True, gives=gives)
    assert len(list(loop.epoch())) == 3
    with pytest.raises(UnsupportedError, match=told):
        loop.train(loop.epoch())


def test_an_iteration_is_checked_before_it_begins_not_when_it_is_read() -> None:
    loop, checked = Loop(4, depth=2, marks=True), list[int]()
    loop.binding.check = checked.append
    loop.train(loop.epoch(), 2)
    assert sorted(set(checked)) == [0, 1]
    assert loop.binding.next.iteration == 2


@given(iterations=st.integers(1, 4), micro_batches=st.integers(1, 3), read=st.integers(1, 20), data=st.data())
def test_a_batch_begins_in_its_order_and_again_until_its_iteration_is_trained(
    iterations: int, micro_batches: int, read: int, data: st.DataObject
) -> None:
    """A loop reads several epochs at once, and marks any of its batches."""
    loop = Loop(iterations, micro_batches)
    binding, turns = loop.binding, list(islice(loop.cycle(), read))
    open_ones, waiting, epoch = set[int](), list(range(read)), -1
    for _ in range(30):
        at = data.draw(st.integers(0, read - 1))
        turn = turns[at]
        dropped = waiting[: waiting.index(at)] if at in waiting else []
        # Batches may be left out only if the loop leaves their epoch, of which it has begun a part.
        leaves = all(turns[one].step.epoch == epoch < turn.step.epoch for one in dropped)
        if not (at in open_ones or (at in waiting and leaves)):
            before = binding.saves()
            with pytest.raises(EvenstepError):
                binding.mark(turn)
            assert binding.saves() == before
            continue
        assert binding.mark(turn) is turn
        for _ in range(data.draw(st.integers(0, 2))):
            binding.forward()
            assert binding.backward() is turn
            binding.complete()
        binding.leave()
        waiting = [one for one in waiting if one not in {*dropped, at}]
        open_ones.add(at)
        epoch = turn.step.epoch
        if turn.is_last:
            open_ones = {one for one in open_ones if one > at}
            assert binding.trained.iteration == turn.step.iteration + 1
