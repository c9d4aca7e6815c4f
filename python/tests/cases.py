"""Scripts that train on ranks with uneven batches, and without a change in one process with whole batches."""

import os
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from training import Samples, loss_of, network, sgd
from worlds import World

#: The label of tokens that do not count.
IGNORED = -100


def fit(
    world: World,
    model: Any,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    **options: Any,
) -> Any:
    """Trains a model and returns it; ``before`` and ``after`` are called around each step of the optimizer."""
    optimizer = optimizer or sgd(model)
    for x, y, _ in world.batches(**options):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        before()
        optimizer.step()
        after()
    return model


def plain(world: World, **options: Any) -> Any:
    return fit(world, world.ddp(network()), **options)


def with_options(world: World, **options: Any) -> Any:
    return fit(world, world.ddp(network(), bucket_cap_mb=0.0005, **options))


def accumulated(world: World, *, syncs_each: bool, samples: int = 208) -> Any:
    model = world.ddp(network())
    optimizer = sgd(model)
    for at, (x, y, _) in enumerate(world.batches(Samples(samples))):
        is_open = world.accumulates(at)
        with model.no_sync() if is_open and not syncs_each else nullcontext():
            (loss_of(model, x, y) / getattr(world, "micro_batches", 1)).backward()
        if not is_open:
            optimizer.step()
            optimizer.zero_grad()
    return model


def own_passes(world: World, *, shards: bool = False, loss: str = "mean", **options: Any) -> Any:
    """Each rank has passes of the size that its memory allows."""
    net, keeps = network(), {"reshard_after_forward": False}
    model = world.fsdp(net, loss=loss, **keeps) if shards else world.ddp(net, loss=loss, **options)
    optimizer = sgd(model)
    size = (4, 5, 3)[int(os.environ.get("RANK", "0"))]
    for x, y, _ in world.batches(micro_batch=size):
        if loss == "mean":
            loss_of(model, x, y).backward()
        else:
            total = torch.nn.functional.mse_loss(model(x), y, reduction="sum") / y.shape[1]
            world.mean(total, len(x), counts=loss == "tokens").backward()
        if world.is_last:
            optimizer.step()
            optimizer.zero_grad()
    return model


def added(world: World, *, loss: str, syncs_each: bool = True) -> Any:
    """Adds the gradients of two iterations before each step, without ``accumulate``."""
    model = world.ddp(network(), loss=loss)
    optimizer = sgd(model)
    for at, (x, y, _) in enumerate(world.batches()):
        is_open = at % 2 == 0
        with nullcontext() if syncs_each or not is_open else getattr(model, "no_sync", nullcontext)():
            if loss == "mean":
                mean = loss_of(model, x, y)
            else:
                total = torch.nn.functional.mse_loss(model(x), y, reduction="sum") / y.shape[1]
                mean = world.mean(total, len(x), counts=loss == "tokens")
            (mean / 2).backward()
        if not is_open:
            optimizer.step()
            optimizer.zero_grad(set_to_none=loss == "mean")
    return model


def penalised(world: World) -> Any:
    """Differentiates through the outputs for a penalty on the slopes."""
    model = world.ddp(network())
    optimizer = sgd(model)
    for x, y, _ in world.batches():
        outputs = model(x.requires_grad_())
        [slopes] = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        penalty = (slopes.norm(dim=1) - 1).square().mean()
        (torch.nn.functional.mse_loss(outputs, y) + penalty).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def autocast(world: World) -> Any:
    model = world.ddp(network().float())
    optimizer = sgd(model)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x.float(), y.float())
        loss.backward()
        optimizer.step()
    return model


def grad_scaler(world: World) -> Any:
    """The first step overflows, so all ranks skip it. All factors are powers of two."""
    model, large = world.ddp(network()), 2.0**910
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / large, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-30)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y) * large).backward()
        scaler.unscale_(optimizer)
        # The sum of squares would overflow.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.02 * large, norm_type=torch.inf)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**96, "one step was skipped"
    return model


def clipped(world: World, *, by_norm: bool) -> Any:
    model = world.ddp(network())
    clip = torch.nn.utils.clip_grad_norm_ if by_norm else torch.nn.utils.clip_grad_value_
    return fit(world, model, before=lambda: clip(model.parameters(), 0.05 if by_norm else 0.01))


def scheduled(world: World) -> Any:
    model = world.ddp(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=40)
    return fit(world, model, optimizer, after=scheduler.step)


def averaged(world: World) -> Any:
    net = network()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    fit(world, world.ddp(net), after=lambda: average.update_parameters(net))
    return average.module


def frozen(world: World) -> Any:
    net: Any = network()
    net[0].requires_grad_(requires_grad=False)
    return fit(world, world.ddp(net))


class Branching(torch.nn.Module):
    """Uses one of its branches, depending on the batch: ranks differ in the parameters that they use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.common = torch.nn.Linear(8, 8).double()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 3).double() for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.common(x))
        positive = x[:, :1] > 0
        uses = positive.any(), (~positive).any()
        used = [branch(hidden) for branch, use in zip(self.branches, uses, strict=False) if use]
        return torch.where(positive, *used) if len(used) == 2 else used[0]


def unused(world: World) -> Any:
    model = world.ddp(Branching(), find_unused_parameters=True)
    # Without momentum: a rank without samples gives a branch gradients of 0 where one process gives none.
    return fit(world, model, torch.optim.SGD(model.parameters(), lr=0.05))


class Net(torch.nn.Module):
    """A network whose forward pass is Python; the compiler skips modules of PyTorch itself."""

    def __init__(self, uses_checkpoints: bool | None = None) -> None:
        """``uses_checkpoints`` computes the activations twice; its value is PyTorch's ``use_reentrant``."""
        super().__init__()
        self.net = network()
        self.reentrant = uses_checkpoints

    def forward(self, x: torch.Tensor) -> Any:
        if self.reentrant is None:
            return self.net(x)
        return checkpoint(self.net, x.requires_grad_(), use_reentrant=self.reentrant)


