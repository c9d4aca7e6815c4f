"""Values on which ranks agree, at the start and for each iteration: names of workers, and given plans."""

import os
from collections import Counter
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.exchange import given_plans
from evenstep.samples.order import Order
from evenstep.settings.settings import Settings
from evenstep.start.agreement import group_name, numbered
from ranks import run_ranks
from training import SAMPLES, Samples, difference, loss_of, network, one_process, parameters, sgd


def own_plans(rank: int) -> tuple[list[int], list[list[float]]]:
    """Each rank has its own plans."""
    job = evenstep.init(plan=lambda at: [6, 5, 5] if at == 1 else [[12, 3, 1], [2, 4, 10], [0, 8, 8]][rank])
    loader = job.loader(Samples(), global_batch=16)
    model = job.wrap(DistributedDataParallel(network()))
    optimizer = sgd(model)
    computed: list[int] = []
    for _ in range(2):
        for x, y, indices in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            computed += indices.tolist() if loader.latest.local_batch else []
    return computed, parameters(model)


def test_given_plans_that_differ_between_ranks_are_one_plan() -> None:
    ranks = run_ranks(3, own_plans)
    times = Counter(index for computed, _ in ranks for index in computed)
    assert times == dict.fromkeys(range(SAMPLES), 2)
    for _, trained in ranks:
        assert difference(trained, one_process()) <= 1e-13


def test_the_store_keeps_a_bounded_number_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_plans, "_KEPT", 3)
    store = HashStore()
    first = given_plans.AgreedPlans(lambda at: [1, at], store, "plans", deletes=True)
    second = given_plans.AgreedPlans(lambda at: [2, at], store, "plans", deletes=False)
    before = store.num_keys()
    for iteration in range(20):
        one, other = (second, first) if iteration % 2 else (first, second)
        assert one(iteration) == other(iteration) == [1 + iteration % 2, iteration]
    assert store.num_keys() - before == 3
    store.delete_key("plans/19")
    assert second(19) == [2, 19], "plans are remembered"


def test_an_iteration_that_was_read_after_the_end_of_the_store_does_not_begin() -> None:
    """A loop that reads ahead reads over its end, when the process that has the store may have ended."""
    host = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("localhost", host.port, is_master=False, wait_for_workers=False)
    plans = given_plans.AgreedPlans(lambda at: [at, 1], store, "plans", deletes=False)
    assert plans(3) == [3, 1]
    del host
    assert plans(4) == [4, 1]
    plans.check(3)
    for iteration in (4, 5):
        with pytest.raises(evenstep.EvenstepError, match=f"iteration {iteration}: the store"):
            plans.check(iteration)


def test_only_whole_numbers_are_batches() -> None:
    batches: list[Any] = [torch.tensor(8), 8.5]
    plans = given_plans.AgreedPlans(lambda _: batches, HashStore(), "plans", deletes=False)
    assert plans(0) == [8, 8.5]
    with pytest.raises(evenstep.SettingError, match="of iteration 0: batches must be multiples"):
        given_plans.given_plans(plans, Order(SAMPLES, 16), [None, None], 0)


def name_of_this_rank(rank: int, is_planned: bool) -> tuple[str, int]:
    # As torch.multiprocessing.spawn starts processes.
    del os.environ["LOCAL_RANK"]
    job = evenstep.init(plan=[8, 8] if is_planned else None)
    job.loader(Samples(), global_batch=16)
    assert job._life.opened
    assert [worker["worker"] for worker in job._life.opened.workers][rank] == job._life.options.settings.worker
    return job._life.options.settings.worker, job._life.options.settings.local_rank


@pytest.mark.parametrize("is_planned", [True, False])
def test_ranks_without_a_launcher_number_themselves(*, is_planned: bool) -> None:
    (first, zero), (second, one) = run_ranks(2, name_of_this_rank, is_planned)
    assert (zero, one) == (0, 1)
    assert first.removesuffix("/0") == second.removesuffix("/1")


def test_only_ranks_with_the_same_place_are_numbered() -> None:
    def place(host: str, **environ: str) -> Settings:
        return Settings.read(environ, host)

    def names(*everyone: Settings) -> list[str]:
        return [own.worker for own in numbered(everyone)]

    assert names(place("a"), place("b"), place("a"), place("b")) == ["a/0", "b/0", "a/1", "b/1"]
    assert names(place("a", SLURM_LOCALID="1"), place("a", SLURM_LOCALID="0")) == ["a/1", "a/0"], "srun numbers tasks"
    assert names(place("a", SLURM_LOCALID="0"), place("a", SLURM_LOCALID="0")) == ["a/0", "a/1"], "one task, two ranks"
    assert names(place("a", LOCAL_RANK="0"), place("a", LOCAL_RANK="0")) == ["a/0", "a/0"], "torchrun numbers all"
    assert names(place("a", EVENSTEP_WORKER="mine/7"), place("a")) == ["mine/7", "a/1"]


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        (["a/0"], "a/0"),
        (["a/0", "a/1", "a/2", "a/3"], "a/0-3"),
        (["a/0", "a/2", "b/0", "b/2"], "a/0:2:b/0:2"),
        (["a/0", "b/0"], "a/0:b/0"),
        (["x", "y"], "x:y"),
        (["a/9", "a/10"], "a/9-10"),
        ([f"node-{at}/0" for at in range(64)], "node-0/0:64-ranks"),
        (["n" * 126 + "/0", "n" * 126 + "/1"], "n" * 126 + "/0"),
    ],
)
def test_a_worker_of_several_ranks_is_named_after_them(ranks: list[str], name: str) -> None:
    assert group_name(ranks) == name
