"""Compiled models with uneven batches: the gradient of one process, and no work of the compiler for the hooks."""

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

import evenstep
from ranks import preload, run_ranks
from test_service import Paced
from training import EPOCHS, PLANS, Samples, difference, loss_of, network, one_process, parameters, sgd

TOLERANCE = 1e-13

preload("torch._dynamo.utils")


class Net(torch.nn.Module):
    """The compiler skips modules of PyTorch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


def compiled(model: Any) -> Any:
    """Compiles a model for batches of any size; needs no C++ compiler."""
    return torch.compile(model, backend="eager", dynamic=True)


def inside(wrap: Callable[[Any], Any]) -> Any:
    return wrap(DistributedDataParallel(compiled(Net())))


def outside(wrap: Callable[[Any], Any]) -> Any:
    return wrap(compiled(DistributedDataParallel(Net())))


def wrapped_first(wrap: Callable[[Any], Any]) -> Any:
    return compiled(wrap(DistributedDataParallel(Net())))


def train(model: Any, batches: Any) -> tuple[int, int]:
    """Returns the numbers of graphs and of breaks between them."""
    torch._dynamo.reset()
    counters.clear()
    optimizer = sgd(model)
    for x, y, _ in batches:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def work(_rank: int, make: Callable[[Callable[[Any], Any]], Any], plan: str) -> tuple[list[list[float]], Any, Any]:
    """Returns the parameters, and the compiler's work with and without evenstep on the same batches."""
    job = evenstep.init(plan=PLANS[plan])
    loader, seen = job.loader(Samples()), list[Any]()
    model = make(job.wrap)

    def batches() -> Any:
        for _ in range(EPOCHS):
            for batch in loader:
                seen.append(batch)
                yield batch

    own = train(model, batches())
    assert job.state_dict()["iteration"] == EPOCHS * 13
    return parameters(model), own, train(make(lambda plain: plain), seen)


MAKES = (inside, outside, wrapped_first)


def works(rank: int) -> list[tuple[list[list[float]], Any, Any]]:
    return [work(rank, make, plan) for make in MAKES for plan in ("changing", "13/3/0")]


def test_compiled_models_train_as_one_process_does() -> None:
    reference = one_process()
    for trainings in run_ranks(3, works):
        assert len(trainings) == 2 * len(MAKES)
        for trained, own, plain in trainings:
            assert difference(trained, reference) <= TOLERANCE
            assert own[0] > 0, "it is compiled"
            assert own == plain, "graphs, and breaks between them"


def hedged(_rank: int) -> list[list[float]]:
    job = evenstep.init(plan=[12, 3, 1])
    model = compiled(DistributedDataParallel(Net()))
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for step in job.steps(Samples(), tail=0.3, model=model):
            for x, y, _index in step:
                loss_of(model, x, y).backward()
            optimizer.step()
    return parameters(model)


def test_hedged_steps_train_a_compiled_model() -> None:
    reference = one_process()
    for trained in run_ranks(3, hedged):
        assert difference(trained, reference) <= TOLERANCE


#: Options that bound the number of batch sizes; no even split has the allowed ones.
SIZES: dict[str, list[int] | int] = {"allowed_sizes": [8, 32], "distinct_sizes": 2}


def sized(rank: int, server: str, job_id: str) -> dict[str, tuple[list[int], int]]:
    """Returns the batches of this rank, and the number of graphs that the compiler made for them, by option."""
    told = {}
    # Shares that follow a changing load have more sizes over a run than the compiler's limit.
    torch._dynamo.config.recompile_limit = 64
    for name, value in SIZES.items():
        job = evenstep.init(server=server, job=f"{job_id}-{name}", job_options={name: value}, timeout_s=60.0)
        loader, sizes = job.loader(Samples(192), global_batch=48, drop_last=True), list[int]()
        net: Any = torch.compile(Net(), backend="eager", dynamic=False)
        model = job.wrap(DistributedDataParallel(Paced(net, 2e-4 * 2**rank)))

        def batches(loader: Any = loader, sizes: list[int] = sizes) -> Any:
            for _ in range(4 * EPOCHS):
                for batch in loader:
                    sizes.append(len(batch[0]))
                    yield batch

        graphs, _breaks = train(model, batches())
        job.close()
        told[name] = sizes, graphs
    return told


def test_few_sizes_of_batches_need_few_graphs(predictor: str, job_id: str) -> None:
    ranks = run_ranks(3, sized, predictor, job_id)
    for name in SIZES:
        iterations = list(zip(*(told[name][0] for told in ranks), strict=True))
        assert len(iterations) == 4 * EPOCHS * 4
        assert all(sum(sizes) == 48 and len(set(sizes)) <= 2 for sizes in iterations)
        assert name != "allowed_sizes" or all(sorted(sizes) == [8, 8, 32] for sizes in iterations)
        for told in ranks:
            sizes, graphs = told[name]
            assert graphs == len(set(sizes)), "one for each size"
