"""A job whose workers come and go without a restart. Experimental."""

import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from evenstep.elastic import keeper, reconfigure
from evenstep.elastic.loader import ElasticLoader
from evenstep.elastic.members import LeftOutError, Limits, Membership
from evenstep.elastic.plans import Plans, Source, first_plan
from evenstep.elastic.sums import Said, Sums
from evenstep.errors import DivergedError, EvenstepError, SettingError, UnsupportedError
from evenstep.exchange.report import Report
from evenstep.measure.device import current_device
from evenstep.measure.moment import timer_of
from evenstep.run.loader import check
from evenstep.run.losses import Loss
from evenstep.run.step import Step
from evenstep.samples.epoch import Epoch, Place
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress, resumed, state_of
from evenstep.settings import job_id
from evenstep.settings.options import RunOptions
from evenstep.start.group import select_interface

log = logging.getLogger("evenstep")

_Model = TypeVar("_Model", bound=torch.nn.Module)

#: Time that the end of a job waits for the predictor, in seconds.
_CLOSE_S = 5.0

#: Signals by which launchers and clouds announce that a process will end.
_NOTICES = (signal.SIGTERM, signal.SIGUSR1)


class ElasticJob:
    """The part of an elastic training job that runs in this process. Create it with ``evenstep.init(elastic=True)``."""

    def __init__(self, options: RunOptions, limits: Limits) -> None:
        """Checks what an elastic job supports; nothing is connected before the first batch.

        Raises:
            UnsupportedError: this PyTorch, the launcher or an option does not allow workers to come and go.
            SettingError: the number of epochs or the place of the store is missing.
        """
        if reason := reconfigure.supported():
            raise UnsupportedError(
                f"init(elastic=True): {reason}; use PyTorch 2.15 or newer, or a restart by torchrun "
                "(docs/how-to/elastic.md)"
            )
        if "TORCHELASTIC_RUN_ID" in os.environ and options.settings.world_size > 1:
            raise UnsupportedError(
                f"init(elastic=True): torchrun started {options.settings.world_size} processes, and ends all of them "
                "if one fails; start one launcher for each worker (docs/how-to/elastic.md)"
            )
        for name, given in {"mesh": options.mesh, "a list as plan": not callable(options.fixed) and options.fixed}.items():
            if given:
                raise UnsupportedError(f"init(elastic=True) with {name}: it has a fixed number of workers; remove it")
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
        self._order: Order | None = None
        self._members: Membership | None = None
        self._life: Any = None
        self._sums = Sums(self._say, self._is_seen, limits.hang_s)
        self._state: list[Any] = []
        self._steps_of: dict[torch.optim.Optimizer, int] = {}
        #: The position after the last iteration that is complete, and whether this process has the state of the job.
        self.progress = Progress()
        self._has_state = False
        self._plans = Plans([(0, [1])])
        self._source: Source | None = None
        self._names: dict[int, str] = {}
        self._former: set[str] = set()
        self._job = options.settings.job
        self._last_batch: int | None = None
        self._ahead = 0
        self._begun: Any = None
        self._step: Step | None = None
        self._noticed_s: float | None = None
        self._leaves = False
        self._handlers: dict[int, Any] = {}
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
        if self._order is not None:
            raise SettingError("job.loader was called twice: an elastic job has one loader, for all epochs")
        order = Order(len(dataset), global_batch, seed, shuffle, drop_last)
        self._order = order
        loader = ElasticLoader(self, dataset, dataloader_kwargs)
        self._ahead = loader.ahead
        if self._state_given:
            self.progress, _, _ = resumed(self._state_given, order)
            self._job, self._has_state = self._state_given.get("job", self._job), True
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
            UnsupportedError: the model cannot be trained by workers that come and go.
        """
        if self._members:
            raise SettingError("job.wrap after the first batch: wrap all models before the loop")
        optimizers = [each for each in state if isinstance(each, torch.optim.Optimizer)]
        if not optimizers or not all(hasattr(each, "load_state_dict") for each in state):
            raise SettingError(
                f"wrap(state={[type(each).__name__ for each in state]}): must have the optimizer of the model, and only "
                "objects with state_dict and load_state_dict"
            )
        self._sums.wrap(model, loss)
        for optimizer in optimizers:
            if optimizer not in self._steps_of:
                optimizer.register_step_pre_hook(self._step_begins)
                optimizer.register_step_post_hook(self._step_ends)
                self._steps_of[optimizer] = 0
        self._state += [each for each in state if not any(each is other for other in self._state)]
        return model

    @contextmanager
    def step(self) -> Iterator[Step]:
        """Marks an iteration: one backward pass, then one step of each optimizer.

        If a worker is lost, the block ends before the steps of the optimizers and schedulers, and the loader yields the
        samples of the iteration again, in new shares.

        Raises:
            SettingError: no batch was read.
            UnsupportedError: the block has no backward pass, or not one step of each optimizer.
            SystemExit: this worker got a notice and has left.
        """
        if not self.waiting:
            raise SettingError("step(): every batch read so far has begun: read the next one from job.loader first")
        step = self._step = self.waiting.popleft()
        self._steps_of = dict.fromkeys(self._steps_of, 0)
        self._sums.begin(step)
        self._begun = timer_of(current_device()).now()
        try:
            yield step
        except BaseException:
            if self._sums.failure is None:
                raise
            log.warning("%s", self._sums.failure)
        else:
            self._complete(step)
            return
        finally:
            self._step = None
        self._noticed_s = self._noticed_s or time.monotonic()
        self._sums.undo()
        self._regroup()

    def leave(self) -> None:
        """Ends this worker after the current iteration, as SIGTERM and SIGUSR1 do."""
        self._leaves = True

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress, the same on all workers, to save with model and optimizer."""
        order = self._known_order()
        plan = self._plans.at(max(0, self.progress.iteration - 1))
        return state_of(self.progress, order, plan, 0.0, self._job)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the progress of a checkpoint; call it before :meth:`loader`.

        Raises:
            SettingError: the loader exists.
        """
        if self._order is not None:
            raise SettingError("load_state_dict after job.loader: load the checkpoint before, with init(elastic=True)")
        self._state_given = dict(state)

    def close(self) -> None:
        """Ends this worker's part of the job. The process group stays."""
        if self._closed:
            return
        self._closed = True
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._source:
            self._source.close(_CLOSE_S)
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
        for number in _NOTICES:
            with contextlib.suppress(ValueError):  # Another thread than the main one.
                self._handlers[number] = signal.signal(number, lambda *_: self.leave())
        store = keeper.reach(self._host, self._port)
        self._members = Membership(store, self._limits, self._check_notice)
        self._enter()
        reconfigure.open_group(store, self._members.number, self._limits.hang_s)
        self._share(self._form)

    def places(self) -> Iterator[tuple[Step, list[int]]]:
        """Yields the remaining iterations of the epoch for this worker, with the samples that it reads."""
        order, epoch = self._known_order(), Epoch(self._known_order(), self.progress.epoch)
        for place in epoch.places(self.progress):
            plan = self._plans.at(place.iteration)
            plan = plan if plan.size == place.size else plan.resized(place.size, self._options.quantum)
            share = plan.shares[dist.get_rank()]
            indices = epoch.indices(place.begin, place.size)
            yield _step_of(place, share.offset, share.local_batch, order), indices

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
        plan, has_new = None, False
        if self._source:
            plan, has_new = self._source.take(step.iteration + self._ahead + 1), members.has_new()
        return Said(self._leaves, has_new, row, plan or ())

    def _is_seen(self) -> bool:
        return bool(self._members and self._members.store.check([self._members.seen]))

    def _complete(self, step: Step) -> None:
        """Ends an iteration whose sums are complete."""
        heard = self._sums.heard
        if heard is None:
            raise UnsupportedError("`with job.step()` without a backward pass of the wrapped model: must have one")
        if wrong := {count for count in self._steps_of.values() if count != 1}:
            raise UnsupportedError(
                f"`with job.step()` with {max(wrong)} steps of an optimizer: must have one of each in job.wrap(state=..)"
            )
        self._sums.end()
        self.progress = _after(step)
        self._has_state, self._last_batch = True, step.local_batch
        if self._noticed_s is not None:
            log.info(
                "iteration %s: %s workers, %.1f ms after the failure was seen",
                step.iteration,
                dist.get_world_size(),
                1e3 * (time.monotonic() - self._noticed_s),
            )
            self._noticed_s = None
        if self._source:
            self._source.learn(step.iteration, heard.rows, step.iteration + self._ahead + 2)
        if heard.plan:
            self._plans.add(step.iteration + self._ahead + 1, heard.plan, step.iteration)
        if dist.get_rank() in heard.leaving:
            self._go()
        if (heard.leaving or heard.has_new) and not self.is_over:
            self._regroup()

    def _go(self) -> None:
        """Leaves the job and ends the process."""
        if self._members:
            self._members.leave()
        if self._source:
            self._source.close(None)
            self._source = None
        self.close()
        log.info("this worker leaves after iteration %s", self.progress.iteration - 1)
        sys.exit(0)

    def _check_notice(self) -> None:
        """Ends a wait in which nobody computes."""
        if self._leaves:
            self._go()

    # A new generation.

    def _enter(self) -> None:
        members = self._joined()
        number = members.take_number()
        if self._life:
            self._life.close()
        self._life = keeper.live(members.store, self._host, str(number))
        members.enter(self._options.settings.rank)

    def _joined(self) -> Membership:
        if self._members is None:
            raise SettingError("the job has not begun: read the first batch from job.loader")
        return self._members

    def _form(self) -> None:
        self._joined().form()

    def _regroup(self) -> None:
        """Goes on with the members of the next generation."""
        members = self._joined()

        def again() -> None:
            reconfigure.drop(members.generation + 1, members.number)
            try:
                members.next_generation(self._sums.begun_s)
            except LeftOutError as error:
                log.warning("%s; it joins again", error)
                self._has_state = False
                self._enter()
            members.form()

        self._share(again)

    def _share(self, form: Callable[[], None]) -> None:
        """Forms a generation and gives all of its members one state, again if another member is lost meanwhile.

        Raises:
            EvenstepError: the store of the job has ended.
        """
        while True:
            try:
                form()
                self._agree()
            except EvenstepError:
                raise
            except RuntimeError as error:
                try:
                    self._joined().store.check(["any"])
                except RuntimeError:
                    raise EvenstepError(
                        f"the store of the elastic job at {self._host}:{self._port} has ended: its host is lost, or "
                        f"all other workers ended: {error}"
                    ) from error
                log.warning("generation %s could not be formed: %s", self.generation, error)
                self._regroup()
                return
            else:
                return

    def _agree(self) -> None:
        """Gives all members the state of the one that is furthest, and the plans of the new generation."""
        order, rank = self._known_order(), dist.get_rank()
        own = {
            "iteration": self.progress.iteration if self._has_state else -1,
            "alike": [repr(order), self._options.quantum, self._options.epochs, self._shapes()],
            "batch": self._last_batch,
            "cap": self._options.cap,
            "worker": self._options.settings.worker,
            "device": str(current_device()),
        }
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        iterations = [one["iteration"] for one in everyone]
        source = iterations.index(max(iterations))
        if own["alike"] != everyone[source]["alike"]:
            raise DivergedError(
                f"this worker has {own['alike']} but the job has {everyone[source]['alike']}: must be the same"
            )
        if min(iterations) < 0 or len(set(iterations)) > 1:
            self._copy(source, order)
        given = Counter(one["worker"] for one in everyone)
        # Without LOCAL_RANK, all processes of a node have the same name.
        names = {
            number: one["worker"] if given[one["worker"]] == 1 else f"{one['worker']}.{number}"
            for number, one in zip(self._joined().members, everyone, strict=True)
        }
        plans: list[Any] = [None, None]
        if self._source:
            self._source.close(None)
            self._source = None
        self._former = (self._former | {*self._names.values()}) - {*names.values()}
        self._names = names
        caps = [one["cap"] for one in everyone]
        first = self.progress.iteration
        if rank == 0:
            workers = [
                {"worker": name, "max_local_batch": one["cap"], "device": one["device"], "claims": False}
                for name, one in zip(names.values(), everyone, strict=True)
            ]
            self._job = self._job or self._new_id()
            self._source = Source(self._options, order, self._job, workers, sorted(self._former), first)
            try:
                of_script = [(at, self._source.given(at)) for at in range(first, first + self._ahead + 1)]
                batches = [one["batch"] for one in everyone]
                even = first_plan(order, batches, caps, self._options.quantum)
                plans = [[(at, own_batches or even) for at, own_batches in of_script], (self._job, sorted(self._former))]
            except EvenstepError as error:
                plans = [str(error), None]
        dist.broadcast_object_list(plans, src=0)
        if isinstance(plans[0], str):
            raise SettingError(plans[0])
        self._plans, (self._job, former) = Plans(plans[0]), plans[1]
        self._former |= {*former}
        self.waiting.clear()
        if rank == 0:
            log.info("generation %s: %s workers from iteration %s on", self.generation, len(everyone), first)

    def _copy(self, source: int, order: Order) -> None:
        """Copies the state of a member to all. Nothing changes before all of it has arrived."""
        own, tensors = dist.get_rank() == source, self._sums.tensors()
        received = [tensor if own else torch.empty_like(tensor) for tensor in tensors]
        for tensor in received:
            dist.broadcast(tensor.contiguous() if own else tensor, source)
        told: list[Any] = [None]
        if own:
            progress = self.progress
            told[0] = (
                [each.state_dict() for each in self._state],
                (progress.iteration, progress.epoch, progress.position, progress.sample),
                self._last_batch,
            )
        dist.broadcast_object_list(told, src=source)
        if not own:
            states, progress_of, _ = told[0]
            for tensor, copy in zip(tensors, received, strict=True):
                tensor.copy_(copy)
            for each, state in zip(self._state, states, strict=True):
                each.load_state_dict(state)
            self.progress = Progress(*progress_of)
        self._has_state = True

    def _shapes(self) -> list[Any]:
        return [(tuple(tensor.shape), str(tensor.dtype)) for tensor in self._sums.tensors()]

    def _new_id(self) -> str:
        script = sys.argv[0] if sys.argv else ""
        return f"{job_id.automatic(os.environ, script, os.getpid(), os.getppid())}-{secrets.token_hex(3)}"

    def _known_order(self) -> Order:
        if self._order is None:
            raise SettingError("the job has no samples: call job.loader first")
        return self._order


def _after(step: Step) -> Progress:
    """Returns the position after an iteration."""
    if step.is_last:
        return Progress(step.iteration + 1, step.epoch + 1)
    return Progress(step.iteration + 1, step.epoch, step.position + 1, step.begin + step.global_batch)


def _step_of(place: Place, offset: int, local_batch: int, order: Order) -> Step:
    return Step(
        iteration=place.iteration,
        epoch=place.epoch,
        position=place.position,
        global_batch=place.size,
        offset=offset,
        local_batch=local_batch,
        micro_batches=order.accumulate,
        lr_multiplier=1.0,
        begin=place.begin,
        is_last=place.is_last,
    )
