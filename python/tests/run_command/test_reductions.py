"""The terms of a loss: equal for batches of any size if and only if the loss is a mean over samples."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from evenstep.run_command.reductions import Term, UnknownLossError, same, terms

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MEANS: dict[str, Loss] = {
    "cross entropy": f.cross_entropy,
    "smoothed": lambda y, target: f.cross_entropy(y, target, label_smoothing=0.2),
    "error": lambda y, _: f.smooth_l1_loss(y, torch.zeros_like(y)),
    "weighted sum": lambda y, target: 0.3 * f.cross_entropy(y, target) - f.l1_loss(y, torch.zeros_like(y)) / 7,
    "by sample": lambda y, _: f.mse_loss(y.sum(1), torch.zeros(len(y))),
    "parts": lambda y, _: f.huber_loss(2 * y.tanh()[:, 1:].float(), torch.zeros(len(y), 4)),
    "logits": lambda y, _: f.binary_cross_entropy_with_logits(y, torch.ones_like(y), pos_weight=torch.tensor(2.0)),
    "probabilities": lambda y, _: f.binary_cross_entropy(y.softmax(1), torch.zeros_like(y)),
    "scaled": lambda y, _: f.mse_loss(y, torch.zeros_like(y)) * torch.tensor(65536.0),
}

OTHERS: dict[str, Loss] = {
    "sum": lambda y, _: y.square().sum(),
    "norm": lambda y, _: y.norm(),
    "mean by hand": lambda y, _: y.square().mean(),
    "mean over samples first": lambda y, _: f.mse_loss(y.mean(0), torch.zeros(5)),
    "maximum": lambda y, _: y.max(),
    "class weights": lambda y, target: f.cross_entropy(y, target, weight=torch.arange(1.0, 6.0)),
    "sample weights": lambda y, _: f.binary_cross_entropy_with_logits(y, torch.ones_like(y), weight=torch.rand(8, 1)),
    "ignored labels": lambda y, target: f.cross_entropy(y, target, ignore_index=1),
    "contrastive": lambda y, _: f.cross_entropy(y @ y.T, torch.arange(len(y))),
    "softmax over samples": lambda y, _: f.mse_loss(y.softmax(0), torch.zeros_like(y)),
    "softmax over samples by a negative number": lambda y, _: f.mse_loss(y.softmax(-2), torch.zeros_like(y)),
    "transposed": lambda y, _: f.cross_entropy(y.T, torch.zeros(5, dtype=torch.long)),
    "first samples": lambda y, _: f.mse_loss(y[:4], torch.zeros(4, 5)),
    "one sample": lambda y, _: f.mse_loss(y[0], torch.zeros(5)),
    "two results": lambda y, _: f.mse_loss(y * y.detach().requires_grad_(), torch.zeros_like(y)),
    "other samples": lambda y, _: f.l1_loss(y - y.flip(0), torch.zeros_like(y)),
}

#: Losses that depend on the batch by a factor or a shape, as only another size of the batch shows.
SIZED: dict[str, Loss] = {
    "factor": lambda y, target: f.cross_entropy(y, target) * len(y) ** 2,
    "factor of the output": lambda y, target: f.cross_entropy(y * len(y), target),
}


def terms_of(loss: Loss, samples: int, suspects: Sequence[float] = ()) -> list[Term]:
    y, target = batch(samples)
    return terms(loss(y, target), samples, suspects, outputs=[y.grad_fn])


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    y = torch.randn(samples, 5, generator=generator, requires_grad=True)
    return y.clone(), torch.arange(samples).remainder(4) ^ 1


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_has_the_same_terms_for_all_sizes(name: str) -> None:
    found = [terms_of(MEANS[name], samples, [samples]) for samples in (8, 12, 3)]
    assert found[0]
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_refused(name: str) -> None:
    with pytest.raises(UnknownLossError):
        terms_of(OTHERS[name], 8, [8])


@pytest.mark.parametrize("name", SIZED)
def test_another_size_shows_that_a_loss_depends_on_it(name: str) -> None:
    assert not same(terms_of(SIZED[name], 8), terms_of(SIZED[name], 12))


def test_a_sum_over_the_items_of_all_ranks() -> None:
    def found(samples: int, items: float | None) -> Any:
        y, target = batch(samples)
        return terms(2 * f.cross_entropy(y, target, reduction="sum") / 20, samples, items=items, outputs=[y.grad_fn])

    assert found(8, 20.0) == found(3, 20.0)
    with pytest.raises(UnknownLossError, match="sum"):
        found(8, None)
