"""The weights of gradients: scaled and summed losses train as in one process, and wrong weights are refused."""

import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

import evenstep
from evenstep.samples.order import Order
from ranks import run_ranks
from training import EPOCHS, PLANS, Samples, difference, loss_of, network, one_process, parameters, sgd

TOLERANCE = 1e-13

Parameters = list[list[float]]


def scaled_by_hand(_rank: int, plan: str) -> Parameters:
    """Scales the sum over the batch, from its mean, which is NaN on a rank without samples."""
    job = evenstep.init(plan=PLANS[plan])
    loader = job.loader(Samples())
    model = job.wrap(DistributedDataParallel(network()), loss="scaled")
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _index in loader:
            optimizer.zero_grad()
            (loss_of(model, x, y) * len(x) * dist.get_world_size() / loader.latest.global_batch).backward()
            optimizer.step()
    return parameters(model)


@pytest.mark.parametrize("plan", ["changing", "13/3/0"])
def test_a_scaled_loss_is_that_of_one_process(plan: str) -> None:
    reference = one_process()
    for trained in run_ranks(3, scaled_by_hand, plan):
        assert difference(trained, reference) <= TOLERANCE


def accumulated(_rank: int, loss: str, syncs_each: bool) -> Parameters:
    """Four backward passes in each iteration, with a loss that is not a mean over samples."""
    job = evenstep.init(plan=lambda iteration: [[8, 4, 4], [4, 12, 0], [0, 4, 12]][iteration % 3])
    loader = job.loader(Samples(208), accumulate=4)
    model = job.wrap(DistributedDataParallel(network()), loss=loss)  # type: ignore[arg-type]  # Any of the losses.
    optimizer = sgd(model)
    scale = 1.0 if loss == "sum" else dist.get_world_size() / 16
    for _ in range(EPOCHS):
        for count, (x, y, _) in enumerate(loader):
            is_last = count % 4 == 3
            with nullcontext() if is_last or syncs_each else model.no_sync():
                # The mean is over three outputs of each sample.
                (torch.nn.functional.mse_loss(model(x), y, reduction="sum") / 3 * scale).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return parameters(model)


@pytest.mark.parametrize("loss", ["sum", "scaled"])
def test_passes_are_added_in_any_way(loss: str) -> None:
    reference = one_process(order=Order(208, 16))
    for syncs_each in (True, False):
        for trained in run_ranks(3, accumulated, loss, syncs_each):
            assert difference(trained, reference) <= TOLERANCE


def tokens_in_evaluation_mode(_rank: int) -> list[str]:
    """Fine-tuning without dropout: the checks of gradients do not depend on the mode of the model."""
    told = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    for accumulate in (1, 2):
        job = evenstep.init(plan=[12, 4])
        model = job.wrap(DistributedDataParallel(network()), loss="tokens").eval()
        x, y, _ = next(iter(job.loader(Samples(32), accumulate=accumulate)))
        loss = partial(loss_of, model, x, y)
        with model.no_sync() if accumulate == 1 else nullcontext():
            refused(loss if accumulate == 1 else lambda loss=loss: loss().backward())  # type: ignore[misc]
        job.close()
    return told


def test_tokens_are_checked_in_evaluation_mode() -> None:
    for unsynced, twice in run_ranks(2, tokens_in_evaluation_mode):
        assert unsynced.startswith('no_sync with loss="tokens" would divide several iterations by the tokens of one')
        assert twice.startswith('loss="tokens" with several reductions in one iteration')


def wraps_two(_rank: int) -> tuple[str, list[bool]]:
    """Returns the error of hedged steps of two models, and whether models are freed at the end of their job."""

    def trained(ends: bool) -> "weakref.ref[Any]":
        job = evenstep.init(plan=[10, 6])
        model = job.wrap(DistributedDataParallel(network()))
        if ends:
            x, y, _ = next(iter(job.loader(Samples())))
            loss_of(model, x, y).backward()
            job.close()
        return weakref.ref(model.module)

    job = evenstep.init(plan=[10, 6])
    for _ in range(2):
        model = job.wrap(DistributedDataParallel(network()))
    with pytest.raises(evenstep.UnsupportedError) as error:
        next(iter(job.steps(Samples(), model=model)))
    models = [trained(ends) for ends in (True, False)]
    gc.collect()
    return str(error.value), [model() is None for model in models]


def test_a_job_hedges_one_model_and_frees_it() -> None:
    for told, freed in run_ranks(2, wraps_two):
        assert told.startswith("job.steps with 2 wrapped models: must be one")
        assert freed == [True, True]


