"""A job whose workers join and leave, with no restart. Experimental."""

import atexit
import logging
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from evenstep.elastic import keeper, reconfigure
from evenstep.elastic.loader import ElasticLoader
from evenstep.elastic.members import LeftOutError, Limits, Membership
from evenstep.elastic.notices import Notices
from evenstep.elastic.state import Shared, after
from evenstep.elastic.sums import Said, Sums
from evenstep.errors import EvenstepError, SettingError, UnsupportedError
from evenstep.exchange.report import Report
from evenstep.measure.device import current_device
from evenstep.measure.moment import timer_of
from evenstep.run.loader import check
from evenstep.run.step import Step
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress, resumed, state_of
from evenstep.settings.options import RunOptions
from evenstep.start.group import select_interface

log = logging.getLogger("evenstep")

_Model = TypeVar("_Model", bound=torch.nn.Module)

#: Time that the end of a job waits for the predictor, in seconds.
_CLOSE_S = 5.0

#: Number of failures with the same members, and of failed tries of this worker to become one, before an error.
_FAILURES_MAX = 5


class ElasticJob:
    """The part of an elastic training job that runs in this process. Create it with ``evenstep.init(elastic=True)``."""

    def __init__(self, options: RunOptions, limits: Limits) -> None:
        """Checks what an elastic job supports; nothing is connected before the first batch.

        Raises:
            UnsupportedError: this PyTorch, the launcher or an option does not allow workers to join and leave.
            SettingError: the number of epochs or the place of the store is missing.
        """
        if reason := reconfigure.supported():
            raise UnsupportedError(
                f"init(elastic=True): {reason}; use PyTorch 2.15 or newer, or a restart by torchrun "
                "(docs/how-to/elastic.md)"
            )
        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise UnsupportedError(
                "init(elastic=True): torchrun ends all processes of a node if one fails, and gives each node another "
                "MASTER_PORT; start each worker without torchrun (docs/how-to/elastic.md)"
            )
        if options.fixed is not None and not callable(options.fixed):
            raise UnsupportedError(
                f"init(elastic=True) with plan={options.fixed}: the number of workers changes; pass a function, or none"
            )
        if options.epochs is None:
            raise SettingError(
                "init(elastic=True) without epochs: a worker that joins must know when the training ends; pass the "
                "number of epochs that the script trains"
            )
        if dist.is_initialized():
            raise SettingError("init(elastic=True) makes the process group itself: do not call init_process_group")
        self._options, self._limits = options, limits
        self._host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        try:
            self._port = int(os.environ["MASTER_PORT"])
        except (KeyError, ValueError):
            raise SettingError(
                f"MASTER_PORT={os.environ.get('MASTER_PORT')!r} with init(elastic=True): must be a free port of the "
                "host MASTER_ADDR, the same for all workers"
            ) from None
        #: The state of a checkpoint.
        self._state_given: dict[str, Any] | None = None
        self._members: Membership | None = None
        self._life: Any = None
        self._sums = Sums(self._say, self._is_seen, limits.hang_s)
        self._shared = Shared(options, self._sums, options.settings.job)
        self._steps_of: dict[torch.optim.Optimizer, int] = {}
        self._begun: Any = None
        self._step: Step | None = None
        self._noticed_s: float | None = None
        self._notices = Notices()
        #: The members that have failed, and how often in a row; the number of failed tries of this one.
        self._failed: tuple[list[int], int] = ([], 0)
        self._tries = 0
        #: The states of the schedulers after the last iteration.
        self._schedules = ""
        self._closed = False
        #: The batches that were read and did not begin.
        self.waiting: deque[Step] = deque()
        self._loader_wait_s = 0.0

    def __enter__(self) -> "ElasticJob":  # noqa: PYI034  # Self is newer than Python 3.10.
        """Returns the job."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the job, also after an error."""
        self.close()

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **dataloader_kwargs: Any,
    ) -> ElasticLoader:
        """Returns an iterable of this worker's batches, as :meth:`evenstep.Job.loader`.

        Each iterator yields the rest of an epoch. If a worker is lost, the samples of the iteration follow again, in
        new shares. A worker that joins gets batches from its first iteration on, and none after the last epoch.

        Args:
            dataset: a map-style data set, with a length and random access.
            global_batch: number of samples per iteration over all workers.
            shuffle: use a new seeded permutation for each epoch; otherwise keep the order of the data set.
            seed: seed of the permutations.
            drop_last: skip the last iteration of an epoch if it has fewer samples.
            **dataloader_kwargs: passed to PyTorch's DataLoader.

        Raises:
            SettingError: an argument breaks its rule, or the job has another loader.
        """
        check(dataset, dataloader_kwargs)
        if self._shared.given_order is not None:
            raise SettingError("job.loader was called twice: an elastic job has one loader, for all epochs")
        order = Order(len(dataset), global_batch, seed, shuffle, drop_last)
        self._shared.given_order = order
        loader = ElasticLoader(self, dataset, dataloader_kwargs)
        self._shared.ahead = loader.ahead
        if self._state_given:
            self._shared.progress, _, _ = resumed(self._state_given, order)
            self._shared.job = self._state_given.get("job", self._shared.job)
        return loader

    def wrap(self, model: _Model, *, state: Sequence[Any], loss: Literal["mean", "sum"] = "mean") -> _Model:
        """Sums the gradients of a model over the workers.

        Args:
            model: the module itself, without DistributedDataParallel and batch norm.
            state: its optimizer, learning-rate schedulers, and other objects with ``state_dict`` and
                ``load_state_dict``. A worker that joins gets their states, and the parameters and buffers.
            loss: ``"mean"`` or ``"sum"``, as in :meth:`evenstep.Job.wrap`.

        Raises:
            SettingError: ``state`` has no optimizer, or the training has begun.
            UnsupportedError: the model cannot be trained by workers that join and leave.
        """
        if self._members:
            raise SettingError("job.wrap after the first batch: wrap all models before the loop")
        optimizers = [each for each in state if isinstance(each, torch.optim.Optimizer)]
        if not optimizers or not all(hasattr(each, "load_state_dict") for each in state):
            raise SettingError(
                f"wrap(state={[type(each).__name__ for each in state]}): must have the optimizer of the model, and "
                "only objects with state_dict and load_state_dict"
            )
        self._sums.wrap(model, loss)
        for optimizer in optimizers:
            if optimizer not in self._steps_of:
                optimizer.register_step_pre_hook(self._step_begins)
                optimizer.register_step_post_hook(self._step_ends)
                self._steps_of[optimizer] = 0
        self._shared.objects += [each for each in state if not any(each is other for other in self._shared.objects)]
        return model

    @contextmanager
    def step(self) -> Iterator[Step]:
        """Marks an iteration: one backward pass, then one step of each optimizer.

        If a worker is lost, the block ends before the steps of the optimizers and schedulers, and the loader yields the
        samples of the iteration again, in new shares.

        Raises:
            SettingError: no batch was read.
            UnsupportedError: the block has no backward pass, or not one step of each optimizer, or a scheduler of
                ``state=`` stepped outside of a block.
            EvenstepError: the store of the job has ended.
            SystemExit: this worker got a notice and has left.
        """
        if not self.waiting:
            raise SettingError("step(): every batch read so far has begun: read the next one from job.loader first")
        with self._reaches_store():
            self._check_schedules()
            yield from self._iteration()

    def _iteration(self) -> Iterator[Step]:
        step = self._step = self.waiting.popleft()
        self._steps_of = dict.fromkeys(self._steps_of, 0)
        self._sums.begin(step)
        self._begun = timer_of(current_device()).now()
        try:
            yield step
        except BaseException:
            if self._sums.failure is None:
                self._sums.end()
                raise
            log.warning("%s", self._sums.failure)
        else:
            self._complete(step)
            return
        finally:
            self._step = None
        self._noticed_s = self._noticed_s or time.monotonic()
        # The error itself would keep this frame, and with it the failed collective, which blocks the new group.
        failure = str(self._sums.failure)
        self._sums.undo()
        self._check_schedules()
        self._count(failure)
        self._regroup()

    def leave(self) -> None:
        """Ends this worker after the current iteration, as SIGTERM and SIGUSR1 do."""
        self._notices.is_given = True

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress, the same on all workers, to save with model and optimizer."""
        order = self._shared.order
        plan = self._shared.plans.at(max(0, self._shared.progress.iteration - 1))
        return state_of(self._shared.progress, order, plan, 0.0, self._shared.job)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the progress of a checkpoint; call it before :meth:`loader`.

        Raises:
            SettingError: the loader exists.
        """
        if self._shared.given_order is not None:
            raise SettingError("load_state_dict after job.loader: load the checkpoint before, with init(elastic=True)")
        self._state_given = dict(state)

    def close(self) -> None:
        """Ends this worker's part of the job. The process group stays."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._notices.ignore()
        if self._shared.source:
            self._shared.source.close(_CLOSE_S)
        if self._life:
            self._life.close()

    @property
    def generation(self) -> int:
        """The number of times that the set of workers has changed."""
        return self._members.generation if self._members else 0

    # The loader's side.

    def join(self) -> None:
        """Becomes a member before the first batch; later calls do nothing.

        Raises:
            SettingError: no model was wrapped.
        """
        if self._closed:
            raise SettingError("the job was closed: create a new one with evenstep.init(elastic=True)")
        if self._members:
            return
        if not self._steps_of:
            raise SettingError("no model: call job.wrap(model, state=[optimizer]) before the loop")
        select_interface(os.environ)
        atexit.register(self.close)
        self._notices.catch()
        store = keeper.reach(self._host, self._port)
        self._members = Membership(store, self._limits, self._check_notice, self._shared.fits)
        with self._reaches_store():
            self._enter()
            reconfigure.open_group(store, self._members.number, self._limits.hang_s)
            self._share(self._form)

    @property
    def progress(self) -> Progress:
        """The position after the last complete iteration."""
        return self._shared.progress

    def places(self) -> Iterator[tuple[Step, list[int]]]:
        """Yields the remaining iterations of the epoch for this worker, with the samples that it reads."""
        return self._shared.places()

    @property
    def is_over(self) -> bool:
        """Whether all epochs are trained."""
        return self.progress.epoch >= (self._options.epochs or 0)

    def waited(self, seconds: float) -> None:
        """Records a wait for data."""
        self._loader_wait_s = seconds

    # An iteration.

    def _step_begins(self, *_: Any) -> None:
        if self._step and not self._sums.heard:
            raise UnsupportedError(
                "an optimizer stepped in `with job.step()` before the gradients of all workers were complete: compute "
                "one backward pass of the wrapped model before it"
            )

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._steps_of[optimizer] += 1

    def _say(self) -> Said:
        """Returns what the other members must know of this iteration."""
        step, members = self._step, self._members
        if step is None or members is None:
            raise SettingError("no iteration has begun")
        timer = timer_of(current_device())
        compute_s = timer.between(self._begun, timer.now())
        row = Report(step.iteration, step.local_batch, compute_s, self._loader_wait_s).to_row()
        plan, has_new, then = None, False, step.iteration + self._shared.ahead + 1
        if self._shared.source:
            has_new = members.has_new()
            try:
                plan = self._shared.source.take(then) if then < self._shared.end() else None
            except Exception as error:
                members.fail(f"plan= failed: {error!r}")
                raise
        return Said(self._notices.is_given, has_new, row, plan or ())

    def _is_seen(self) -> bool:
        return bool(self._members and self._members.has_failed())

    def _complete(self, step: Step) -> None:
        """Ends an iteration whose sums are complete."""
        heard = self._sums.heard
        if heard is None:
            raise UnsupportedError("`with job.step()` without a backward pass of the wrapped model: must have one")
        # A GradScaler leaves out a step on all members alike, because it sees the sums.
        allowed = {0, 1} if any(isinstance(each, torch.amp.GradScaler) for each in self._shared.objects) else {1}
        if wrong := {*self._steps_of.values()} - allowed:
            raise UnsupportedError(
                f"`with job.step()` with {max(wrong)} steps of an optimizer: must have one of each optimizer in "
                "job.wrap(state=..); also put a GradScaler there"
            )
        self._sums.end()
        self._shared.progress = after(step)
        self._shared.last_batch, self._failed = step.local_batch, ([], 0)
        self._schedules = self._shared.scheduled()
        if self._noticed_s is not None:
            log.info(
                "iteration %s: %s workers, %s ms after the failure was seen",
                step.iteration,
                dist.get_world_size(),
                round(1e3 * (time.monotonic() - self._noticed_s)),
            )
            self._noticed_s = None
        if self._shared.source:
            self._shared.source.learn(step.iteration, heard.rows, step.iteration + self._shared.ahead + 2)
        if heard.plan:
            self._shared.plans.add(step.iteration + self._shared.ahead + 1, heard.plan, step.iteration)
        if dist.get_rank() in heard.leaving:
            self._go()
        if self.is_over and self._members:
            # A member without the last sums need not wait for this one.
            self._members.finish()
            self._notices.ignore()
        elif heard.leaving or heard.has_new:
            self._regroup()

    def _go(self) -> None:
        """Leaves the job and ends the process."""
        if self._members:
            self._members.leave()
        if self._shared.source:
            self._shared.source.close(None)
            self._shared.source = None
        self.close()
        log.info("this worker leaves after iteration %s", self._shared.progress.iteration - 1)
        sys.exit(0)

    def _check_notice(self) -> None:
        """Ends a wait in which no member computes."""
        if self._notices.is_given:
            self._go()

    # A new generation.

    def _enter(self) -> None:
        members = self._joined()
        while True:
            number = members.take_number()
            former, self._life = self._life, keeper.live(members.store, self._host, str(number))
            if former:
                former.close()
            try:
                members.enter(self._options.settings.rank, self._options.cap)
            except LeftOutError as error:
                self._back_off(error)
            else:
                return

    def _back_off(self, error: LeftOutError) -> None:
        """Waits before this worker joins again: each try interrupts the others."""
        self._tries += 1
        if self._tries >= _FAILURES_MAX:
            raise EvenstepError(f"this worker could not join the job {self._tries} times in a row: {error}") from error
        log.warning("%s; it joins again", error)
        until = time.monotonic() + 0.1 * 3**self._tries * random.uniform(0.5, 1.5)  # noqa: S311
        while time.monotonic() < until:
            self._check_notice()
            time.sleep(0.02)

    def _joined(self) -> Membership:
        if self._members is None:
            raise SettingError("the job has not begun: read the first batch from job.loader")
        return self._members

    def _form(self) -> None:
        self._sums.begun_s = time.monotonic()
        self._joined().form()

    def _again(self) -> None:
        """Becomes a member of the next generation."""
        members = self._joined()
        reconfigure.drop(members.generation + 1, members.number)
        try:
            members.next_generation(self._sums.begun_s, has_state=self._shared.has_state)
        except LeftOutError as error:
            self._shared.has_state = False
            self._back_off(error)
            self._enter()
        self._form()

    def _regroup(self) -> None:
        """Continues with the members of the next generation."""
        self._share(self._again)

    def _share(self, form: Callable[[], None]) -> None:
        """Forms a generation and gives all of its members one state, again if another member is lost meanwhile.

        Raises:
            EvenstepError: the store of the job has ended, or the same members have failed too often.
        """
        while True:
            try:
                form()
                self._shared.agree(self._joined())
                break
            except EvenstepError:
                raise
            except RuntimeError as error:
                self._check_store(error)
                log.warning("generation %s could not be formed: %s", self.generation, error)
                self._count(str(error))
                form = self._again
        self._tries, self._schedules = 0, self._shared.scheduled()
        self.waiting.clear()
        if not dist.get_rank():
            count = dist.get_world_size()
            log.info("generation %s: %s workers from iteration %s on", self.generation, count, self.progress.iteration)

    def _count(self, failure: str) -> None:
        """Counts a failure, which may come from the script or the network and not from the end of a member."""
        members = self._joined().members
        before, count = self._failed
        self._failed = (members, count + 1 if before == members else 1)
        if self._failed[1] >= _FAILURES_MAX:
            raise EvenstepError(
                f"the same {len(members)} workers failed {_FAILURES_MAX} times in a row at iteration "
                f"{self.progress.iteration}: {failure}"
            )

    @contextmanager
    def _reaches_store(self) -> Iterator[None]:
        try:
            yield
        except EvenstepError:
            raise
        except RuntimeError as error:
            self._check_store(error)
            raise

    def _check_store(self, error: RuntimeError) -> None:
        keeper.check(self._joined().store, f"{self._host}:{self._port}", error)

    def _check_schedules(self) -> None:
        """Fails if a worker that has just joined, or lacks the last sums, would have another learning rate."""
        if self._shared.scheduled() != self._schedules:
            why = (
                "a scheduler of job.wrap(state=..) stepped outside of `with job.step()`, or before its optimizer: step "
                "it at the end of the block, for example with `if step.is_last: scheduler.step()` once per epoch"
            )
            self._joined().fail(why)
            raise UnsupportedError(why)
