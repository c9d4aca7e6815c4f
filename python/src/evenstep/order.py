"""Which sample comes when: one seeded permutation of the whole data set for each epoch."""

import zlib
from dataclasses import dataclass

import torch

from evenstep.errors import SettingError

#: Epochs are told apart within a seed by steps of this odd number (a Weyl sequence), modulo 2^63.
_EPOCH_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Order:
    """The same for every rank: which samples an iteration has follows from its place in the epoch alone.

    Iteration ``step`` of an epoch has the samples ``step * global_batch ..`` of its permutation, however they are
    shared. So every sample comes exactly once an epoch, and (epoch, step, seed) is all that a resume needs: nothing
    is replayed.
    """

    samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    #: Micro-batches of an iteration; the mean over them is only that over the samples where they are equally large.
    accumulate: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be walked through.

        Raises:
            SettingError: a number is out of bounds, or micro-batches could not be equally large.
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
                "micro-batches are equally large"
            )
        rest = self.samples % self.global_batch
        if rest % self.accumulate and not self.drop_last:
            raise SettingError(
                f"the last iteration of an epoch has {rest} of the {self.samples} samples, which cannot be "
                f"{self.accumulate} equally large micro-batches: pass drop_last=True, or another global_batch"
            )
        if self.drop_last and self.samples < self.global_batch:
            raise SettingError(
                f"drop_last=True and global_batch={self.global_batch}: the data set has only {self.samples} samples"
            )

    @property
    def steps(self) -> int:
        """Iterations in an epoch."""
        if self.drop_last:
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    def size(self, step: int) -> int:
        """Samples in iteration ``step`` of an epoch; it may be past its end, and is then one of the next."""
        begin = step % self.steps * self.global_batch
        return min(self.global_batch, self.samples - begin)

    def checksum(self, epoch: int) -> int:
        """Tells whether others have the same permutation of an epoch."""
        return zlib.crc32(self.permutation(epoch).numpy().tobytes()) if self.shuffle else 0

    def permutation(self, epoch: int) -> torch.Tensor:
        """The order of all samples in an epoch, int64, shape (samples,)."""
        if not self.shuffle:
            return torch.arange(self.samples)
        generator = torch.Generator()
        generator.manual_seed((self.seed + epoch * _EPOCH_STRIDE) % 2**63)
        return torch.randperm(self.samples, generator=generator)
