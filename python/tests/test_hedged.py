"""Hedged steps on real ranks: the parameters of one process, and every sample exactly once."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

import evenstep
import hedging
from evenstep.samples.order import Order
from hedging import Hedged
from ranks import run_ranks
from training import EPOCHS, GLOBAL_BATCH, SAMPLES, Samples, difference, loss_of, network, one_process

#: The required accuracy, in float64; the order of additions differs from one process.
TOLERANCE = 1e-14


def check(ranks: Sequence[Hedged], reference: list[list[float]], samples: int = SAMPLES, epochs: int = EPOCHS) -> None:
    """Checks that all ranks have the parameters of one process, and that every sample occurs once per epoch."""
    for trained in ranks:
        assert difference(trained.parameters, reference) <= TOLERANCE
        assert trained.parameters == ranks[0].parameters
    assert Counter(sample for trained in ranks for sample in trained.seen) == dict.fromkeys(range(samples), epochs)
    print(f"difference {difference(ranks[0].parameters, reference):.1e}; claimed {[own.claimed for own in ranks]}")


@pytest.mark.parametrize("tail", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("plan", ["6/5/5", "12/3/1", "13/3/0"])
def test_hedged_steps_train_as_one_process_does(plan: str, tail: float) -> None:
    ranks = run_ranks(3, hedging.train, plan, {"tail": tail})
    check(ranks, one_process())
    assert [own.tails for own in ranks] == [EPOCHS * math.ceil(SAMPLES / GLOBAL_BATCH)] * 3
    assert sum(own.claimed for own in ranks) >= EPOCHS * math.floor(tail * GLOBAL_BATCH)


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("13/3/0", {}),
        (None, {"global_batch": 16, "tail": 0.5}),
        ("changing", {"tail": 0.3, "micro_batch": 2}),
        ("6/5/5", {"tail": 0.5, "min_chunk": 3, "shuffle": False, "drop_last": True}),
    ],
    ids=["without a tail", "even shares", "small passes", "in order, whole iterations"],
)
def test_whatever_is_asked_for_it_trains_as_one_process_does(plan: str | None, options: dict[str, object]) -> None:
    ranks = run_ranks(3, hedging.train, plan, options)
    order = Order(SAMPLES, GLOBAL_BATCH, shuffle=bool(options.get("shuffle", True)), drop_last="drop_last" in options)
    check(ranks, one_process(order=order), samples=order.steps * GLOBAL_BATCH if order.drop_last else SAMPLES)


def test_the_model_may_be_wrapped_after_steps_are_made() -> None:
    check(run_ranks(3, hedging.train_wrapped_late), one_process())


def test_a_loss_may_be_a_sum() -> None:
    check(run_ranks(3, hedging.train_on_sums), one_process())


def test_another_communication_hook_is_refused_on_all_ranks() -> None:
    said = run_ranks(2, hedging.train_with_an_inner_hook)
    assert all("inner" in told for told in said), said


def test_who_is_ten_times_as_slow_is_helped_and_nothing_changes() -> None:
    ranks = run_ranks(3, hedging.train_paced, [2e-4, 2e-3, 2e-4])
    check(ranks, one_process())
    assert sum(own.claimed > 0 for own in ranks) > 1


def test_a_checkpoint_in_the_middle_of_an_epoch_goes_on() -> None:
    check(run_ranks(3, hedging.train_resumed, 5), one_process())


@pytest.mark.skipif(torch.__version__ < "2.9", reason="DDP of this PyTorch cannot broadcast complex parameters")
def test_a_model_of_complex_parameters() -> None:
    model, data = hedging.Complex(), Samples()
    loss_of(model, data.x[:16], data.y[:16]).backward()
    assert model.weight.grad is not None
    expected = [torch.view_as_real(model.weight.grad).flatten().tolist()]
    for gradient in run_ranks(2, hedging.train_complex):
        assert difference(gradient, expected) <= 1e-13


def test_a_rank_that_fails_ends_the_others() -> None:
    became = run_ranks(3, hedging.train_until_one_fails)
    assert became[1] == "failed"
    assert "done" not in became


def test_no_rank_steps_where_samples_are_missing() -> None:
    became = run_ranks(3, hedging.train_with_different_plans)
    assert became == ["5: iteration 5: the ranks computed [6, 5, 3] samples; the sum must be 16"] * 3


def test_running_statistics_are_alike_on_all_ranks() -> None:
    first, *others = run_ranks(3, hedging.batch_norm)
    assert all(other == first for other in others)
    assert any(abs(mean) > 1e-3 for mean in first[1][0])


def test_the_predictor_hedges_where_speeds_change(predictor: str, job_id: str) -> None:
    samples, global_batch = 64 * 48 + 21, 48
    ranks = run_ranks(3, hedging.train_with_predictor, predictor, job_id, samples, global_batch)
    check(ranks, one_process(epochs=1, order=Order(samples, global_batch)), samples, 1)
    print(f"{ranks[0].tails} of 65 iterations had a tail")
    assert ranks[0].tails > 0
    assert sum(own.claimed > 0 for own in ranks) > 1


# One process, as when trying a script.


def test_one_process_needs_no_group() -> None:
    job, model = evenstep.init(), network()
    check([hedging.run_epochs(job, model, global_batch=16, tail=0.5)], one_process())
    job.close()


def test_an_iteration_that_is_left_early_is_refused() -> None:
    job, model = evenstep.init(), network()
    steps = iter(job.steps(Samples(), global_batch=16, tail=0.5, model=model))
    x, y, _ = next(iter(next(steps)))
    loss_of(model, x, y).backward()
    with pytest.raises(evenstep.DivergedError, match="left before its end"):
        next(steps)
    job.close()


def test_what_cannot_be_is_refused() -> None:
    data, model = Samples(), network()
    job = evenstep.init(server="off")
    with pytest.raises(evenstep.SettingError, match="micro_batch=0"):
        job.steps(data, global_batch=16, micro_batch=0)
    with pytest.raises(evenstep.SettingError, match="min_chunk=4: there is no tail"):
        job.steps(data, global_batch=16, min_chunk=4)
    with pytest.raises(evenstep.SettingError, match="the predictor sets the tail"):
        evenstep.init(server="http://127.0.0.1:1", job="test").steps(data, global_batch=16, tail=0.5)
    steps = job.steps(data, global_batch=16, tail=0.5)
    with pytest.raises(evenstep.SettingError, match="has no model"):
        next(iter(steps))
    with pytest.raises(evenstep.SettingError, match="cannot be changed after the run has started"):
        job.steps(data, global_batch=16, tail=0.25)
    with pytest.raises(evenstep.UnsupportedError, match="SyncBatchNorm"):
        next(iter(job.steps(data, global_batch=16, tail=0.5, model=torch.nn.SyncBatchNorm(8))))
    with pytest.raises(evenstep.UnsupportedError, match="no parameter"):
        next(iter(job.steps(data, global_batch=16, tail=0.5, model=torch.nn.Tanh())))
    step = next(iter(job.steps(data, global_batch=16, tail=0.5, model=model)))
    for x, y, _ in step:
        loss_of(model, x, y).backward()
    with pytest.raises(evenstep.SettingError, match="already iterated"):
        next(iter(step))
    job.close()
