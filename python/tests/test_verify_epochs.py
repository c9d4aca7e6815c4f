"""`evenstep verify` trains two epochs, and finds losses that are no mean over samples."""

from pathlib import Path

import pytest

from test_verify import LOADER, LOSS, advice, script, status, verified

LOOP = "for epoch in range(2):\n    for x, y in loader:"

#: Labels of three classes.
LABELS = "y.abs().argmax(1)"


def test_epochs_are_compared(tmp_path: Path) -> None:
    told = ("    for x, y in loader:", "    Path(f'{sys.argv[1]}-{epoch}').touch()\n    for x, y in loader:")
    verdict = verified(script(tmp_path, told), steps=3)
    assert verdict.result == "agree"
    assert "3 iterations" in verdict.checks[0].found
    assert status(verdict, "epochs") == "absent"
    assert (tmp_path / "end-1").exists(), "the second epoch begins"
    assert not (tmp_path / "end").exists(), "and is left"


def test_an_epoch_of_exactly_the_compared_iterations_is_shortened(tmp_path: Path) -> None:
    told = ("    for x, y in loader:", "    Path(f'{sys.argv[1]}-{epoch}').touch()\n    for x, y in loader:")
    verdict = verified(script(tmp_path, told), steps=13)
    assert verdict.result == "agree"
    assert (tmp_path / "end-1").exists(), "the second epoch begins"


def test_kept_batches_differ(tmp_path: Path) -> None:
    cycle = "import itertools\nfor x, y in itertools.islice(itertools.cycle(loader), 100):\n    if True:"
    verdict = verified(script(tmp_path, (LOOP, cycle)))
    assert verdict.result != "agree"
    assert not (tmp_path / "end").exists(), "the steps have a limit"
    if verdict.result == "differ":
        assert "itertools.cycle" in advice(verdict, "gradients")


def test_an_order_that_only_ranks_change_differs(tmp_path: Path) -> None:
    """The first epochs are the same."""
    own = f"{LOADER[:-1]}, order=lambda epoch: list(range(epoch * 40 * (dist.get_world_size() > 1), 205))[:150])"
    verdict = verified(script(tmp_path, (LOADER, own)), steps=4)
    assert verdict.result == "differ"
    assert status(verdict, "samples") == "failed"
    assert "iteration 2" in next(check.found for check in verdict.checks if check.name == "samples")


def test_a_script_of_one_epoch_is_told(tmp_path: Path) -> None:
    verdict = verified(script(tmp_path, ("range(2)", "range(1)")))
    assert verdict.result == "agree"
    assert status(verdict, "epochs") == "warning"


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        pytest.param(f"cross_entropy(model(x), {LABELS}, weight=torch.tensor([.1, 1, 9]).double())", "weight=", id="w"),
        pytest.param(f"cross_entropy(model(x), {LABELS}.where(x[:, 0] > 0, -100))", "ignore_index=-100", id="i"),
    ],
)
def test_a_loss_that_is_no_mean_over_samples_is_named(tmp_path: Path, loss: str, named: str) -> None:
    verdict = verified(script(tmp_path, (LOSS, loss), ("import mse_loss", "import cross_entropy, mse_loss")), steps=2)
    assert verdict.result == "differ"
    assert named in advice(verdict, "gradients")
