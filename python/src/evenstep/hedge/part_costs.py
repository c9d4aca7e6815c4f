"""The cost of an iteration's shares and chunks, if samples have costs."""

from evenstep._native import Share
from evenstep.samples.costs import CutIteration
from evenstep.samples.work import Work


class PartCosts:
    """The passes of each share and chunk, and the cost that this rank has computed."""

    def __init__(self, cut: CutIteration) -> None:
        """Starts without computed work."""
        chunks = cut.plan.tail.chunks if cut.plan.tail else []
        self._parts: dict[int, tuple[tuple[int, ...], Work]] = {}
        offset = 0
        sizes = [*cut.plan.batches, *chunks]
        for samples, passes, work in zip(sizes, cut.passes, cut.works, strict=True):
            if samples:
                self._parts[offset] = passes, work
            offset += samples
        #: The work of all computed shares and chunks.
        self.computed = Work(0.0, 0.0, cut.share)
        #: The work of the computed chunks.
        self.claimed = self.computed

    def passes(self, part: Share) -> tuple[int, ...]:
        """Returns the number of samples of each pass of a share or chunk."""
        return self._parts[part.offset][0] if part.local_batch else ()

    def compute(self, part: Share, *, is_claimed: bool) -> None:
        """Records that this rank has computed a share or chunk."""
        if part.local_batch:
            work = self._parts[part.offset][1]
            self.computed += work
            if is_claimed:
                self.claimed += work
