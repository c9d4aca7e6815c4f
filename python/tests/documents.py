"""Documents of unequal length, a model of their tokens, and the training of one process."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import evenstep
from evenstep.samples.costs import Costs
from evenstep.samples.epoch import Epoch
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress
from training import EPOCHS, parameters, sgd

SAMPLES = 101
#: Lengths from 1 to 40 tokens.
LENGTHS = [1 + at * 7919 % 40 for at in range(SAMPLES)]

#: The label of tokens that do not count.
IGNORED = -100

Batch = dict[str, torch.Tensor]


class Documents(Dataset[tuple[int, torch.Tensor]]):
    """The index and the tokens of each document."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randint(11, (LENGTHS[index],), generator=torch.Generator().manual_seed(index))


def labels_of(tokens: torch.Tensor) -> torch.Tensor:
    labels = tokens * 3 % 11
    labels[0] = IGNORED
    return labels


def packed(samples: list[tuple[int, torch.Tensor]]) -> Batch:
    """One row with all documents."""
    index, tokens = zip(*samples, strict=True)
    labels = torch.cat([labels_of(own) for own in tokens])
    return {"index": torch.tensor(index), "tokens": torch.cat(tokens)[None], "labels": labels[None]}


def padded(samples: list[tuple[int, torch.Tensor]]) -> Batch:
    """One row for each document, as long as the longest."""
    index, tokens = zip(*samples, strict=True)
    pad = torch.nn.utils.rnn.pad_sequence
    labels = pad([labels_of(own) for own in tokens], batch_first=True, padding_value=IGNORED)
    return {"index": torch.tensor(index), "tokens": pad(list(tokens), batch_first=True), "labels": labels}


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


def loss_of(model: torch.nn.Module, batch: Batch, reduction: str = "sum") -> torch.Tensor:
    outputs, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
    return cross_entropy(outputs, labels, ignore_index=IGNORED, reduction=reduction)


def counted(batch: Batch) -> torch.Tensor:
    return (batch["labels"] != IGNORED).sum()


def order_of(*, global_batch: int | None = None, global_tokens: int | None = None, **_: Any) -> Order:
    """Returns the order of a loader with these arguments."""
    return Order(SAMPLES, global_batch or 1, costs=Costs.of(LENGTHS, SAMPLES, budget=global_tokens))


def iterations(order: Order, epoch: int) -> list[list[int]]:
    """Returns the samples of each iteration."""
    read = Epoch(order, epoch)
    return [read.indices(place.begin, place.size) for place in read.places(Progress())]


def one_process(order: Order, epochs: int = EPOCHS) -> list[list[float]]:
    """The reference: means over the tokens of whole iterations, plain PyTorch."""
    data, model = Documents(), Net()
    optimizer = sgd(model)
    for epoch in range(epochs):
        for samples in iterations(order, epoch):
            optimizer.zero_grad()
            loss_of(model, packed([data[at] for at in samples]), "mean").backward()
            optimizer.step()
    return parameters(model)


@dataclass
class Read:
    """The result of a rank."""

    parameters: list[list[float]] = field(default_factory=list)
    #: The samples with a weight, by iteration.
    samples: dict[int, list[int]] = field(default_factory=dict)
    #: The number of tokens in each pass with a weight.
    passes: list[int] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


def train(
    _rank: int, plan: Any, options: dict[str, Any], state: dict[str, Any] | None = None, stop: int | None = None
) -> Read:
    """The script of a user. It may begin at a checkpoint, and stop after an iteration."""
    job, read = evenstep.init(plan=plan), Read()
    collate = padded if options.get("layout") == "padded" else packed
    loader = job.loader(Documents(), cost=LENGTHS, collate_fn=collate, **options)
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    if state:
        job.load_state_dict(state)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for batch in loader:
            job.count(counted(batch))
            with nullcontext() if loader.is_last else model.no_sync():
                loss_of(model, batch).backward()
            if loader.latest.local_batch:
                read.samples.setdefault(loader.latest.iteration, []).extend(batch["index"].tolist())
                read.passes.append(batch["tokens"].numel())
            if loader.is_last:
                optimizer.step()
                optimizer.zero_grad()
                if loader.latest.iteration == stop:
                    read.state = job.state_dict()
                    return read
    read.parameters = parameters(model)
    return read
