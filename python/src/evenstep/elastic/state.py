"""The state that all members of an elastic job share, and how they come to it in each generation."""

import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from evenstep.elastic.members import Membership
from evenstep.elastic.plans import Plans, Source, first_plan
from evenstep.elastic.sums import Sums
from evenstep.errors import DivergedError, SettingError
from evenstep.measure.device import current_device
from evenstep.run.step import Step
from evenstep.samples import shares
from evenstep.samples.epoch import Epoch, Place
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress
from evenstep.settings import job_id
from evenstep.settings.options import RunOptions


@dataclass(slots=True)
class Shared:
    """One member's copy of the state of the job."""

    options: RunOptions
    sums: Sums
    #: The id of the job at the predictor; None before the first generation.
    job: str | None
    #: The samples; None before there is a loader.
    given_order: Order | None = None
    #: The optimizers, schedulers and other objects of the script.
    objects: list[Any] = field(default_factory=list)
    #: The position after the last complete iteration, and whether this process has the state of the job there.
    progress: Progress = field(default_factory=Progress)
    has_state: bool = False
    plans: Plans = field(default_factory=lambda: Plans([(0, [1])]))
    #: The source of plans, on rank 0 only.
    source: Source | None = None
    #: The names of the members by number, and of earlier members.
    names: dict[int, str] = field(default_factory=dict)
    former: set[str] = field(default_factory=set)
    #: The last share of this worker.
    last_batch: int | None = None
    #: The number of iterations that a DataLoader draws ahead.
    ahead: int = 0

    @property
    def order(self) -> Order:
        """The samples of the job.

        Raises:
            SettingError: there is no loader.
        """
        if self.given_order is None:
            raise SettingError("the job has no samples: call job.loader first")
        return self.given_order

    def places(self) -> Iterator[tuple[Step, list[int]]]:
        """Yields the remaining iterations of the epoch for this worker, with the samples that it reads."""
        order, epoch = self.order, Epoch(self.order, self.progress.epoch)
        for place in epoch.places(self.progress):
            plan = self.plans.at(place.iteration)
            plan = plan if plan.size == place.size else plan.resized(place.size, self.options.quantum)
            share = plan.shares[dist.get_rank()]
            indices = epoch.indices(place.begin, place.size)
            yield _step_of(place, share.offset, share.local_batch, order), indices

    def agree(self, membership: Membership) -> None:
        """Gives all members the state of the one that is furthest, and the plans of the new generation."""
        order, rank = self.order, dist.get_rank()
        own = {
            "iteration": self.progress.iteration,
            "has_state": self.has_state,
            "alike": [repr(order), self.options.quantum, self.options.epochs, self._shapes()],
            "batch": self.last_batch,
            "cap": self.options.cap,
            "worker": self.options.settings.worker,
            "device": str(current_device()),
            "job": self.job,
            "new_job": None if self.job else self._new_id(),
            "former": [*self.former, *self.names.values()],
        }
        everyone = self.sums.gather(own)
        # The checkpoint of a new member is older, or of another run.
        able = [at for at, one in enumerate(everyone) if one["has_state"]]
        source = max(able or range(len(everyone)), key=lambda at: int(everyone[at]["iteration"]))
        if own["alike"] != everyone[source]["alike"]:
            raise DivergedError(
                f"this worker has {own['alike']} but the job has {everyone[source]['alike']}: must be the same"
            )
        if len(able) < len(everyone) or len({one["iteration"] for one in everyone}) > 1:
            self._copy(source)
        self.has_state = True
        membership.has_begun()
        given = Counter(one["worker"] for one in everyone)
        # Without LOCAL_RANK, all processes of a node have the same name.
        names = {
            number: one["worker"] if given[one["worker"]] == 1 else f"{one['worker']}.{number}"
            for number, one in zip(membership.members, everyone, strict=True)
        }
        if self.source:
            self.source.close(None)
            self.source = None
        # A new member does not know the earlier ones.
        former = {name for one in everyone for name in one["former"]} | {*self.names.values()}
        self.former, self.names = former - {*names.values()}, names
        self.job = next((one["job"] for one in everyone if one["job"]), everyone[0]["new_job"])
        caps, first = [one["cap"] for one in everyone], self.progress.iteration
        even = first_plan(order, [one["batch"] for one in everyone], caps, self.options.quantum)
        planned: list[tuple[int, Sequence[int]]] = [(first, even)]
        if rank == 0:
            workers = [
                {"worker": name, "max_local_batch": one["cap"], "device": one["device"], "claims": False}
                for name, one in zip(names.values(), everyone, strict=True)
            ]
            self.source = Source(
                self.options, order, self.job, workers=workers, former=sorted(self.former), first=first
            )
        if self.options.fixed is not None:
            planned = self._given(first)
        self.plans = Plans(planned)

    def scheduled(self) -> str:
        """Returns the states of the schedulers, to compare."""
        schedulers = [each for each in self.objects if isinstance(each, torch.optim.lr_scheduler.LRScheduler)]
        return repr([each.state_dict() for each in schedulers])

    def fits(self, caps: Sequence[int | None]) -> bool:
        """Returns whether workers with these caps can compute the global batch."""
        try:
            shares.even(self.order.global_batch, caps, self.options.quantum)
        except SettingError:
            return False
        return True

    def end(self) -> int:
        """Returns the number of iterations of the training."""
        done, epochs = self.progress, self.options.epochs or 0
        return done.iteration + (epochs - done.epoch) * self.order.steps - done.position

    def _given(self, first: int) -> list[tuple[int, Sequence[int]]]:
        """Returns the plans of the script's function on rank 0, which may differ on others."""
        told: Any = None
        if self.source:
            try:
                until = max(first + 1, min(first + self.ahead + 1, self.end()))
                told = [(at, self.source.given(at)) for at in range(first, until)]
            except Exception as error:  # noqa: BLE001  # The script's own; all members end with it.
                told = str(error) if isinstance(error, SettingError) else f"plan= failed: {error!r}"
        told = self.sums.tell(told, 0)
        if isinstance(told, str):
            raise SettingError(told)
        return list(told)

    def _copy(self, source: int) -> None:
        """Copies the state of a member to all. Nothing changes before all of it has arrived."""
        own, tensors, received = dist.get_rank() == source, self.sums.tensors(), []
        for tensor in tensors:
            # As bytes in the order of the shape: Gloo does not know all types, and knows no strides.
            if own:
                copy = tensor.contiguous().view(-1).view(torch.uint8)
            else:
                copy = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8, device=tensor.device)
                received.append(copy)
            self.sums.send(copy, source)
        told: Any = None
        if own:
            progress = self.progress
            told = (
                [each.state_dict() for each in self.objects],
                (progress.iteration, progress.epoch, progress.position, progress.sample),
            )
        states, progress_of = self.sums.tell(told, source)
        if not own:
            for tensor, copy in zip(tensors, received, strict=True):
                tensor.copy_(copy.view(tensor.dtype).view(tensor.shape))
            for each, state in zip(self.objects, states, strict=True):
                each.load_state_dict(state)
            self.progress = Progress(*progress_of)

    def _shapes(self) -> list[Any]:
        return [(tuple(tensor.shape), str(tensor.dtype)) for tensor in self.sums.tensors()]

    def _new_id(self) -> str:
        script = sys.argv[0] if sys.argv else ""
        return f"{job_id.automatic(os.environ, script, os.getpid(), os.getppid())}-{secrets.token_hex(3)}"


def after(step: Step) -> Progress:
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