def compiled(world: World, *, inside: bool) -> Any:
    torch._dynamo.reset()
    # Needs no C++ compiler.
    compile_it: Callable[[Any], Any] = partial(torch.compile, backend="eager", dynamic=True)
    return fit(world, world.ddp(compile_it(Net())) if inside else compile_it(world.ddp(Net())))


def checkpointed(world: World, *, reentrant: bool) -> Any:
    return fit(world, world.ddp(Net(reentrant), static_graph=reentrant))


def adversarial(world: World) -> Any:
    """Two reductions of the discriminator for its own step, and one of each model for the generator's step."""
    torch.manual_seed(3)
    judge = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    generator, discriminator = world.ddp(network()), world.ddp(judge)
    optimizers = sgd(generator), sgd(discriminator)
    softplus = torch.nn.functional.softplus
    for x, y, _ in world.batches():
        optimizers[1].zero_grad()
        softplus(-discriminator(y)).mean().backward()
        softplus(discriminator(generator(x).detach())).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        softplus(-discriminator(generator(x))).mean().backward()
        optimizers[0].step()
    return torch.nn.ModuleList([generator, discriminator])


def padded_rows(world: World) -> Any:
    """Batches of few sizes, as compilers need them: rows of zeros are added, and the loss leaves them out."""
    model = world.ddp(network())
    optimizer = sgd(model)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        outputs = model(torch.nn.functional.pad(x, (0, 0, 0, -len(x) % 8)))
        torch.nn.functional.mse_loss(outputs[: len(y)], y).backward()
        optimizer.step()
    return model


class Sentences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of 1 to 9 tokens and their labels."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(11, (1 + index * 7 % 9,), generator=torch.Generator().manual_seed(index))
        return tokens, tokens * 3 % 11


def padded(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = ([row[at] for row in rows] for at in (0, 1))
    return pad_sequence(tokens, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=IGNORED)


def tokens(world: World, samples: int = 77, **options: Any) -> Any:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Tanh(), torch.nn.Linear(6, 11)).double()
    model = world.ddp(net, loss="tokens", **options)
    optimizer = sgd(model)
    for at, (inputs, labels) in enumerate(world.batches(Sentences(samples), collate_fn=padded)):
        is_open = world.accumulates(at)
        with model.no_sync() if is_open else nullcontext():
            outputs = model(inputs).flatten(0, 1)
            total = torch.nn.functional.cross_entropy(outputs, labels.flatten(), ignore_index=IGNORED, reduction="sum")
            world.mean(total, (labels != IGNORED).sum(), counts=True).backward()
        if not is_open:
            optimizer.step()
            optimizer.zero_grad()
    return model


def class_weights(world: World) -> Any:
    """PyTorch divides by the sum of the weights of the labels."""
    model, weights = world.ddp(network(), loss="tokens"), torch.tensor([0.1, 1.0, 9.7], dtype=torch.float64)
    optimizer = sgd(model)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        labels = y.argmax(1)
        total = torch.nn.functional.cross_entropy(model(x), labels, weight=weights, reduction="sum")
        world.mean(total, weights[labels].sum(), counts=True).backward()
        optimizer.step()
    return model


def reads_before_backward(world: World) -> Any:
    """Reads the next batch between the forward and the backward pass, also over the end of an epoch."""
    model = world.ddp(network())
    optimizer, batches = sgd(model), world.batches()
    batch = next(batches, None)
    while batch:
        loss = loss_of(model, batch[0], batch[1])
        batch = next(batches, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def reads_ahead(world: World) -> Any:
    """Reads three batches ahead, also over the end of an epoch."""
    model = world.ddp(network())
    optimizer, batches = sgd(model), world.batches()
    read = deque(islice(batches, 3))
    while read:
        with world.step():
            read.extend(islice(batches, 1))
            optimizer.zero_grad()
            x, y, _ = read.popleft()
            loss_of(model, x, y).backward()
            optimizer.step()
    return model


def summed(world: World) -> Any:
    model = world.ddp(network(), loss="sum")
    optimizer = sgd(model)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        total = torch.nn.functional.mse_loss(model(x), y, reduction="sum") / y.shape[1]
        world.mean(total, len(x)).backward()
        optimizer.step()
    return model


def scaled(world: World) -> Any:
    model = world.ddp(network(), loss=None)
    optimizer = sgd(model)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        world.scale(loss_of(model, x, y)).backward()
        optimizer.step()
    return model


def sharded(world: World) -> Any:
    return fit(world, world.fsdp(network()))


def hedged(world: World, *, shards: bool) -> Any:
    model = world.fsdp(network(), reshard_after_forward=False) if shards else world.ddp(network())
    optimizer = sgd(model)
    for step in world.steps(model, tail=0.4):
        optimizer.zero_grad()
        for x, y, _ in step:
            loss_of(model, x, y).backward()
        optimizer.step()
    return model
