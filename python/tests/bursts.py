"""Models and random plans for the tests of burst-parallel training."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

GLOBAL_BATCH = 12


class Residual(nn.Module):
    """A block that torch.fx could not trace."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.inner(x) if x.abs().sum() >= 0 else x
        return made


class Branches(nn.Module):
    """Convolutions with functions, a residual connection and two branches between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), Residual())
        self.left, self.right = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.late = nn.Conv2d(8, 8, 1)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, flat: bool = True) -> torch.Tensor:
        x = functional.gelu(self.features(x))
        x = torch.cat([self.left(x), self.right(x)], 1)
        x = functional.max_pool2d(x + functional.gelu(self.late(x)), 2)
        x = x.flatten(2) * self.scale[:, None]
        return self.head(x.flatten(1) if flat else x)  # type: ignore[no-any-return]

    #: Layers with the same samples: the branches are one block.
    layers = (("features.0 Conv2d",), ("features.2",), ("left", "right Conv2d"), ("late",), ("head Linear",))

    @staticmethod
    def inputs(count: int) -> torch.Tensor:
        return torch.randn(count, 1, 4, 4)


class Encoder(nn.Module):
    """A transformer encoder, a recurrent layer in a block, and a sum over the tokens."""

    class Recurrent(nn.Module):
        """Reads the first output of a recurrent layer only."""

        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.unused = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(8))
        self.recurrent = self.Recurrent()
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.encoder(self.embedding(x))).mean(1))  # type: ignore[no-any-return]

    layers = (
        ("embedding",),
        ("encoder.layers.0",),
        ("encoder.layers.1", "encoder.layers.2"),
        ("encoder.norm",),
        ("recurrent",),
        ("head",),
    )

    @staticmethod
    def inputs(count: int) -> torch.Tensor:
        return torch.randint(0, 11, (count, 3))


class Gated(nn.Module):
    """Uses its parameters only for some samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, made = x[:, 0] > 0.5, x.clone()
        if chosen.any():
            made[chosen] = self.inner(x[chosen])
        return made


class Conditional(nn.Sequential):
    """A chain with a layer whose parameters some ranks do not use."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), Gated(), nn.Linear(8, 5))

    layers = (("0",), ("1 Gated",), ("2",))

    @staticmethod
    def inputs(count: int) -> torch.Tensor:
        return torch.randn(count, 6)


class Chain(nn.Sequential):
    """A chain of linear layers with batch norm."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        )

    layers = (("0 Linear",), ("1", "2 Tanh"), ("3",), ("4 BatchNorm1d",), ("5",))

    @staticmethod
    def inputs(count: int) -> torch.Tensor:
        return torch.randn(count, 6)


def planned(layers: Sequence[Sequence[str]], shares: Callable[[], Sequence[int]], ranks: int) -> dict[str, Any]:
    """Returns a plan with the same shares for the layers of each block."""
    blocks = [(names, [*shares()]) for names in layers]
    return {
        "global_batch": GLOBAL_BATCH,
        "gpus": ranks,
        "layers": [{"name": name, "samples": samples} for names, samples in blocks for name in names],
    }


def random_plan(seed: int, layers: Sequence[Sequence[str]], ranks: int, unit: int = 1) -> dict[str, Any]:
    """Returns a plan with random numbers of ranks and random shares, some of them 0. GPUs are in a random order."""
    chance = random.Random(seed)  # noqa: S311

    def shares() -> list[int]:
        count = chance.randint(1, ranks)
        parts = [0] * count
        for _ in range(GLOBAL_BATCH // unit):
            parts[chance.randrange(1 + chance.randrange(count))] += unit
        chance.shuffle(parts)
        return parts

    plan = planned(layers, shares, ranks)
    plan["gpu_order"] = chance.sample(range(ranks), ranks)
    return plan
