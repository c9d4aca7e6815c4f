"""The time of whole steps."""

import pytest

from evenstep.whole_step import WholeStep, WholeSteps


def test_time_is_that_of_the_samples_of_the_last_iteration() -> None:
    """A report stands for three whole iterations and a short one; each sample took 10 ms."""
    steps = WholeSteps()
    assert steps.passed([32], 5.0) is None, "when the first iteration began is not known"
    assert steps.passed([32], 5.32) == WholeStep(pytest.approx(0.32), 1.0)
    assert steps.passed([32, 32, 32, 8], 6.36) == WholeStep(pytest.approx(0.08), 13.0)
    assert steps.passed([8, 32, 32], 7.08) == WholeStep(pytest.approx(0.32), 2.25)


def test_nothing_is_said_without_samples_or_time() -> None:
    """A rank may report an iteration without samples; a clock may not advance."""
    steps = WholeSteps()
    steps.passed([32], 5.0)
    assert steps.passed([32, 0], 6.0) is None
    assert steps.passed([32], 6.0) is None
    assert steps.passed([], 7.0) is None
