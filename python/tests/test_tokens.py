"""Losses that are means over tokens: the gradient of one process, for batches of any length."""

from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import evenstep
from evenstep.samples.order import Order
from ranks import run_ranks
from training import EPOCHS, difference, parameters, sgd

TOLERANCE = 1e-13
SAMPLES, GLOBAL_BATCH = 77, 8
#: The label of tokens that do not count.
IGNORED = -100

Parameters = list[list[float]]


def plan(iteration: int) -> list[int]:
    return [[5, 2, 1], [6, 2, 0], [0, 1, 7]][iteration % 3]


def plan_of_fours(iteration: int) -> list[int]:
    return [[16, 8, 8], [4, 28, 0], [0, 12, 20]][iteration % 3]


class Sentences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of 9 tokens, of which 1 to 9 count."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(11, (9,), generator=torch.Generator().manual_seed(index))
        labels = tokens * 3 % 11
        labels[1 + index * 7 % 9 :] = IGNORED
        return tokens, labels


class Net(torch.nn.Module):
    """Returns an output for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(11, 6)
        self.head = torch.nn.Linear(6, 11)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.head(torch.tanh(self.embedding(tokens)))
        return said


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    return cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction=reduction)


def one_process(order: Order) -> Parameters:
    """The reference: means over the tokens of whole batches, plain PyTorch."""
    data, model = Sentences(order.samples), Net()
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        permutation = order.permutation(epoch).tolist()
        for step in range(order.steps):
            rows = [data[at] for at in permutation[step * order.global_batch :][: order.size(step)]]
            tokens, labels = (torch.stack(part) for part in zip(*rows, strict=True))
            optimizer.zero_grad()
            loss_of(model, tokens, labels, "mean").backward()
            optimizer.step()
    return parameters(model)


def train(_rank: int, inner: Any = None, reads_between: bool = False) -> Parameters:
    job = evenstep.init(plan=plan)
    loader = job.loader(Sentences())
    model = job.wrap(DistributedDataParallel(Net(), bucket_cap_mb=0.0005), loss="tokens", inner=inner)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        batches = iter(loader)
        batch = next(batches, None)
        while batch is not None:
            optimizer.zero_grad()
            if not reads_between:
                job.count((batch[1] != IGNORED).sum())
            loss = loss_of(model, *batch)
            tokens = int((batch[1] != IGNORED).sum())
            if reads_between:
                batch = next(batches, None)
                job.count(tokens)
            loss.backward()
            if not reads_between:
                batch = next(batches, None)
            optimizer.step()
    return parameters(model)


def accumulated(_rank: int, counts_first: bool) -> Parameters:
    """Micro-batches have unequal numbers of tokens. The last iteration of an epoch has fewer samples."""
    job = evenstep.init(plan=plan_of_fours)
    loader = job.loader(Sentences(108), accumulate=4)
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for count, (tokens, labels) in enumerate(loader):
            is_last = count % 4 == 3
            number = (labels != IGNORED).sum()
            if counts_first:
                job.count(number)
            with nullcontext() if is_last else model.no_sync():
                loss = loss_of(model, tokens, labels)
                if not counts_first:
                    job.count(number)
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return parameters(model)


def two_models(_rank: int) -> tuple[Parameters, Parameters]:
    """Both models use one count; the second one has two backward passes, with fresh gradients."""
    job = evenstep.init(plan=plan)
    loader = job.loader(Sentences())
    one, other = (job.wrap(DistributedDataParallel(Net()), loss="tokens") for _ in range(2))
    optimizers = {model: sgd(model) for model in (one, other)}
    for _ in range(EPOCHS):
        for tokens, labels in loader:
            job.count((labels != IGNORED).sum())
            for model in (one, other, other):
                optimizers[model].zero_grad()
                loss_of(model, tokens, labels).backward()
            for optimizer in optimizers.values():
                optimizer.step()
    return parameters(one), parameters(other)


@pytest.mark.parametrize("reads_between", [False, True])
def test_it_is_the_mean_over_the_tokens_of_one_process(reads_between: bool) -> None:
    reference = one_process(Order(SAMPLES, GLOBAL_BATCH))
    for trained in run_ranks(3, train, None, reads_between):
        assert difference(trained, reference) <= TOLERANCE


def test_an_inner_hook_averages_over_tokens() -> None:
    reference = one_process(Order(SAMPLES, GLOBAL_BATCH))
    for trained in run_ranks(3, train, allreduce_hook):
        assert difference(trained, reference) <= TOLERANCE


def compressed(_rank: int) -> float:
    """Returns the largest gradient of a sum over more tokens than a number of 16 bits can hold."""
    job = evenstep.init(plan=plan)
    batches = iter(job.loader(Sentences()))
    model = job.wrap(DistributedDataParallel(Net().float()), loss="tokens", inner=fp16_compress_hook)
    tokens, labels = next(batches)
    job.count((labels != IGNORED).sum() * 10**6)
    (loss_of(model, tokens, labels) * 10**6).backward()
    return max(float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.grad is not None)


def test_compressed_gradients_do_not_overflow() -> None:
    data, model = Sentences(), Net()
    rows = [data[at] for at in Order(SAMPLES, GLOBAL_BATCH).permutation(0).tolist()[:GLOBAL_BATCH]]
    tokens, labels = (torch.stack(part) for part in zip(*rows, strict=True))
    loss_of(model, tokens, labels, "mean").backward()
    largest = max(float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.grad is not None)
    assert run_ranks(3, compressed) == pytest.approx([largest] * 3, rel=2e-3)


def test_models_share_a_count() -> None:
    reference = one_process(Order(SAMPLES, GLOBAL_BATCH))
    for models in run_ranks(3, two_models):
        for trained in models:
            assert difference(trained, reference) <= TOLERANCE


@pytest.mark.parametrize("counts_first", [True, False])
def test_accumulation(counts_first: bool) -> None:
    reference = one_process(Order(108, 32))
    for trained in run_ranks(3, accumulated, counts_first):
        assert difference(trained, reference) <= TOLERANCE


def repeated(_rank: int) -> Parameters:
    """A stream that fails once in each iteration, after the tokens were counted, and repeats the iteration."""
    job, data = evenstep.init(plan=plan), Sentences()
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    optimizer = sgd(model)
    for begin in range(0, 72, GLOBAL_BATCH):
        for is_failing in (True, False):
            with suppress(OSError), job.step(global_batch=GLOBAL_BATCH) as step:
                first = begin + step.offset
                rows = [data[at] for at in range(first, first + max(step.local_batch, 1))]
                tokens, labels = (torch.stack(part) for part in zip(*rows, strict=True))
                job.count((labels != IGNORED).sum())
                if is_failing:
                    raise OSError
                optimizer.zero_grad()
                loss_of(model, tokens, labels).backward()
                optimizer.step()
    return parameters(model)


def test_a_repeated_iteration_counts_its_tokens_once() -> None:
    data, model = Sentences(), Net()
    optimizer = sgd(model)
    for begin in range(0, 72, GLOBAL_BATCH):
        tokens, labels = (
            torch.stack(part) for part in zip(*map(data.__getitem__, range(begin, begin + 8)), strict=True)
        )
        optimizer.zero_grad()
        loss_of(model, tokens, labels, "mean").backward()
        optimizer.step()
    for trained in run_ranks(3, repeated):
        assert difference(trained, parameters(model)) <= TOLERANCE


def refuses(_rank: int) -> list[str]:
    told = []
    job = evenstep.init(plan=[10, 6])
    batches = iter(job.loader(Sentences()))
    with pytest.raises(evenstep.SettingError) as error:
        job.count(1)
    told.append(str(error.value))
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    loss = loss_of(model, *next(batches))
    with pytest.raises(evenstep.SettingError) as error:
        loss.backward()
    told.append(str(error.value))
    job.count(3)
    with pytest.raises(evenstep.SettingError) as error:
        job.count(3)
    told.append(str(error.value))
    job = evenstep.init(plan=[10, 6])
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    batches = iter(next(iter(job.steps(Sentences()))))
    loss_of(model, *next(batches)).backward()
    with pytest.raises(evenstep.SettingError) as error:
        next(batches)
    told.append(str(error.value))
    return told


def test_tokens_must_be_counted_once() -> None:
    for unwanted, missing, twice, hedged in run_ranks(2, refuses):
        assert unwanted == 'count: requires job.wrap(.., loss="tokens")'
        assert missing.startswith('iteration 0: job.wrap(loss="tokens") requires job.count(number of tokens)')
        assert twice.startswith("count(3): the items of every batch read so far are counted")
        assert hedged == missing
