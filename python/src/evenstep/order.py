"""The order of samples: one seeded permutation of the whole data set per epoch."""

import zlib
from dataclasses import dataclass

import torch

from evenstep.errors import SettingError

#: Seeds of successive epochs differ by this odd number (a Weyl sequence), modulo 2^63.
_EPOCH_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Order:
    """The assignment of samples to iterations, the same on every rank.

    Iteration ``step`` of an epoch has the samples from ``step * global_batch`` on of the epoch's permutation. The
    shares of the ranks do not matter. So every sample occurs exactly once per epoch, and a resume needs only (epoch,
    step, seed): no iterations are replayed.
    """

    samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    #: Number of micro-batches per iteration. They must have equal sizes: otherwise their mean is not the mean over
    #: samples.
    accumulate: int = 1

    def __post_init__(self) -> None:
        """Validates the values.

        Raises:
            SettingError: a number is out of range, or micro-batches would have different sizes.
        """
        if self.samples < 1:
            raise SettingError(f"the data set has {self.samples} samples: must have at least 1")
        if self.global_batch < 1:
            raise SettingError(f"global_batch={self.global_batch}: must be at least 1")
        if self.accumulate < 1:
            raise SettingError(f"accumulate={self.accumulate}: must be at least 1")
        if self.global_batch % self.accumulate:
            raise SettingError(
                f"global_batch={self.global_batch}: must be a multiple of accumulate={self.accumulate}, so that "
                "micro-batches have equal sizes"
            )
        rest = self.samples % self.global_batch
        if rest % self.accumulate and not self.drop_last:
            raise SettingError(
                f"the last iteration of an epoch has {rest} of the {self.samples} samples, which cannot be split "
                f"into {self.accumulate} equal micro-batches: pass drop_last=True or another global_batch"
            )
        if self.drop_last and self.samples < self.global_batch:
            raise SettingError(
                f"drop_last=True with global_batch={self.global_batch} leaves no iteration: the data set has only "
                f"{self.samples} samples; lower global_batch"
            )

    @property
    def steps(self) -> int:
        """The number of iterations in an epoch."""
        if self.drop_last:
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    def size(self, step: int) -> int:
        """Returns the number of samples in iteration ``step``, which may belong to the next epoch."""
        begin = step % self.steps * self.global_batch
        return min(self.global_batch, self.samples - begin)

    def checksum(self, epoch: int) -> int:
        """Returns a checksum of an epoch's permutation, to compare it between ranks."""
        return zlib.crc32(self.permutation(epoch).numpy().tobytes()) if self.shuffle else 0

    def permutation(self, epoch: int) -> torch.Tensor:
        """Returns the order of all samples in an epoch, int64, shape (samples,)."""
        if not self.shuffle:
            return torch.arange(self.samples)
        generator = torch.Generator()
        generator.manual_seed((self.seed + epoch * _EPOCH_STRIDE) % 2**63)
        return torch.randperm(self.samples, generator=generator)
