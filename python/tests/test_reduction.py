"""The end of DDP's reduction: several backward passes before it, passes that libraries prepare, other hooks."""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.measure.sensor import Sensor
from evenstep.run.binding import Binding
from ranks import run_ranks
from training import GLOBAL_BATCH, PLANS, Samples, difference, loss_of, network, parameters, sgd

Parameters = list[list[float]]
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Heads(torch.nn.Module):
    """Two outputs, and a parameter that only losses use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = torch.nn.Linear(8, 3).double(), torch.nn.Linear(8, 3).double()
        self.scale = torch.nn.Parameter(torch.ones(3).double())

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x), self.second(x)

    def scaled(self, y: torch.Tensor) -> torch.Tensor:
        return (self.scale * y).square().mean()


class Adversaries(torch.nn.Module):
    """A GAN that trains itself in its forward pass. It prepares each backward pass, as Lightning does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
        self.judge = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()

    def forward(self, work: Callable[[], None]) -> None:
        work()


class Fails(torch.autograd.Function):
    """The identity, whose backward pass fails once."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor, failures: list[str]) -> torch.Tensor:
        Fails.failures = failures
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        if Fails.failures:
            raise ValueError(Fails.failures.pop())
        return gradients[0], None

    failures: ClassVar[list[str]] = []


class Failing(torch.nn.Module):
    """A network whose backward pass may fail before it reaches a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.failures = network(), list[str]()

    def forward(self, x: torch.Tensor) -> Any:
        return Fails.apply(self.net(x), self.failures)


