"""Training loops that need equal batches in ways that a loss alone does not show, or not in the first iterations."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from shapes import BATCH, EPOCHS, Made, data, loader_of, net, train
from torch.nn import functional as f
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

#: A name that a script has imported before evenstep.
all_gather = dist.all_gather

#: Gets the model, its optimizer, a batch, and the epoch with the position in it.
Body = Callable[[Any, Any, Any, Any, tuple[int, int]], Any]


def loop(made: Made, body: Body, *, module: Any = None, classes: int = 0, **kwargs: Any) -> Any:
    loader = loader_of(data(classes), **kwargs)
    model = made(DistributedDataParallel(module or net(classes or 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for at, (x, target) in enumerate(loader):
            body(model, optimizer, x, target, (epoch, at))
    return model


def step(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# Loops whose first iterations show it.


def infonce_by_hand(made: Made) -> Any:
    return train(made, lambda y, _, x: -(y @ x[:, :3].T).log_softmax(1).diagonal().mean(), out=3)


def softmax_over_samples(made: Made) -> Any:
    return train(made, lambda y, target, _: mse_loss(y.softmax(0), target))


def batch_hard(made: Made) -> Any:
    return train(made, lambda y, _, __: f.softplus((y[:, None] - y[None]).abs().sum(2).amax(1)).mean(), out=3)


def hardest_half(made: Made) -> Any:
    return train(made, lambda y, target, _: (y - target).square().flatten().topk(len(y) // 2).values.mean())


def mixup_by_hand(made: Made) -> Any:
    def loss(y: Any, target: Any, _: Any) -> Any:
        hot = f.one_hot(target, 3).double()
        return (-(0.7 * hot + 0.3 * hot.flip(0)) * y.log_softmax(1)).sum(1).mean()

    return train(made, loss, out=3, classes=3)


def weights_over_largest(made: Made) -> Any:
    return train(made, lambda y, target, x: (x[:, :1].abs() / x[:, :1].abs().max() * (y - target) ** 2).mean())


def mean_of_parameters(made: Made) -> Any:
    module = net()
    return train(made, lambda y, t, _: mse_loss(y, t) + f.l1_loss(module[0].bias, torch.zeros(8)), module=module)  # type: ignore[index]


def hooks_of_parameters(made: Made) -> Any:
    module = net()
    for parameter in module.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    return train(made, module=module)


def gradient_penalty(made: Made) -> Any:
    def body(model: Any, optimizer: Any, x: Any, target: Any, *_: Any) -> None:
        loss = mse_loss(model(x.requires_grad_()), target)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        step(optimizer, loss + mse_loss(slope, torch.zeros_like(slope)))

    return loop(made, body)


def head_outside(made: Made) -> Any:
    module = net()
    scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    loader, model = loader_of(data()), made(DistributedDataParallel(module))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.05)
    for x, target in (batch for _ in range(EPOCHS) for batch in loader):
        step(optimizer, mse_loss(model(x), target))
    return model


def weighted_backward(made: Made) -> Any:
    def body(model: Any, optimizer: Any, x: Any, target: Any, *_: Any) -> None:
        optimizer.zero_grad()
        mse_loss(model(x), target).backward(gradient=torch.tensor(len(x) / 4.0, dtype=torch.float64))
        optimizer.step()

    return loop(made, body)


def collective(made: Made, work: Callable[[Any], Any]) -> Any:
    def body(model: Any, optimizer: Any, x: Any, target: Any, *_: Any) -> None:
        y = model(x)
        step(optimizer, mse_loss(y, target))
        work(y.detach().clone())

    return loop(made, body, drop_last=True)


def gathers_by_an_early_name(made: Made) -> Any:
    return collective(made, lambda y: all_gather([torch.empty_like(y) for _ in range(2)], y))


def reduces_by_sample(made: Made) -> Any:
    return collective(made, dist.all_reduce)


def gathers_objects(made: Made) -> Any:
    return collective(made, lambda y: dist.all_gather_object([None, None], y))


def gathers_on_rank_0(made: Made) -> Any:
    return collective(made, lambda y: dist.gather(y, [y.clone(), y.clone()] if dist.get_rank() == 0 else None))


# Loops whose later iterations show it.


def skips_short_batches(made: Made) -> Any:
    def body(model: Any, optimizer: Any, x: Any, target: Any, *_: Any) -> None:
        if len(x) == BATCH:
            step(optimizer, mse_loss(model(x), target))

    return loop(made, body)


def rate_by_samples(made: Made) -> Any:
    seen = [0]

    def body(model: Any, optimizer: Any, x: Any, target: Any, *_: Any) -> None:
        seen[0] += len(x)
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - seen[0] / 100)
        step(optimizer, mse_loss(model(x), target))

    return loop(made, body)


def repeats_old_batches(made: Made) -> Any:
    old: list[Any] = []

    def body(model: Any, optimizer: Any, x: Any, target: Any, when: tuple[int, int]) -> None:
        old.append((x, target))
        step(optimizer, mse_loss(model(x), target))
        if when == (2, 3):
            step(optimizer, mse_loss(model(old[0][0]), old[0][1]))

    return loop(made, body)


def sums_later(made: Made) -> Any:
    def body(model: Any, optimizer: Any, x: Any, target: Any, when: tuple[int, int]) -> None:
        step(optimizer, mse_loss(model(x), target, reduction="mean" if when[0] < EPOCHS - 1 else "sum"))

    return loop(made, body)


def ignores_later(made: Made) -> Any:
    def body(model: Any, optimizer: Any, x: Any, target: Any, when: tuple[int, int]) -> None:
        step(
            optimizer, cross_entropy(model(x), target.index_fill(0, torch.zeros(when[0] // 2, dtype=torch.long), -100))
        )

    return loop(made, body, classes=3)


def drops_samples_later(made: Made) -> Any:
    epochs = [0]

    def some(samples: list[Any]) -> Any:
        kept = [at for at in samples if epochs[0] < EPOCHS - 1 or at[0][0] < 0] or samples[:1]
        return tuple(map(torch.stack, zip(*kept, strict=True)))

    def body(model: Any, optimizer: Any, x: Any, target: Any, when: tuple[int, int]) -> None:
        epochs[0] = when[0] + (when[1] == 7)
        step(optimizer, mse_loss(model(x), target))

    return loop(made, body, collate_fn=some)


def gathers_epochs(made: Made) -> Any:
    outputs: list[Any] = []

    def body(model: Any, optimizer: Any, x: Any, target: Any, when: tuple[int, int]) -> None:
        outputs.append(model(x))
        step(optimizer, mse_loss(outputs[-1], target))
        if when[1] == 6:
            whole = torch.cat(outputs).detach()
            outputs.clear()
            all_gather([torch.empty_like(whole) for _ in range(2)], whole)

    return loop(made, body, drop_last=True)


def second_loader_later(made: Made) -> Any:
    first, second = loader_of(data()), loader_of(data())
    model = made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, target in (batch for _ in range(2) for batch in first):
        step(optimizer, mse_loss(model(x), target))
    for (x, target), (other, _) in zip(first, second, strict=True):
        step(optimizer, mse_loss(model(x + other), target))
    return model


def second_model_later(made: Made) -> Any:
    train(made)
    return train(made)


def cycles(made: Made) -> Any:
    class Twice:
        def __init__(self) -> None:
            self.batches: list[Any] = []

        def __iter__(self) -> Iterator[Any]:
            if not self.batches:
                for batch in loader:
                    self.batches.append(batch)
                    yield batch
            else:
                yield from self.batches

    loader = loader_of(data())
    return train(made, batches=Twice())


def leaves_at_a_short_batch(made: Made) -> Any:
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        for x, target in loader:
            if len(x) < BATCH:
                break
            step(optimizer, mse_loss(model(x), target))
    return model


# Loops that can be balanced.


def draws_one_number(made: Made) -> Any:
    """Draws the same numbers with any number of samples."""
    module = net()
    torch.manual_seed(11)

    def body(model: Any, optimizer: Any, x: Any, target: Any, *_: Any) -> None:
        step(optimizer, mse_loss(model(x * torch.rand((), dtype=torch.float64)), target))

    return loop(made, body, module=module)


def output_of_tokens(made: Made) -> Any:
    """Flattens samples and tokens, as language models do."""

    def loss(y: Any, target: Any, _: Any) -> Any:
        labels = target[:, None].expand(-1, 2)
        return cross_entropy(y.view(-1, 3, 3)[:, 1:].reshape(-1, 3), labels.reshape(-1), label_smoothing=0.1)

    return train(made, loss, out=9, classes=3)


BALANCED = draws_one_number, output_of_tokens

WATCHED = {
    infonce_by_hand: "unknown whether it is a mean",
    softmax_over_samples: "may mix the samples",
    batch_hard: "unknown whether it is a mean",
    hardest_half: "unknown whether it is a mean",
    mixup_by_hand: "unknown whether it is a mean",
    weights_over_largest: "unknown whether it is a mean",
    mean_of_parameters: "of parameters",
    hooks_of_parameters: "hooks",
    gradient_penalty: "torch.autograd.grad",
    head_outside: "not in the DistributedDataParallel model",
    weighted_backward: "gradient=",
    gathers_by_an_early_name: "gathers or reduces",
    reduces_by_sample: "gathers or reduces",
    gathers_objects: "gathers or reduces",
    gathers_on_rank_0: "gathers or reduces",
}

ENDED = {
    skips_short_batches: "without a forward pass",
    rate_by_samples: "the learning rates are",
    repeats_old_batches: "with uneven batches",
    sums_later: "not a mean over samples, but a sum",
    ignores_later: "ignores some labels",
    drops_samples_later: "with uneven batches",
    gathers_epochs: "gathers or reduces",
    second_loader_later: "two DataLoaders at once",
    second_model_later: "several DistributedDataParallel models",
    cycles: "with uneven batches",
}
