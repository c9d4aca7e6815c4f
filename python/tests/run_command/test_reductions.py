"""The terms of a loss: equal for batches of any size if and only if the loss is a mean over samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from evenstep.run_command.reductions import UnknownLossError, terms

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MEANS: dict[str, Loss] = {
    "cross entropy": f.cross_entropy,
    "smoothed": lambda y, target: f.cross_entropy(y, target, label_smoothing=0.2),
    "probabilities": lambda y, _: f.cross_entropy(y, y.detach().softmax(1)),
    "error": lambda y, _: f.smooth_l1_loss(y, torch.zeros_like(y)),
    "weighted sum": lambda y, target: 0.3 * f.cross_entropy(y, target) - y.square().mean() / 7,
    "by sample": lambda y, _: y.square().sum(1).mean(),
    "scaled": lambda y, _: y.square().mean() * torch.tensor(65536.0),
}

OTHERS: dict[str, Loss] = {
    "sum": lambda y, _: y.square().sum(),
    "norm": lambda y, _: y.norm(),
    "mean over features of a mean": lambda y, _: y.square().mean(0).mean(),
    "maximum": lambda y, _: y.max(),
    "class weights": lambda y, target: f.cross_entropy(y, target, weight=torch.arange(1.0, 6.0)),
    "ignored labels": lambda y, target: f.cross_entropy(y, target, ignore_index=1),
    "contrastive": lambda y, _: f.cross_entropy(y @ y.T, torch.arange(len(y))),
}

#: Losses that depend on the batch by a factor or a shape, as only another size of the batch shows.
SIZED: dict[str, Loss] = {
    "factor": lambda y, target: f.cross_entropy(y, target) * len(y) ** 2,
    "shape": lambda y, _: (y @ y.T).mean(),
}


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    y = torch.randn(samples, 5, generator=generator, requires_grad=True)
    return y, torch.arange(samples).remainder(4) ^ 1


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_has_the_same_terms_for_all_sizes(name: str) -> None:
    found = [terms(MEANS[name](*batch(samples)), samples, [samples]) for samples in (8, 12, 3)]
    assert found[0]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_refused(name: str) -> None:
    with pytest.raises(UnknownLossError):
        terms(OTHERS[name](*batch(8)), 8, [8])


@pytest.mark.parametrize("name", SIZED)
def test_another_size_shows_that_a_loss_depends_on_it(name: str) -> None:
    assert terms(SIZED[name](*batch(8)), 8) != terms(SIZED[name](*batch(12)), 12)


def test_a_sum_over_the_items_of_all_ranks() -> None:
    def found(samples: int, items: float | None) -> Any:
        y, target = batch(samples)
        return terms(2 * f.cross_entropy(y, target, reduction="sum") / 20, samples, items=items)

    assert found(8, 20.0) == found(3, 20.0)
    with pytest.raises(UnknownLossError, match="sum"):
        found(8, None)
