"""The records of the ranks of `paced.py`, and the losses that `elastic.py` printed."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

#: Global batch and number of iterations of `elastic.py`.
GLOBAL_BATCH = 256
ITERATIONS = 3 * 16_384 // GLOBAL_BATCH


@dataclass(frozen=True)
class Computed:
    """The part of an iteration that a rank computed."""

    group: str
    ranks: int
    iteration: int
    offset: int
    local_batch: int
    job: str | None


def allow(file: Path, iteration: float) -> None:
    """Lets the ranks of `paced.py` compute up to this iteration; then they wait."""
    file.with_suffix(".partial").write_text(str(iteration))
    file.with_suffix(".partial").replace(file)


def read(folder: Path) -> list[Computed]:
    """Returns all records of a run."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [Computed(**json.loads(line)) for line in lines]


def check_samples(records: list[Computed]) -> None:
    """Checks that the ranks computed each sample of each iteration exactly once.

    Ranks that are killed may leave an iteration incomplete; then later ones compute it again.
    """
    parts: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        parts[record.iteration][record.group].append((record.offset, record.offset + record.local_batch))
    assert sorted(parts) == list(range(ITERATIONS))
    for iteration, groups in parts.items():
        is_complete = False
        for ranges in groups.values():
            ends = sorted(ranges)
            for (_, end), (begin, _) in pairwise(ends):
                assert end <= begin, f"two ranks computed the same samples of iteration {iteration}: {ends}"
            is_complete |= sum(end - begin for begin, end in ends) == GLOBAL_BATCH
        assert is_complete, f"no group of ranks computed all samples of iteration {iteration}: {dict(groups)}"


def losses(said: str) -> dict[int, list[float]]:
    """Returns the losses by iteration, several if it was computed again."""
    found: dict[int, list[float]] = defaultdict(list)
    for iteration, loss in re.findall(r"iteration (\d+): loss ([\d.]+)", said):
        found[int(iteration)].append(float(loss))
    return found


def check_losses(said: str, undisturbed: str) -> None:
    """Checks that all losses equal an undisturbed run: the samples and the parameters were the same."""
    expected, found = losses(undisturbed), losses(said)
    assert sorted(found) == sorted(expected)
    for iteration, (loss,) in expected.items():
        # Sums of other parts round differently.
        assert found[iteration] == pytest.approx([loss] * len(found[iteration]), abs=1e-7), iteration
