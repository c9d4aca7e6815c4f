"""Measured costs: each rank measures its part once, and a file has them in the next run."""

import logging
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

import evenstep
from ranks import run_ranks

LENGTHS = [1.0 + index % 37 for index in range(1000)]


class Texts(Dataset[str]):
    """Texts, and the indices that were read."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> str:
        self.read.append(index)
        return "x" * int(self.factor * LENGTHS[index])


def parts(rank: int, folder: Path) -> tuple[list[int], list[float], list[int]]:
    """Returns the indices that a rank reads first, the costs, and the indices with a file that only rank 0 has."""
    texts = Texts()
    found = evenstep.measure_costs(texts, len)
    first, texts.read = texts.read, []
    cache = folder / f"rank-{rank}" / "lengths.pt"
    if rank == 0:
        cache.parent.mkdir()
        torch.save(found, cache)
    assert torch.equal(evenstep.measure_costs(texts, len, cache=cache), found)
    return first, found.tolist(), texts.read


def test_each_rank_measures_its_part(tmp_path: Path) -> None:
    """If a file is missing on a host, all ranks measure again, because each needs the parts of the others."""
    done = run_ranks(3, parts, tmp_path)
    assert sorted(index for first, _, _ in done for index in first) == list(range(len(LENGTHS)))
    assert all(found == LENGTHS for _, found, _ in done)
    again = [set(read) for _, _, read in done]
    assert set.union(*again) == set(range(len(LENGTHS)))
    assert all(len(read) < len(LENGTHS) / 2 for read in again)


def test_worker_processes_measure_the_same() -> None:
    assert evenstep.measure_costs(Texts(), len, num_workers=2).tolist() == LENGTHS


def test_a_file_replaces_the_measurement_as_long_as_it_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, texts = tmp_path / "new" / "lengths.pt", Texts()
    found = evenstep.measure_costs(texts, len, cache=cache)
    texts.read.clear()
    assert torch.equal(evenstep.measure_costs(texts, len, cache=cache), found)
    assert len(texts.read) == 32
    assert [path.name for path in cache.parent.iterdir()] == ["lengths.pt"]
    with caplog.at_level(logging.WARNING):
        assert torch.equal(evenstep.measure_costs(Texts(2), len, cache=cache), 2 * found)
        assert "sample 0 costs 2, not 1; the file is written again" in caplog.text
        assert torch.equal(torch.load(cache, weights_only=True), 2 * found)
        cache.write_bytes(b"torn")
        assert torch.equal(evenstep.measure_costs(texts, len, cache=cache), found)
        assert "is not readable and is written again" in caplog.text
        torch.save(found[1:].clone(), cache)
        assert torch.equal(evenstep.measure_costs(texts, len, cache=cache), found)
        assert "does not have the costs of 1000 samples" in caplog.text


def test_a_wrong_cost_is_named_and_stores_nothing(tmp_path: Path) -> None:
    with pytest.raises(evenstep.SettingError, match="cost of sample 0 is -1: must be a finite number above 0"):
        evenstep.measure_costs(Texts(), lambda _: -1, cache=tmp_path / "lengths.pt")
    assert not list(tmp_path.iterdir())
