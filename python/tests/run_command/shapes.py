"""Training loops of scripts that do not use evenstep: some that can be balanced, and many that cannot."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, l1_loss, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, TensorDataset

Made = Callable[[DistributedDataParallel], DistributedDataParallel]

SAMPLES, BATCH, EPOCHS = 60, 4, 3
"""Eight iterations per epoch with two ranks; the last one has half of the samples."""

DIM = 6


def data(classes: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, DIM, dtype=torch.float64, generator=generator)
    y = torch.randint(0, classes, (SAMPLES,), generator=generator) if classes else x[:, :1] * x[:, 1:2]
    return TensorDataset(x, y)


def net(out: int = 1, *, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = torch.nn.Linear(DIM, 8), torch.nn.Tanh(), torch.nn.Linear(8, out)
    return torch.nn.Sequential(*layers).double()


def loader_of(dataset: Any, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset, seed=5), **kwargs)


def train(
    made: Made,
    loss_of: Callable[[Any, Any, Any], Any] = lambda y, target, _: mse_loss(y, target),
    *,
    out: int = 1,
    classes: int = 0,
    batches: Any = None,
    module: torch.nn.Module | None = None,
    after: Callable[[Any, DataLoader[Any]], Any] = lambda _, __: None,
) -> torch.nn.Module:
    """The plain loop, whose loss may differ."""
    loader = loader_of(data(classes)) if batches is None else batches
    model = made(DistributedDataParallel(module or net(out)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        if isinstance(sampler := getattr(loader, "sampler", None), DistributedSampler):
            sampler.set_epoch(epoch)
        for x, target in loader:
            optimizer.zero_grad()
            loss_of(model(x), target, x).backward()
            optimizer.step()
        after(model, loader)
    return model


# Loops that can be balanced.


def plain(made: Made) -> Any:
    return train(made)


def by_class(made: Made) -> Any:
    return train(made, lambda y, target, _: cross_entropy(y, target, label_smoothing=0.1) + 0.3, out=3, classes=3)


def two_terms(made: Made) -> Any:
    return train(made, lambda y, target, x: mse_loss(y, target) + 0.1 * l1_loss(y, x[:, :1]))


def workers_and_drop(made: Made) -> Any:
    return train(made, batches=loader_of(data(), num_workers=1, persistent_workers=True, drop_last=True))


def validates(made: Made) -> Any:
    """Validates on the training set, too, and on another one."""
    other = DataLoader(data(), batch_size=7)

    def validate(model: Any, loader: Any) -> None:
        model.eval()
        with torch.no_grad():
            assert sum(len(x) for part in (loader, other) for x, _ in part) == SAMPLES // 2 + SAMPLES
        model.train()

    return train(made, after=validate)


def scaled(made: Made) -> Any:
    """A GradScaler, which skips no step here, clipping and a schedule."""
    dataset = data()
    loader, model = loader_of(dataset), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scale = torch.tensor(1024.0, dtype=torch.float64)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for x, target in loader:
            (mse_loss(model(x), target) * scale).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= scale
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model


def reads_ahead(made: Made) -> Any:
    """Reads one batch ahead, as Accelerate and Lightning do."""

    def ahead(loader: Any) -> Iterator[Any]:
        batches = iter(loader)
        current = next(batches)
        for following in batches:
            yield current
            current = following
        yield current

    class Ahead:
        def __init__(self, loader: Any) -> None:
            self.loader, self.sampler = loader, loader.sampler

        def __iter__(self) -> Iterator[Any]:
            return ahead(self.loader)

    return train(made, batches=Ahead(loader_of(data())))


def evaluates_until_the_next_batch(made: Made) -> Any:
    """Sets the mode after it has begun to read, as Hugging Face's Trainer does."""
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for x, target in loader:
            model.train()
            mse_loss(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
    return model


def another_loader_each_epoch(made: Made) -> Any:
    dataset, model = data(), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        loader = loader_of(dataset)
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for at, (x, target) in enumerate(loader):
            mse_loss(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            if epoch == 1 and at == 4:
                break
    return model


# Loops that cannot, or of which it is unknown.


def accumulates(made: Made) -> Any:
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for at, (x, target) in enumerate(batch for _ in range(EPOCHS) for batch in loader):
        (mse_loss(model(x), target) / 2).backward()
        if at % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def sums(made: Made) -> Any:
    return train(made, lambda y, target, _: mse_loss(y, target, reduction="sum") * 1e-3)


def mean_times_length(made: Made) -> Any:
    return train(made, lambda y, target, x: mse_loss(y, target) * len(x) * 0.1)


def divides_by_length(made: Made) -> Any:
    return train(made, lambda y, target, x: (y - target).square().sum() / len(x))


def constant_division(made: Made) -> Any:
    return train(made, lambda y, target, _: (y - target).square().sum() / BATCH)


def two_models(made: Made) -> Any:
    loader, models = loader_of(data()), [made(DistributedDataParallel(net(seed=at))) for at in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for x, target in (batch for _ in range(EPOCHS) for batch in loader):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            mse_loss(model(x), target).backward()
            optimizer.step()
    return torch.nn.ModuleList(models)


def two_optimizers(made: Made) -> Any:
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    parts = [list(model.parameters())[:2], list(model.parameters())[2:]]
    optimizers = [torch.optim.SGD(part, lr=0.05) for part in parts]
    for x, target in (batch for _ in range(EPOCHS) for batch in loader):
        mse_loss(model(x), target).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([data()[at] for at in range(dist.get_rank(), SAMPLES, dist.get_world_size())])


def stream(made: Made) -> Any:
    return train(made, batches=DataLoader(Stream(), batch_size=BATCH))


def own_batch_sampler(made: Made) -> Any:
    class Own(BatchSampler):
        pass

    dataset = data()
    batches = Own(DistributedSampler(dataset), BATCH, drop_last=False)
    return train(made, batches=DataLoader(dataset, batch_sampler=batches))


def own_sampler(made: Made) -> Any:
    class Own(DistributedSampler[Any]):
        pass

    dataset = data()
    return train(made, batches=DataLoader(dataset, batch_size=BATCH, sampler=Own(dataset)))


def ready_batches(made: Made) -> Any:
    dataset = data()
    whole = TensorDataset(*(at.view(15, 4, -1) for at in dataset.tensors))
    return train(made, batches=DataLoader(whole, batch_size=None, sampler=DistributedSampler(whole)))


def own_loader(made: Made) -> Any:
    class Own(DataLoader[Any]):
        pass

    dataset = data()
    return train(made, batches=Own(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset)))


def no_sampler(made: Made) -> Any:
    return train(made, batches=DataLoader(data(), batch_size=BATCH))


def no_loader(made: Made) -> Any:
    return train(made, batches=[data()[at * 4 : at * 4 + 4] for at in range(dist.get_rank(), 14, 2)])


def two_loaders(made: Made) -> Any:
    class Both:
        def __iter__(self) -> Iterator[Any]:
            first, second = loader_of(data()), loader_of(data())
            for (x, target), (other, _) in zip(first, second, strict=True):
                yield x + other, target

    return train(made, batches=Both())


def contrastive(made: Made) -> Any:
    def loss(y: Any, _: Any, x: Any) -> Any:
        return cross_entropy(y @ x[:, :3].T, torch.arange(len(x)))

    return train(made, loss, out=3)


def class_weights(made: Made) -> Any:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    return train(made, lambda y, target, _: cross_entropy(y, target, weight=weight), out=3, classes=3)


def ignored_labels(made: Made) -> Any:
    return train(made, lambda y, target, _: cross_entropy(y, target, ignore_index=0), out=3, classes=3)


def masked_mean(made: Made) -> Any:
    return train(made, lambda y, target, x: (y - target)[x[:, 0] > 0].square().mean())


def custom_loss(made: Made) -> Any:
    return train(made, lambda y, target, _: (y - target).square().norm())


def steps_twice_per_batch(made: Made) -> Any:
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, target in (batch for _ in range(EPOCHS) for batch in loader):
        for _ in range(2):
            optimizer.zero_grad()
            mse_loss(model(x), target).backward()
            optimizer.step()
    return model


def two_passes(made: Made) -> Any:
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, target in (batch for _ in range(EPOCHS) for batch in loader):
        optimizer.zero_grad()
        for part in (x, -x):
            mse_loss(model(part), target).backward()
        optimizer.step()
    return model


def skips_batches(made: Made) -> Any:
    def some() -> Iterator[Any]:
        yield from (batch for at, batch in enumerate(loader_of(data())) if at % 2)

    class Some:
        def __iter__(self) -> Iterator[Any]:
            return some()

    return train(made, batches=Some())


def changes_batches_ahead(made: Made) -> Any:
    class Ahead:
        def __iter__(self) -> Iterator[Any]:
            batches = iter(loader_of(data()))
            current = next(batches)
            for following in batches:
                yield 2 * current[0], current[1]
                current = following

    return train(made, batches=Ahead())


def batch_norm(made: Made) -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(DIM, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    return train(made, module=torch.nn.Sequential(*layers).double())


def gathers_by_sample(made: Made) -> Any:
    def loss(y: Any, target: Any, _: Any) -> Any:
        dist.all_gather([torch.empty_like(target) for _ in range(dist.get_world_size())], y.detach())
        return mse_loss(y, target)

    return train(made, loss)


def own_hook(made: Made) -> Any:
    def hooked(model: Any) -> Any:
        def mean(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # missing in stubs.
            # The sum of both ranks, and half of it.
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            assert work is not None
            return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())

        model.register_comm_hook(None, mean)
        return made(model)

    return train(hooked)


def reads_all_first(made: Made) -> Any:
    class All:
        def __iter__(self) -> Iterator[Any]:
            return iter(list(loader_of(data())))

    return train(made, batches=All())


def one_rank_looks(made: Made) -> Any:
    """Rank 0 looks at a batch in the middle of an epoch."""
    loader, model = loader_of(data()), made(DistributedDataParallel(net()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for at, (x, target) in enumerate(batch for _ in range(EPOCHS) for batch in loader):
        mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        if at == 5 and dist.get_rank() == 0:
            next(iter(loader))
    return model


BALANCED = (
    plain,
    by_class,
    two_terms,
    workers_and_drop,
    validates,
    scaled,
    reads_ahead,
    evaluates_until_the_next_batch,
    another_loader_each_epoch,
)

WATCHED = {
    accumulates: "a step has",
    sums: "not a mean over samples, but a sum",
    mean_times_length: "may be a number of samples",
    divides_by_length: "may be a number of samples",
    constant_division: "may be a number of samples",
    two_models: "several DistributedDataParallel models",
    two_optimizers: "several optimizers",
    stream: "map-style",
    own_batch_sampler: "Own composes the batches",
    own_sampler: "has a Own",
    ready_batches: "gives whole batches",
    own_loader: "a DataLoader of its own kind",
    no_sampler: "has a SequentialSampler",
    no_loader: "no DataLoader",
    two_loaders: "several DataLoaders",
    contrastive: "may mix the samples",
    class_weights: "weights of classes",
    ignored_labels: "ignores some labels",
    masked_mean: "unknown whether it is a mean",
    custom_loss: "unknown whether it is a mean",
    steps_twice_per_batch: "of which batch",
    two_passes: "a step has",
    skips_batches: "of which batch",
    changes_batches_ahead: "of which batch",
    batch_norm: "batch norm",
    gathers_by_sample: "gathers or reduces",
    own_hook: "communication hook",
    reads_all_first: "begins to read again",
    one_rank_looks: "ranks differ",
}
