"""Samples with costs: shares of the cost, each sample once, and the gradient of one process."""

import dataclasses
import itertools
import json
import math
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

import evenstep
from documents import (
    LENGTHS,
    SAMPLES,
    Documents,
    Net,
    Read,
    counted,
    iterations,
    loss_of,
    one_process,
    order_of,
    packed,
    train,
)
from evenstep.samples.costs import Costs
from evenstep.samples.epoch import Epoch
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress
from programs import fetch_json
from ranks import run_ranks
from training import EPOCHS, difference, parameters, sgd

TOLERANCE = 1e-13

LOADERS: dict[str, dict[str, Any]] = {
    "samples": {"global_batch": 16},
    "tokens": {"global_tokens": 300},
    "micro-batches": {"global_batch": 24, "accumulate": 2},
    "packed": {"global_tokens": 500, "max_tokens": 60},
    "padded": {"global_batch": 24, "max_tokens": 80, "layout": "padded"},
    "attention": {"global_tokens": 500, "max_tokens": 60, "hidden_size": 2},
    "in order": {"global_batch": 16, "shuffle": False},
}


def ratios(iteration: int) -> list[int]:
    """Plans in no particular unit. One rank has no share in some iterations."""
    return [[500, 300, 200], [1, 1, 2], [3, 0, 1], [90, 7, 3]][iteration % 4]


def merged(ranks: list[Read]) -> dict[int, list[int]]:
    """Returns the samples of all ranks by iteration."""
    found: dict[int, list[int]] = {}
    for read in ranks:
        for iteration, samples in read.samples.items():
            found.setdefault(iteration, []).extend(samples)
    return {iteration: sorted(found[iteration]) for iteration in sorted(found)}


@pytest.mark.parametrize("name", LOADERS)
def test_it_is_the_gradient_of_one_process(name: str) -> None:
    options = LOADERS[name]
    order = order_of(**options)
    if name == "in order":
        order = Order(SAMPLES, 16, shuffle=False, costs=order.costs)
    reference = one_process(order)
    ranks = run_ranks(3, train, ratios, options)
    for read in ranks:
        assert difference(read.parameters, reference) <= TOLERANCE
    expected = [sorted(samples) for epoch in range(EPOCHS) for samples in iterations(order, epoch)]
    assert list(merged(ranks).values()) == expected, "each sample once, in its iteration"
    if limit := options.get("max_tokens"):
        passes = [tokens for read in ranks for tokens in read.passes]
        assert max(passes) <= limit
        assert len(passes) > len(expected) * 2, "iterations have several passes"


def test_shares_follow_the_plan_by_cost() -> None:
    ranks = run_ranks(3, train, [4, 2, 2], {"global_batch": 48})
    for iteration, samples in merged(ranks).items():
        costs = [sum(LENGTHS[at] for at in read.samples[iteration]) for read in ranks]
        if len(samples) == 48:
            # The smallest document has one token.
            assert (
                max(abs(cost / sum(costs) - share) for cost, share in zip(costs, (0.5, 0.25, 0.25), strict=True)) < 0.01
            )


def test_a_budget_takes_samples_in_order_until_the_next_would_exceed_it() -> None:
    order = order_of(global_tokens=100)
    whole = Epoch(order, 0).indices(0, SAMPLES)
    assert sorted(whole) == list(range(SAMPLES))
    read = iterations(order, 0)
    assert [at for samples in read for at in samples] == whole
    sums = [sum(LENGTHS[at] for at in samples) for samples in read]
    assert max(sums) <= 100
    for samples, after in itertools.pairwise(read):
        assert sum(LENGTHS[at] for at in samples) + LENGTHS[after[0]] > 100
    assert len(Epoch(order, 0)) == len(read)


@pytest.mark.parametrize("name", ["samples", "packed"])
def test_a_run_resumes_within_an_epoch_with_other_ranks(name: str) -> None:
    options = LOADERS[name]
    begun = run_ranks(3, train, ratios, options, None, 4)
    state = begun[0].state
    assert all(read.state == state for read in begun)
    assert len(json.dumps(state)) < 1000
    resumed = run_ranks(2, train, [1, 3], options, state)
    samples = [*merged(begun).values(), *merged(resumed).values()]
    order = order_of(**options)
    expected = [sorted(own) for epoch in range(EPOCHS) for own in iterations(order, epoch)]
    # The resumed run trains for as many epochs as the whole one.
    assert samples[: len(expected)] == expected


def test_a_checkpoint_without_costs_is_refused() -> None:
    job = evenstep.init(plan=[1])
    job.loader(Documents(), cost=LENGTHS, global_batch=8, collate_fn=packed)
    state = job.state_dict()
    assert state.pop("with_costs")
    with pytest.raises(evenstep.SettingError, match="with_costs: the state has False but the loader has True"):
        job.load_state_dict(state)


