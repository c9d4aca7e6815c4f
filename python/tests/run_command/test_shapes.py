"""`evenstep run` on loops of many shapes: they equal the script's own run, balanced or with the batches left alone."""

from collections.abc import Callable
from typing import Any

import later_shapes
import pytest
import shapes
import torch
from shapes import train
from torch.nn.functional import mse_loss

from ranks import preload, run_ranks

preload("evenstep.run_command.script", "shapes", "later_shapes")

BALANCED = shapes.BALANCED + later_shapes.BALANCED
WATCHED = shapes.WATCHED | later_shapes.WATCHED

ENVIRON = {"EVENSTEP_RUN": '{"plan": [3, 1], "max_batch": [], "watch": false}'}


def compared(_: int, shapes: tuple[Callable[..., Any], ...]) -> list[tuple[float, bool, str]]:
    """Returns the difference to the script's own run, whether it was balanced, and why not, for each shape."""
    from evenstep.run_command import hook  # noqa: PLC0415  # On a rank.
    from evenstep.run_command.script import Script  # noqa: PLC0415

    def followed(model: Any) -> Any:
        hook.made(model)
        return model

    found = []
    for shape in shapes:
        own = [parameter.detach() for parameter in shape(lambda model: model).parameters()]
        run = [parameter.detach() for parameter in shape(followed).parameters()]
        script = Script.current
        assert script is not None
        script._ends()
        largest = max((a - b).abs().max().item() for a, b in zip(own, run, strict=True))
        assert all(parameter.isfinite().all() for parameter in run)
        found.append((largest, script._balance is not None, script._why_not or script._odd))
    return found


@pytest.fixture(scope="module")
def watched() -> dict[Callable[..., Any], Any]:
    return dict(zip(WATCHED, run_ranks(2, compared, tuple(WATCHED), environ=ENVIRON)[0], strict=True))


@pytest.mark.parametrize("shape", WATCHED, ids=lambda shape: shape.__name__)
def test_what_cannot_be_balanced_is_watched_with_the_reason(shape: Callable[..., Any], watched: Any) -> None:
    difference, is_balanced, why_not = watched[shape]
    assert (difference, is_balanced) == (0.0, False)
    assert WATCHED[shape] in why_not


def test_what_can_be_balanced_equals_the_script() -> None:
    for shape, (difference, is_balanced, why_not) in zip(
        BALANCED, run_ranks(2, compared, BALANCED, environ=ENVIRON)[0], strict=True
    ):
        assert is_balanced, f"{shape.__name__}: {why_not}"
        assert difference < 1e-12, shape.__name__
        assert torch.get_default_dtype() == torch.float32


def ended(_: int) -> list[tuple[str, bool]]:
    """Returns how each shape ends, and whether it was balanced before."""
    from evenstep.errors import EvenstepError  # noqa: PLC0415  # On a rank.
    from evenstep.run_command import hook  # noqa: PLC0415
    from evenstep.run_command.script import Script  # noqa: PLC0415

    def followed(model: Any) -> Any:
        hook.made(model)
        return model

    found = []
    for shape in later_shapes.ENDED:
        try:
            shape(followed)
            told = "no error"
        except EvenstepError as error:
            told = str(error)
        script = Script.current
        assert script is not None
        script._reader = None
        script._ends()
        found.append((told, script._balance is not None))
    return found


def test_what_needs_equal_batches_later_ends_with_the_reason() -> None:
    for found in run_ranks(2, ended, environ=ENVIRON):
        for (shape, reason), (told, is_balanced) in zip(later_shapes.ENDED.items(), found, strict=True):
            assert is_balanced, shape.__name__
            assert reason in told, f"{shape.__name__}: {told}"
            assert "--watch" in told or shape is later_shapes.cycles, told


def leaves_early(_: int) -> str:
    """Rank 1, whose batches are short, leaves each epoch at once; rank 0 waits for its gradients."""
    from evenstep.errors import UnsupportedError  # noqa: PLC0415  # On a rank.
    from evenstep.run_command import hook, meetings  # noqa: PLC0415

    meetings.PATIENCE_S = 1.0

    def followed(model: Any) -> Any:
        hook.made(model)
        return model

    try:
        later_shapes.leaves_at_a_short_batch(followed)
    except (UnsupportedError, RuntimeError) as error:
        return str(error)
    return "no error"


def test_a_rank_that_leaves_an_epoch_alone_ends_with_an_error() -> None:
    assert "rank 1 left the epoch after 7 of 8 batches" in run_ranks(2, leaves_early, environ=ENVIRON)[1]


def shows_its_size_later(_: int) -> str:
    """Trains with a loss whose factor depends on the batch in a way that its first batches do not show."""
    from evenstep.errors import UnsupportedError  # noqa: PLC0415  # On a rank.
    from evenstep.run_command import hook  # noqa: PLC0415

    def followed(model: Any) -> Any:
        hook.made(model)
        return model

    with pytest.raises(UnsupportedError) as refused:
        train(followed, lambda y, target, x: mse_loss(y, target) * len(x) ** 2 * 1e-3)
    return str(refused.value)


def test_a_loss_that_depends_on_the_size_ends_the_run_before_its_step() -> None:
    for told in run_ranks(2, shows_its_size_later, environ=ENVIRON):
        assert "another loss than with the script's own batches" in told