def in_pairs(rank: int) -> list[str]:
    """Two groups of replicas, as on a mesh of two dimensions."""
    told = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(evenstep.UnsupportedError) as error:
            work()
        told.append(str(error.value))

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = DistributedDataParallel(network(), process_group=pairs[rank // 2])
    job = evenstep.init(plan=[5, 2, 8, 1])
    refused(lambda: job.wrap(model))
    refused(lambda: next(iter(job.steps(Samples(), model=model))))
    return told


def test_a_model_on_a_part_of_the_ranks_is_refused() -> None:
    for told in run_ranks(4, in_pairs):
        assert len(told) == 2
        for message in told:
            assert "process group has 2 of the 4 ranks: must have all of them" in message


def twice(_rank: int, wraps_first: bool) -> str:
    job = evenstep.init(plan=[10, 6])
    x, y, _ = next(iter(job.loader(Samples())))
    model = DistributedDataParallel(network())
    loss = loss_of(network(), x, y)
    if wraps_first:
        job.wrap(model)
    else:
        job.scale(loss)
    with pytest.raises(evenstep.UnsupportedError) as error:
        _ = job.scale(loss) if wraps_first else job.wrap(model)
    return str(error.value)


def test_gradients_are_weighted_once() -> None:
    for wraps_first in (True, False):
        for told in run_ranks(2, twice, wraps_first):
            assert told.startswith("job.wrap and job.scale both weight the gradients")


class Messages(logging.Handler):
    """The warnings of evenstep in this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []
        logging.getLogger("evenstep").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def forgets(_rank: int) -> tuple[str, int]:
    """Returns the error, and the number of steps that were made with DDP's average."""
    job = evenstep.init(plan=PLANS["12/3/1"])
    model = DistributedDataParallel(network())
    optimizer, steps_made = sgd(model), list[int]()
    optimizer.register_step_post_hook(lambda *_: steps_made.append(1))

    def train() -> None:
        for x, y, _ in job.loader(Samples()):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()

    with pytest.raises(evenstep.UnsupportedError) as error:
        train()
    return str(error.value), len(steps_made)


def weights_itself(_rank: int) -> tuple[list[str], Parameters]:
    """Marks its iterations and weights its losses, with evenstep's numbers."""
    messages, job = Messages(), evenstep.init(plan=PLANS["changing"])
    loader = job.loader(Samples())
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y, _ in loader:
            with job.step() as step:
                optimizer.zero_grad()
                (loss_of(model, x, y) * step.weight * dist.get_world_size()).backward()
                optimizer.step()
    return messages.told, parameters(model)


def trains_another(_rank: int, is_marked: bool) -> tuple[str, int]:
    """Trains a wrapped model and another one; returns the error or warning, and the number of steps."""
    messages, job = Messages(), evenstep.init(plan=PLANS["12/3/1"])
    model, other = job.wrap(DistributedDataParallel(network())), DistributedDataParallel(network())
    named = [(f"other.{name}", parameter) for name, parameter in other.module.named_parameters()]
    optimizers, steps_made = (sgd(model), torch.optim.SGD(named, lr=0.05)), list[int]()
    optimizers[1].register_step_post_hook(lambda *_: steps_made.append(1))
    try:
        for x, y, _ in islice(job.loader(Samples()), 3):
            with job.step() if is_marked else nullcontext():
                (loss_of(model, x, y) + loss_of(other, x, y)).backward()
                for optimizer in optimizers:
                    optimizer.step()
    except evenstep.UnsupportedError as error:
        messages.told.append(str(error))
    [told] = messages.told
    return told, len(steps_made)


def trains_layers(_rank: int) -> str:
    """Trains the layers of a wrapped model that no longer exists, in another model; returns the error."""
    job = evenstep.init(plan=PLANS["12/3/1"])
    x, y, _ = next(iter(job.loader(Samples())))
    net: Any = network()
    model = DistributedDataParallel(torch.nn.Sequential(*net))
    job.wrap(DistributedDataParallel(net))
    job.wrap(DistributedDataParallel(network()))
    del net
    gc.collect()
    loss_of(model, x, y).backward()
    with pytest.raises(evenstep.UnsupportedError) as error:
        sgd(model).step()
    return str(error.value)


def minimises(_rank: int) -> tuple[list[str], Parameters]:
    """Trains with an optimizer that computes the gradients in its step, in a new DDP model in each epoch."""
    messages, job = Messages(), evenstep.init(plan=PLANS["changing"])
    net = network()
    model = job.wrap(DistributedDataParallel(net))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
    loader = job.loader(Samples())
    for _ in range(EPOCHS):
        for x, y, _index in loader:

            def closure(model: Any = model, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                return job.reduce(loss)

            optimizer.step(closure)
        model = job.wrap(DistributedDataParallel(net))
    return messages.told, parameters(model)


def trains_later(_rank: int) -> str:
    """Reads a batch, ends the job, and trains without evenstep."""
    job = evenstep.init(plan=PLANS["12/3/1"])
    x, y, _ = next(iter(job.loader(Samples())))
    job.close()
    model = network()
    loss_of(model, x, y).backward()
    sgd(model).step()
    return "done"


def test_a_training_after_the_job_is_not_checked() -> None:
    assert run_ranks(3, trains_later) == ["done"] * 3


def test_gradients_without_weights_are_refused_at_the_first_step() -> None:
    for told, steps in run_ranks(3, forgets):
        assert told.startswith("an optimizer made a step, but neither job.wrap nor job.scale was called")
        assert not steps


def test_a_loop_may_weight_its_gradients_itself() -> None:
    reference = one_process()
    for told, trained in run_ranks(3, weights_itself):
        assert len(told) == 1
        assert "each rank must weight its gradients itself, with step.weight" in told[0]
        assert difference(trained, reference) <= TOLERANCE


def test_a_model_that_is_not_wrapped_is_refused() -> None:
    for is_marked, steps in ((False, 0), (True, 3)):
        for told, steps_made in run_ranks(3, trains_another, is_marked):
            assert told.startswith("SGD steps parameter other.0.weight of shape (16, 8), which is in no model that job")
            assert steps_made == steps


def test_layers_of_a_deleted_wrapped_model_are_refused() -> None:
    for told in run_ranks(3, trains_layers):
        assert "which is in no model that job.wrap got" in told


def steps_others(_rank: int) -> list[str]:
    """Trains copies of the parameters, an input, and a parameter whose gradient the script reduces itself."""
    messages, job, net = Messages(), evenstep.init(plan=PLANS["12/3/1"]), network()
    model, factor = job.wrap(DistributedDataParallel(net)), torch.nn.Parameter(torch.ones(()).double())
    copies = [at.detach().clone() for at in net.parameters()]
    own = torch.optim.SGD([*copies, factor], lr=0.05)
    for x, y, _ in islice(job.loader(Samples()), 3):
        change = torch.zeros_like(x, requires_grad=True)
        (loss_of(model, x + change, y) * factor).backward()
        torch.optim.SGD([change], lr=0.05).step()
        for at, trained in zip(copies, net.parameters(), strict=True):
            at.grad = trained.grad
        own.step()
    return messages.told


def test_parameters_outside_of_ddp_are_told_once() -> None:
    for told in run_ranks(3, steps_others):
        assert len(told) == 1
        assert told[0].startswith(
            "SGD steps parameter 4 of group 0 of shape (), which is in no model that job.wrap got"
        )


def test_an_optimizer_may_compute_gradients_in_its_step() -> None:
    first, *others = run_ranks(3, minimises)
    assert first[0] == []
    assert all(told == [] and trained == first[1] for told, trained in others)


def train_twice(_rank: int) -> tuple[list[float], list[str]]:
    """Trains a model and an optimizer in two jobs, among errors that change nothing.

    Returns the learning rates of three steps, and the errors.
    """
    model, rates, errors = DistributedDataParallel(network()), list[float](), list[str]()
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    # As a profiler does.
    other = register_optimizer_step_post_hook(lambda *_: None)

    def error_of(call: Callable[[], Any]) -> str:
        with pytest.raises((evenstep.EvenstepError, ValueError)) as error:
            call()
        return str(error.value)

    def fails() -> float:
        raise ValueError("in the closure")

    for _ in range(2):
        job = evenstep.init(plan=[12, 3, 1])
        errors.append(error_of(lambda job=job: job.scale(torch.ones(()))))  # type: ignore[misc]  # Called at once.
        if rates:
            errors.append(error_of(lambda job=job: job.wrap(model)))  # type: ignore[misc]  # Called at once.
        wrapped = job.wrap(DistributedDataParallel(model.module) if rates else model)
        job.optimizer(optimizer)
        x, y, _ = next(iter(job.loader(Samples())))
        loss_of(wrapped, x, y).backward()
        errors.append(error_of(lambda: optimizer.step(fails)))
        optimizer.step()
        job.close()
    optimizer.step()
    other.remove()
    return rates, errors


def test_jobs_may_share_a_model_and_an_optimizer() -> None:
    for rates, (*errors, last) in run_ranks(3, train_twice):
        assert rates == [0.05] * 3
        assert [error[:20] for error in errors] == [
            "the run has not star",
            "in the closure",
            "the run has not star",
            "wrap: this Distribut",
        ]
        assert last == "in the closure"


def test_a_second_data_set_is_refused_or_told(caplog: pytest.LogCaptureFixture) -> None:
    job, data = evenstep.init(plan=[16]), Samples()
    job.loader(data)
    job.loader(data)
    assert not caplog.messages
    job.loader(Samples())
    job.loader(Samples())
    [told] = caplog.messages
    assert "another data set with as many samples" in told
    assert "PyTorch's DataLoader" in told
    with pytest.raises(evenstep.SettingError, match="validation"):
        job.loader(Samples(100))


def padded(_rank: int, loss: Any) -> list[str]:
    """A model that gets its labels, some of them ignored, as language models of Transformers do."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            return out.sum() * (labels >= 0).sum()

    messages, job = Messages(), evenstep.init(plan=[10, 6])
    model = job.wrap(DistributedDataParallel(Model()), loss=loss)
    for count, (x, _, _) in enumerate(job.loader(Samples())):
        model(x, labels=torch.tensor([[1, -100]] * len(x))).backward()
        if count == 2:
            break
    return messages.told


def test_ignored_labels_with_a_mean_over_samples_are_told_once() -> None:
    for told in run_ranks(2, padded, "mean"):
        assert len(told) == 1
        assert 'use job.wrap(.., loss="tokens") and job.count' in told[0]
    assert run_ranks(2, padded, "scaled") == [[], []]
