"""The time of whole steps."""

import pytest

from evenstep.exchange.whole_step import WholeSteps


def test_time_is_that_of_the_samples_of_the_last_iteration() -> None:
    """A report stands for three whole iterations and a short one; each sample took 10 ms."""
    steps = WholeSteps()
    first = steps.passed([32], None, 5.0)
    assert first
    assert first.step_time_s is None, "when the first iteration began is not known"
    for samples, ended_s, step_time_s, iterations in [
        ([32], 5.32, 0.32, 1.0),
        ([32, 32, 32, 8], 6.36, 0.08, 13.0),
        ([8, 32, 32], 7.08, 0.32, 2.25),
    ]:
        whole = steps.passed(samples, None, ended_s)
        assert whole
        assert whole.step_time_s == pytest.approx(step_time_s)
        assert whole.iterations == iterations


def test_a_validation_between_epochs_is_not_part_of_a_step() -> None:
    """A validation of 100 s follows the first epoch. The loader of the second one takes 0.4 s to start."""
    steps = WholeSteps()
    first = steps.passed([32], 4.5, 5.0)
    assert first
    assert first.step_time_s == pytest.approx(0.5)
    second = steps.passed([32], 105.0, 105.9)
    assert second
    assert second.step_time_s == pytest.approx(0.9)


def test_a_loop_that_reads_ahead_counts_no_time_twice() -> None:
    """The loop requests the second epoch while the last iteration of the first one still computes."""
    steps = WholeSteps()
    steps.passed([32], 4.5, 5.0)
    second = steps.passed([32], 4.8, 5.5)
    assert second
    assert second.step_time_s == pytest.approx(0.5)


def test_nothing_is_said_without_samples_or_time() -> None:
    """A rank may report an iteration without samples; a clock may not advance."""
    steps = WholeSteps()
    steps.passed([32], None, 5.0)
    assert steps.passed([32, 0], None, 6.0) is None
    whole = steps.passed([32], None, 6.0)
    assert whole
    assert whole.step_time_s is None
    assert steps.passed([], None, 7.0) is None
