"""The warning of losses that are no mean over samples: for each of them, and for no right one."""

import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.gradients import mean_check
from ranks import run_ranks
from test_weights import Messages
from training import Samples, network, sgd

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

WEIGHTS = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)


def labels_of(y: torch.Tensor) -> torch.Tensor:
    return y.argmax(1)


def tokens(outputs: torch.Tensor, y: torch.Tensor, ignored: torch.Tensor) -> torch.Tensor:
    """Three tokens of two classes in each sample."""
    logits = torch.stack([outputs, -outputs], -1)
    return functional.cross_entropy(logits.flatten(0, 1), (y > 0).long().where(~ignored, -100).flatten())


def similar(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs @ y.T, torch.arange(len(y)))


def per_sample(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Calls the function on tensors without values."""
    loss: Callable[..., torch.Tensor] = torch.func.vmap(functional.cross_entropy)
    return loss(outputs, labels_of(y)).mean()


def printed(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    functional.cross_entropy(outputs, labels_of(y), weight=WEIGHTS)
    return functional.cross_entropy(outputs, labels_of(y))


FIRST = torch.tensor([[True, False, False]])


#: Losses, and the begin of their warning on rank 0.
def one_by_one(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([functional.cross_entropy(*one) for one in zip(outputs, labels_of(y), strict=True)]).mean()


LOSSES: dict[str, tuple[Loss, str]] = {
    "class weights": (lambda o, y: torch.nn.CrossEntropyLoss(WEIGHTS)(o, labels_of(y)), "cross_entropy with class"),
    "with smoothing": (
        lambda o, y: functional.cross_entropy(o, labels_of(y), WEIGHTS, label_smoothing=0.1),
        "cross_entropy with class",
    ),
    "nll": (lambda o, y: torch.nn.NLLLoss(WEIGHTS)(o.log_softmax(1), labels_of(y)), "nll_loss with class"),
    "ignored labels": (
        lambda o, y: functional.cross_entropy(o, labels_of(y), ignore_index=1),
        "cross_entropy with ignored labels (ignore_index=1)",
    ),
    "ignored tokens": (lambda o, y: tokens(o, y, y > 0.5), "cross_entropy with ignored labels (ignore_index=-100)"),
    "one by one": (one_by_one, ""),
    "contrastive": (similar, "cross_entropy of each sample with the others"),
    "mean": (lambda o, y: functional.cross_entropy(o, labels_of(y)), ""),
    "equal weights": (lambda o, y: functional.cross_entropy(o, labels_of(y), WEIGHTS[1:2].repeat(3)), ""),
    "probabilities": (lambda o, y: functional.cross_entropy(o, y.softmax(1), WEIGHTS), ""),
    "prompts": (lambda o, y: tokens(o, y, FIRST.expand(len(y), 3)), ""),
    "sums": (lambda o, y: functional.cross_entropy(o, labels_of(y), WEIGHTS, reduction="none").mean(), ""),
    "squares": (functional.mse_loss, ""),
    "binary": (lambda o, y: functional.binary_cross_entropy_with_logits(o, y.sigmoid(), pos_weight=WEIGHTS), ""),
    "of one sample": (per_sample, ""),
    "only printed": (printed, ""),
}


def train(job: evenstep.Job, model: Any, loss: Loss) -> None:
    optimizer = sgd(model)
    for x, y, _ in islice(job.loader(Samples()), 3):
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert sys.getprofile() is None


def all_told(_rank: int) -> dict[str, list[str]]:
    told, messages = {}, Messages()
    for name, (loss, _) in LOSSES.items():
        messages.told, job = [], evenstep.init(plan=[10, 6])
        train(job, job.wrap(DistributedDataParallel(network())), loss)
        told[name] = messages.told
        job.close()
    return told


def told_otherwise(_rank: int) -> list[list[str]]:
    """The same for FSDP2, hedged steps, another reduction, and a loss that comes after many calls."""
    told, messages = [], Messages()
    loss = LOSSES["class weights"][0]
    ways = [*(["fsdp"] if hasattr(FSDPModule, "set_custom_reduce_scatter") else []), "steps", "scaled", "calls"]
    for way in ways:
        messages.told, job, net = [], evenstep.init(plan=[10, 6]), network()
        if way == "fsdp":
            fully_shard(net)
            train(job, job.wrap(net), loss)
        elif way == "steps":
            model = job.wrap(DistributedDataParallel(net))
            for step in islice(job.steps(Samples(), tail=0.5), 2):
                for x, y, _ in step:
                    loss(model(x), y).backward()
        else:
            model = job.wrap(DistributedDataParallel(net), loss="scaled" if way == "scaled" else "mean")
            calls = mean_check._EVENTS if way == "calls" else 0

            def later(outputs: torch.Tensor, y: torch.Tensor, calls: int = calls) -> torch.Tensor:
                return sum(abs(0) for _ in range(calls)) + loss(outputs, y)

            train(job, model, later)
        told.append(messages.told)
        job.close()
    return told


def with_profile(_rank: int) -> bool:
    """Returns whether another profile function stays."""
    job = evenstep.init(plan=[10, 6])
    model = job.wrap(DistributedDataParallel(network()))
    own = lambda *_: None  # noqa: E731
    [x, y, _] = next(iter(job.loader(Samples())))
    sys.setprofile(own)
    functional.mse_loss(model(x), y).backward()
    is_kept = sys.getprofile() is own
    sys.setprofile(None)
    return is_kept


def test_each_loss_is_told_once_and_no_right_one() -> None:
    first, second = run_ranks(2, all_told)
    for name, (_, begin) in LOSSES.items():
        assert len(first[name]) == bool(begin), (name, first[name])
        assert all(told.startswith(begin) and "not a mean over samples" in told for told in first[name]), name
        # A contrastive loss of few samples looks as a classification.
        assert len(second[name]) == (bool(begin) and name != "contrastive"), (name, second[name])


def test_other_ways_to_train() -> None:
    for told in run_ranks(2, told_otherwise):
        *weighted, scaled, calls = told
        assert [len(one) for one in weighted] == [1] * len(weighted)
        assert scaled == calls == []


def test_another_profile_function_stays() -> None:
    assert run_ranks(2, with_profile) == [True, True]