def hedged(_rank: int, plan: Any, options: dict[str, Any]) -> tuple[Read, int]:
    """Returns the samples of a rank, and the number of iterations in which it claimed a chunk."""
    job, read = evenstep.init(plan=plan), Read()
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    optimizer, claimed = sgd(model), 0
    for _ in range(EPOCHS):
        for step in job.steps(Documents(), cost=LENGTHS, collate_fn=packed, **options):
            base = step.step.local_batch
            own = read.samples.setdefault(step.step.iteration, [])
            for batch in step:
                job.count(counted(batch))
                loss_of(model, batch).backward()
                own += batch["index"].tolist()
                read.passes.append(batch["tokens"].numel())
            claimed += len(own) > base
            optimizer.step()
    read.parameters = parameters(model)
    return read, claimed


@pytest.mark.parametrize("limit", [None, 90])
def test_base_batches_and_chunks_are_cut_by_cost(limit: int | None) -> None:
    options: dict[str, Any] = {"global_tokens": 700, "tail": 0.4, "min_chunk": 30, "max_tokens": limit}
    reference = one_process(order_of(**options))
    ranks = run_ranks(3, hedged, [500, 300, 200], options)
    for read, _ in ranks:
        assert difference(read.parameters, reference) <= TOLERANCE
    expected = [sorted(own) for epoch in range(EPOCHS) for own in iterations(order_of(**options), epoch)]
    assert list(merged([read for read, _ in ranks]).values()) == expected
    assert sum(claimed for _, claimed in ranks) > 0, "chunks are claimed"
    if limit:
        assert max(tokens for read, _ in ranks for tokens in read.passes) <= limit


def served(rank: int, collate: Any = packed) -> int:
    """Trains with a predictor, and returns the number of iterations."""
    job = evenstep.init()
    loader = job.loader(Documents(), cost=LENGTHS, global_tokens=300, collate_fn=collate)
    model = job.wrap(DistributedDataParallel(Net()), loss="tokens")
    optimizer = sgd(model)
    for _ in range(4):
        for batch in loader:
            job.count(counted(batch))
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    job.close()
    return loader.latest.iteration + rank * 0


def test_the_predictor_plans_and_learns_in_tokens(predictor: str) -> None:
    environ = {"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": "costs"}
    done = run_ranks(2, served, environ=environ)
    assert done[0] == done[1]
    job = fetch_json(f"{predictor}/v1/jobs/costs")
    assert (job["spec"]["global_batch"], job["spec"]["unit"]) == (300, "tokens")
    speeds = fetch_json(f"{predictor}/v1/jobs/costs/speeds?limit=1000")["speeds"]
    assert speeds
    # An iteration has about 14 documents with 20 tokens each.
    assert max(told["local_batch"] for told in speeds) > 100


def test_costs_may_be_a_function() -> None:
    given, computed = (Costs.of(costs, SAMPLES, budget=200) for costs in (LENGTHS, lambda index: LENGTHS[index]))
    for epoch in range(2):
        one, other = (iterations(Order(SAMPLES, 1, costs=costs), epoch) for costs in (given, computed))
        assert one == other
    assert given.mean == computed.mean == math.fsum(LENGTHS) / SAMPLES


