"""Uneven batches give the parameters of one process, and every sample occurs exactly once per epoch."""

from collections import Counter

import pytest

from ranks import run_ranks
from training import EPOCHS, PLANS, SAMPLES, difference, one_process, train, train_stock

#: The required accuracy, in float64.
TOLERANCE = 1e-14


@pytest.mark.parametrize("plan", PLANS)
def test_uneven_batches_train_as_one_process_does(plan: str) -> None:
    ranks = run_ranks(3, train, plan)
    reference = one_process()
    for trained in ranks:
        assert difference(trained.parameters, reference) <= TOLERANCE
    times = Counter(sample for trained in ranks for sample in trained.seen)
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)
    stock = difference(run_ranks(3, train_stock, plan)[0], reference)
    print(f"{plan}: {difference(ranks[0].parameters, reference):.1e}; stock DDP {stock:.2g}")
    assert stock > 1e-3, "without weights it is not the gradient of one process"
