"""The job that balances a script: its DataLoader is read through evenstep's loader, and its model is wrapped."""

from collections.abc import Collection, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep._native import apportion
from evenstep.errors import EvenstepError, SettingError, UnsupportedError
from evenstep.exchange.given_plans import even_plan
from evenstep.job.init import init
from evenstep.run.loader import WEIGHTLESS_SAMPLES, Loader
from evenstep.run_command import reductions, stock
from evenstep.run_command.options import Options
from evenstep.samples.progress import Progress

#: Number of iterations with shares in which labels and factors on a GPU are read, which waits for it.
_CHECKED = 8

#: The advice for a script that cannot be balanced, as its later iterations show.
ADVICE = "run the script with `evenstep run --watch`, or without evenstep"


class Balance:
    """Balances one model and one kind of DataLoader."""

    def __init__(
        self,
        options: Options,
        model: DistributedDataParallel,
        loader: Any,
        source: "stock.Sampled | stock.Sharded",
        *,
        position: int,
        terms: list[reductions.Term],
    ) -> None:
        """Opens the job, together with all ranks.

        Args:
            options: the options of the command.
            model: the script's model.
            loader: its DataLoader.
            source: the samples of the epoch that the script reads.
            terms: the terms of the loss with the script's own batches.
            position: the iteration of the epoch with which shares may begin.

        Raises:
            EvenstepError: the job cannot begin.
        """
        self.ranks, self._shape = source.ranks, source.shape
        whole = source.batch_size * source.ranks
        plan = list(apportion(whole, options.plan, 1)) if options.plan else None
        cap = options.max_batch[dist.get_rank()] if options.max_batch else None
        self.job = init(plan=plan, max_local_batch=cap)
        # A sum over ranks that is divided by the items of all needs no weights, but its items count on each rank.
        is_sum = any(reductions.ITEMS in term for term in terms)
        if is_sum and plan and 0 in plan:
            raise SettingError(f"--plan gives rank {plan.index(0)} none of {whole} samples: give it more")
        loss: Literal["scaled", "mean"] = "scaled" if is_sum else "mean"
        gradients = self.job._gradients  # noqa: SLF001  # Both classes are evenstep's own.
        gradients.needs |= gradients._needs_of(None, model, loss)  # noqa: SLF001
        #: The source of an epoch that begins, and the order of the newest one.
        self._source: Any = None
        self._order = source.running()
        self._of = loader
        try:
            self._loader = self.job.loader(
                loader.dataset,
                global_batch=whole,
                order=lambda _: self._ordered(),
                drop_last=source.drop_last,
                **stock.settings(loader),
            )
            run = self.run = self.job._life.run  # noqa: SLF001  # Both classes are evenstep's own.
            if position:
                run.binding.starts_at(Progress(0, 0, position, position * whole))
            run.start()
            # Last, because the script continues without a job that cannot begin, but with the hooks of its model.
            self.job.wrap(model, loss=loss)
        except EvenstepError:
            self.job.close()
            raise
        self._checked = 0
        self._terms = terms

    def _ordered(self) -> Any:
        """Returns the order of the epoch, which is drawn once, when the script's own loader would draw it."""
        if self._source is not None:
            self._order, self._source = self._source.begins(), None
        return self._order

    def keep_even(self, iterations: int) -> None:
        """Keeps even shares in the first iterations, whose batches the loop has read already."""
        if not iterations:
            return
        run = self.run
        plans, even = run.plans, even_plan(None, run.order, [None] * self.ranks, run.quantum)
        run.plans = lambda iteration: even if iteration < iterations else plans(iteration)

    def reads(self, loader: Any) -> bool:
        """Returns whether batches of a DataLoader can be sized: it reads the same samples as the first one."""
        return stock.source(loader).shape == self._shape

    def epoch(self, loader: Any) -> Iterator[Any]:
        """Begins to read another epoch."""
        self._source = stock.source(loader)
        if loader is not self._of:
            # Scripts may make a new DataLoader for each epoch.
            self._loader, self._of = Loader(self.run, loader.dataset, stock.settings(loader)), loader
        return iter(self._loader)

    def rest(self) -> Iterator[Any]:
        """Reads the rest of the epoch that the script has begun, with the random numbers of the unchanged script."""
        loader, own = self._loader, self._loader.generator
        # The script's own iterator has drawn its seed.
        loader.generator = torch.Generator().manual_seed(torch.initial_seed() + 1)
        for batch in loader:
            loader.generator = own
            yield batch
        loader.generator = own

    def local(self) -> int:
        """Returns the number of samples in the batch that was read last."""
        return self._loader.latest.local_batch

    def check(self, loss: Any, outputs: Collection[Any]) -> None:
        """Checks that the loss has the same terms as with the script's own batches.

        Raises:
            UnsupportedError: it depends on the number of samples, or it is unknown whether it does.
        """
        turn = self.run.binding.computing
        if turn is None:
            return
        samples = turn.samples or min(WEIGHTLESS_SAMPLES, turn.step.global_batch)
        waits, self._checked = self._checked < _CHECKED, self._checked + 1
        try:
            found = reductions.terms(loss, samples, items=reductions.items_over_ranks(), outputs=outputs, waits=waits)
            why = "" if reductions.same(found, self._terms) else "another loss than with the script's own batches"
        except reductions.UnknownLossError as error:
            why = str(error)
        if why:
            raise UnsupportedError(
                f"iteration {turn.step.iteration} with {samples} samples: {why}; so its gradient may be wrong with "
                f"uneven batches: {ADVICE}"
            )


def same_values(inputs: Any, batch: Any) -> bool:
    """Returns whether an input of a model is a part of a batch, as tensors of any device."""
    given = [at.detach().cpu() for at in tensors(batch)]
    return any(
        at.shape == other.shape and at.dtype == other.dtype and torch.equal(at.detach().cpu(), other)
        for at in tensors(inputs)
        for other in given
    )


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