def test_resuming_needs_no_earlier_samples() -> None:
    """Ten million samples: the checkpoint's position is enough, and only the costs of one iteration are read."""
    samples, read = 10**7, list[int]()

    def cost(index: int) -> float:
        read.append(index)
        return 1 + index % 997

    order = Order(samples, 1, costs=Costs.of(cost, samples, budget=100_000))
    read.clear()
    place = next(Epoch(order, 3).places(Progress(900, 3, 400, 80_000)))
    assert (place.iteration, place.position, place.begin) == (900, 400, 80_000)
    assert place.size < len(read) <= place.size + 2048


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": LENGTHS[:-1], "global_batch": 8}, rf"cost has shape \(100,\).* one number for each of the {SAMPLES}"),
        ({"cost": [*LENGTHS[:-1], 0], "global_batch": 8}, "cost of sample 100 is 0.0: must be a finite number above 0"),
        ({"cost": [math.nan] * SAMPLES, "global_batch": 8}, "cost of sample 0 is nan"),
        ({"cost": "long", "global_batch": 8}, "cost is a str: must be a sequence of numbers"),
        ({"cost": LENGTHS, "global_tokens": 39}, "is 40: must be at most 39"),
        ({"cost": LENGTHS, "global_tokens": 0}, "global_tokens=0: must be at least 1"),
        ({"cost": LENGTHS, "global_batch": 8, "max_tokens": 12}, "must be at most 12"),
        ({"cost": LENGTHS, "global_batch": 8, "global_tokens": 80}, "must be one of them"),
        ({"global_tokens": 80}, "global_tokens=80: requires cost="),
        ({"max_tokens": 80, "global_batch": 8}, "max_tokens=80: requires cost="),
        ({"hidden_size": 80, "global_batch": 8}, "hidden_size=80: requires cost="),
        ({"cost": LENGTHS, "global_batch": 8, "hidden_size": 0}, "hidden_size=0: must be at least 1"),
        (
            {"cost": LENGTHS, "global_batch": 8, "layout": "ragged"},
            "layout='ragged': must be one of 'packed', 'padded'",
        ),
        ({"cost": LENGTHS, "global_tokens": 80, "drop_last": True}, "drop_last=True with global_tokens"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(evenstep.SettingError, match=message):
        evenstep.init(plan=[1]).loader(Documents(), collate_fn=packed, **options)


def test_a_quantum_of_samples_is_refused() -> None:
    with pytest.raises(evenstep.SettingError, match="quantum=4 with cost"):
        evenstep.init(plan=[1], quantum=4).loader(Documents(), cost=LENGTHS, global_batch=8)


def of_means(_rank: int) -> str:
    job = evenstep.init(plan=[1, 1])
    loader = job.loader(Documents(), cost=LENGTHS, global_batch=24, max_tokens=60, collate_fn=packed)
    job.wrap(DistributedDataParallel(Net()))
    try:
        next(iter(loader))
    except evenstep.SettingError as error:
        return str(error)
    return ""


def test_means_over_unequal_passes_are_refused() -> None:
    for message in run_ranks(2, of_means):
        assert 'means over them have unequal weights: use job.wrap(.., loss="tokens")' in message


def hedged_means(_rank: int) -> float:
    """Returns the difference of the first gradient, of a mean over documents, to the gradient of one process."""
    options: dict[str, Any] = {"global_batch": 24, "max_tokens": 60}
    job, alone = evenstep.init(plan=[3, 1]), Net()
    model = job.wrap(DistributedDataParallel(Net()))
    for batch in next(iter(job.steps(Documents(), cost=LENGTHS, collate_fn=packed, **options))):
        (loss_of(model, batch) / len(batch["index"])).backward()
    indices = iterations(order_of(**options), 0)[0]
    (loss_of(alone, packed([Documents()[index] for index in indices])) / len(indices)).backward()
    nets: list[Any] = [model, alone]
    own, other = [[at.grad.flatten().tolist() for at in net.parameters()] for net in nets]
    return difference(own, other)


def test_hedged_steps_weight_means_over_unequal_passes() -> None:
    assert max(run_ranks(2, hedged_means)) <= TOLERANCE


def test_a_cost_that_a_function_returns_is_checked() -> None:
    costs = Costs.of(lambda _: 1.0, SAMPLES, budget=10)
    broken = dataclasses.replace(costs, given=lambda _: -1.0)
    with pytest.raises(evenstep.SettingError, match=r"is -1.0: must be a finite number above 0"):
        broken.at([3])


def test_both_layouts_cost_what_they_compute() -> None:
    lengths = [10.0, 1.0, 9.0, 2.0]
    for is_padded, expected in ((False, 22.0), (True, 10 + 10 + 2 + 2.0)):
        costs = Costs.of(lengths, 4, pass_max=20, is_padded=is_padded)
        plan = evenstep._native.Plan.of([1])
        cut = costs.cut(plan, lengths, 0.0, evenstep.samples.costs.CutRules(passes=1, least=1, is_equal=True))
        assert [work.total for work in cut.works] == [expected]


def test_attention_costs_the_square_of_the_length() -> None:
    """Width 4: 12 tokens cost 12 + 144 / 24 = 18 before scaling, as much as three samples of 5 tokens, with 18.125."""
    lengths = [12.0, 5.0, 5.0, 5.0]
    costs = Costs.of(lengths, 4, pass_max=15, hidden_size=4)
    plan = evenstep._native.Plan.of([1, 1])
    cut = costs.cut(plan, lengths, costs.prior.share, evenstep.samples.costs.CutRules(passes=1, least=1, is_equal=True))
    assert cut.plan.batches in ([1, 3], [3, 1])
    works = sorted(work.total for work in cut.works)
    assert works == pytest.approx([27 * 18.0 / 36.125, 27 * 18.125 / 36.125], rel=1e-12)
    # The unit is the token whatever the share is, so the size of a plan stays.
    assert costs.of_iteration(8) == 54
    assert Costs.of(lengths, 4, budget=54, hidden_size=4).of_iteration(1) == 54