class Script:
    """A training in one process, or of a wrapped model."""

    def __init__(self, *, is_local: bool) -> None:
        self.job = None if is_local else evenstep.init(plan=PLANS["changing"])

    def wrap(self, net: torch.nn.Module, **options: Any) -> Any:
        return self.job.wrap(DistributedDataParallel(net, **options)) if self.job else net

    def batches(self) -> Batches:
        data = Samples()
        if self.job:
            for x, y, _ in self.job.loader(data, shuffle=False):
                yield x, y
        else:
            yield from zip(data.x.split(GLOBAL_BATCH), data.y.split(GLOBAL_BATCH), strict=True)

    def two_heads(self, **options: Any) -> torch.nn.Module:
        net = Heads()
        net.scale.requires_grad = False
        model = self.wrap(net, **options)
        optimizer = sgd(net)
        for x, y in self.batches():
            optimizer.zero_grad()
            first, second = model(x)
            torch.nn.functional.mse_loss(first, y).backward()
            torch.nn.functional.mse_loss(second, y).backward()
            optimizer.step()
        return net

    def two_heads_in_views(self) -> torch.nn.Module:
        return self.two_heads(gradient_as_bucket_view=True)

    def parameter_of_the_loss(self) -> torch.nn.Module:
        net = Heads()
        model, optimizer = self.wrap(net), sgd(net)
        for x, y in self.batches():
            optimizer.zero_grad()
            first, second = model(x)
            (first - second).sub(y).square().mean().backward()
            net.scaled(y).backward()
            optimizer.step()
        return net

    def inputs(self) -> torch.nn.Module:
        net = network()
        model, optimizer, trained = self.wrap(net), sgd(net), list(net.parameters())
        for x, y in self.batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward(inputs=trained[:2], retain_graph=True)
            loss.backward(inputs=trained[2:])
            optimizer.step()
        return net

    def static_between(self, other: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]) -> torch.nn.Module:
        net = network()
        # Its first iteration reduces all buckets at once.
        model, optimizer = self.wrap(net, static_graph=True, bucket_cap_mb=1e-4), sgd(net)
        for x, y in self.batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            other(net, x).backward()
            loss.backward()
            optimizer.step()
        return net

    def static_penalty(self) -> torch.nn.Module:
        return self.static_between(lambda net, _: torch.stack([at.square().sum() for at in net.parameters()]).sum())

    def static_bare_module(self) -> torch.nn.Module:
        return self.static_between(lambda net, x: net(x).square().mean())

    def own_hook(self, net: torch.nn.Module) -> Any:
        model = self.wrap(net)
        if self.job:
            model.register_comm_hook(None, allreduce_hook)
        return model

    def two_heads_with_own_hook(self) -> torch.nn.Module:
        net = Heads()
        model, optimizer = self.own_hook(net), sgd(net)
        for x, y in self.batches():
            optimizer.zero_grad()
            first, second = model(x)
            torch.nn.functional.mse_loss(first, y).backward()
            (torch.nn.functional.mse_loss(second, y) + net.scaled(y)).backward()
            optimizer.step()
        return net

    def prepare(self, model: Any, loss: torch.Tensor) -> None:
        if self.job:
            model.require_backward_grad_sync = True
            model.reducer.prepare_for_backward([loss])
            model.require_backward_grad_sync = False

    def adversaries(self, *, clears_all: bool = False) -> torch.nn.Module:
        gan = Adversaries()
        model = self.wrap(gan, find_unused_parameters=True)
        optimizers = [sgd(gan.net), sgd(gan.judge)]

        def step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
            optimizer.zero_grad()
            self.prepare(model, loss)
            loss.backward()
            optimizer.step()
            if clears_all:
                gan.zero_grad()

        def judges() -> None:
            step((gan.judge(y) - 1).square().mean() + gan.judge(gan.net(x).detach()).square().mean(), optimizers[1])

        def generates() -> None:
            step((gan.judge(gan.net(x)) - 1).square().mean(), optimizers[0])

        def work() -> None:
            # A pass through both nets leaves DDP no unused parameter.
            for train in (generates, judges) if clears_all else (judges, generates):
                train()

        for x, y in self.batches():  # noqa: B007  # The work reads them.
            model(work)
            if self.job:
                model.require_backward_grad_sync = True
        return gan

    def adversaries_with_cleared_gradients(self) -> torch.nn.Module:
        return self.adversaries(clears_all=True)

    def adversaries_together(self) -> torch.nn.Module:
        """Two prepared passes before one step; DDP has arranged its buckets in a whole pass before."""
        gan = Adversaries()
        model, optimizer = self.wrap(gan), sgd(gan)

        def backward(loss: torch.Tensor) -> None:
            self.prepare(model, loss)
            loss.backward()

        def work() -> None:
            fake = gan.net(x)
            if not is_first:
                backward((gan.judge(y) - 1).square().mean() + gan.judge(fake.detach()).square().mean())
            backward((gan.judge(fake) - 1).square().mean())

        for number, (x, y) in enumerate(self.batches()):  # noqa: B007  # The work reads them.
            is_first = number == 0
            optimizer.zero_grad()
            model(work)
            optimizer.step()
            if self.job:
                model.require_backward_grad_sync = True
        return gan

    def repeated(self) -> torch.nn.Module:
        """A backward pass that fails is repeated without a forward pass; then one step has two batches."""
        net = Failing()
        model, optimizer = self.wrap(net), sgd(net)
        for number, (x, y) in enumerate(self.batches()):
            if number != 3:
                optimizer.zero_grad()
            with model.no_sync() if self.job and number == 2 else nullcontext():
                loss = loss_of(model, x, y)
            net.failures[:] = ["fails"] if number == 1 else []
            try:
                loss.backward(retain_graph=True)
            except ValueError:
                loss.backward()
            if number != 2:
                optimizer.step()
        return net

    def delayed_penalty(self) -> torch.nn.Module:
        """A pass that reaches only parameters whose reduction is delayed, before the pass through the model."""
        net = network().float()
        last = list(net.children())[-1]
        assert isinstance(last, torch.nn.Linear)
        named = [(name, at) for name, at in net.named_parameters() if any(at is own for own in last.parameters())]
        first = next(net.parameters())
        model = self.wrap(net, delay_all_reduce_named_params=named, param_to_hook_all_reduce=first)
        optimizer, sums, start = sgd(net), list[Any](), dist.all_reduce

        def started(*arguments: Any, **named: Any) -> Any:
            sums.append(start(*arguments, **named))
            return sums[-1]

        for x, y in self.batches():
            optimizer.zero_grad()
            # DDP does not wait for the delayed sums.
            dist.all_reduce = started
            try:
                loss = loss_of(model, x.float(), y.float())
                last.weight.square().sum().backward()
                loss.backward()
            finally:
                dist.all_reduce = start
            while sums:
                sums.pop().wait()
            optimizer.step()
        return net

    def wrapped_preparation(self) -> torch.nn.Module:
        """Another library has replaced the method that prepares reductions."""
        reducer: Any = dist.Reducer  # type: ignore[attr-defined]  # missing in torch's type stubs.
        original = reducer.prepare_for_backward

        @functools.wraps(original)
        def timed(*arguments: Any) -> Any:
            return original(*arguments)

        reducer.prepare_for_backward = timed
        try:
            net = network()
            model = self.job.wrap(DistributedDataParallel(net), loss="tokens") if self.job else net
            optimizer = sgd(net)
            for x, y in self.batches():
                optimizer.zero_grad()
                if self.job:
                    self.job.count(len(x))
                loss = (model(x) - y).square().mean(1)
                (loss.sum() if self.job else loss.mean()).backward()
                optimizer.step()
        finally:
            reducer.prepare_for_backward = original
        return net

    def hooks_of_nodes(self) -> torch.nn.Module:
        """Hooks that cannot be seen change gradients before DDP reads them."""
        net, nodes = network(), []
        for parameter in net.parameters():
            node = torch.autograd.graph.get_gradient_edge(parameter).node
            node.register_hook(partial(self.decay, parameter))
            nodes.append(node)
        model = self.job.wrap(DistributedDataParallel(net), loss="sum") if self.job else net
        optimizer = sgd(net)
        for x, y in self.batches():
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean(1)
            (loss.sum() if self.job else loss.mean()).backward()
            optimizer.step()
        return net

    @staticmethod
    def decay(parameter: torch.Tensor, *_: Any) -> None:
        assert parameter.grad is not None
        parameter.grad.add_(parameter.detach(), alpha=0.1)

    def averaged(self) -> torch.nn.Module:
        net = network()
        model, optimizer, average = self.wrap(net), sgd(net), None
        for x, y in self.batches():
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            average = average or torch.optim.swa_utils.AveragedModel(copy.deepcopy(model))
            average.update_parameters(model)
        assert average is not None
        return average

    def read_gradients(self) -> torch.nn.Module:
        """Hooks that read and change gradients before DDP does."""
        net = network()
        model = self.job.wrap(DistributedDataParallel(net), loss="sum") if self.job else net
        optimizer = sgd(net)
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(self.decay)
        for x, y in self.batches():
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean(1)
            (loss.sum() if self.job else loss.mean()).backward()
            optimizer.step()
        return net


SCRIPTS = [
    # Before evenstep has replaced the method.
    "wrapped_preparation",
    "two_heads",
    "two_heads_in_views",
    "parameter_of_the_loss",
    "inputs",
    "static_penalty",
    "static_bare_module",
    "two_heads_with_own_hook",
    "adversaries",
    "adversaries_with_cleared_gradients",
    "adversaries_together",
    "repeated",
    "delayed_penalty",
    "hooks_of_nodes",
    "averaged",
    "read_gradients",
]


def trained(_rank: int) -> dict[str, Parameters]:
    return {name: parameters(getattr(Script(is_local=False), name)()) for name in SCRIPTS}


def test_each_gradient_that_ddp_reduces_has_its_weight() -> None:
    references = {name: parameters(getattr(Script(is_local=True), name)()) for name in SCRIPTS}
    for found in run_ranks(3, trained):
        differences = {name: difference(found[name], references[name]) for name in SCRIPTS}
        # The reduction of delayed parameters has float32.
        limits = {name: 1e-6 if name == "delayed_penalty" else 1e-13 for name in SCRIPTS}
        assert {name: at for name, at in differences.items() if at > limits[name]} == {}


def waits(_rank: int) -> list[str]:
    """Returns the events of the last backward pass of a model with a communication hook of the script."""
    script, events = Script(is_local=False), list[str]()
    pause, resume, complete = Sensor.pause, Sensor.resume, Binding.complete

    def paused(sensor: Sensor) -> bool:
        events.append("pause")
        return pause(sensor)

    def resumed(sensor: Sensor) -> None:
        events.append("resume")
        resume(sensor)

    def completed(binding: Binding, **options: Any) -> None:
        events.append("complete")
        complete(binding, **options)

    net = network()
    model = script.own_hook(net)
    Sensor.pause, Sensor.resume = paused, resumed  # type: ignore[method-assign,assignment]
    Binding.complete = completed  # type: ignore[method-assign,assignment]
    for x, y in script.batches():
        events.clear()
        loss_of(model, x, y).backward()
        net.zero_grad()
    return events


def test_waits_in_a_hook_of_the_script_are_no_compute_time() -> None:
    for events in run_ranks(3, waits):
        assert events == ["pause", "resume", "complete"]


def refused(_rank: int) -> str:
    script = Script(is_local=False)
    model = script.wrap(network())
    x, y = next(script.batches())
    loss_of(model, x, y).backward()
    with pytest.raises(evenstep.UnsupportedError) as error:
        model.register_comm_hook(None, allreduce_hook)
    copy.deepcopy(model).register_comm_hook(None, allreduce_hook)
    return str(error.value)


def test_a_hook_that_is_registered_in_training_is_refused_with_advice() -> None:
    for told in run_ranks(3, refused):
        assert "pass it as job.wrap(model, inner=hook, inner_state=state)" in told
