"""Pipelines whose stages are ranks of a worker: equal cuts on all stages, ends of iterations, refusals."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.run.losses import Loss
from ranks import preload, run_ranks
from test_mesh import SAMPLES, SHARDS, WHOLE_SAMPLES, ddp, mean_of_outputs, sharded
from training import GLOBAL_BATCH, Samples, network, sgd

preload("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining")


def refused_pipelines(rank: int) -> dict[str, str]:
    """Returns the errors of pipelines by the phrase that each must have. Each rank has a separate pipeline."""
    told: dict[str, str] = {}
    dp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    alone: Any = [dist.new_group([at]) for at in range(4)][rank]

    def refuses(
        phrase: str,
        loss: Loss = "sum",
        parts: Sequence[Any] = (),
        *,
        samples: int = SAMPLES,
        options: Mapping[str, Any] = MappingProxyType({}),
        is_marked: bool = True,
        scale_grads: bool = False,
        scales: bool = False,
    ) -> None:
        job = evenstep.init(plan=[8, 8], mesh=dp)
        models = parts or [ddp(network(), dp)]
        models = models if scales else [job.wrap(part, loss=loss) for part in models]
        stages = [PipelineStage(at, i, len(models), torch.device("cpu"), group=alone) for i, at in enumerate(models)]
        loss_fn = (lambda *both: job.scale(mean_of_outputs(*both))) if scales else mean_of_outputs
        kind: Any = ScheduleInterleavedZeroBubble if parts[1:] else Schedule1F1B
        schedule = kind(stages if parts[1:] else stages[0], 2, loss_fn, scale_grads=scale_grads)

        def train() -> None:
            for x, y, _ in job.loader(Samples(samples), global_batch=GLOBAL_BATCH, **options):
                with job.step() if is_marked else nullcontext():
                    schedule.step(x, target=y)

        with pytest.raises(RuntimeError) as error:
            train()
        # Pipelines of older versions of PyTorch raise another error, with the cause.
        told[phrase] = f"{error.value} {error.value.__cause__}"

    net: Any = network()
    refuses("whose schedule has scale_grads=True", scale_grads=True)
    refuses("with job.wrap(loss='mean')", "mean")
    refuses("job.scale in the loss_fn", scales=True)
    refuses('with loss="tokens" and accumulate', "tokens", options={"accumulate": 2})
    refuses("inside of `with job.step():`", is_marked=False)
    refuses("ScheduleInterleavedZeroBubble adds gradients", parts=[ddp(net[:2], dp), ddp(net[2:], dp)])
    refuses("static_graph=True", parts=[DistributedDataParallel(net, process_group=dp.get_group(), static_graph=True)])
    # A worker of the DataLoader draws it before the first pass.
    refuses("iteration 1: a worker has none of the 1 samples", samples=GLOBAL_BATCH + 1, options={"num_workers": 1})
    if SHARDS:
        refuses("fully_shard in a pipeline", parts=[sharded(network(), dp)])
    return told


def test_what_would_be_wrong_is_refused_with_advice() -> None:
    for told in run_ranks(4, refused_pipelines):
        for phrase, message in told.items():
            assert phrase in message


def cuts(rank: int) -> dict[str, list[tuple[int, list[int]]]]:
    """Returns the local batches and samples of an epoch; the ranks of a worker have different models."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    dp, is_first, found = mesh["dp"], mesh.get_local_rank("pp") == 0, {}

    def case(name: str, part: torch.nn.Module | None, loss: Loss, *shares: int, **options: Any) -> None:
        with evenstep.init(plan=shares, mesh=dp) as job:
            loader = job.loader(Samples(SAMPLES), global_batch=GLOBAL_BATCH, **options)
            if part:
                job.wrap(ddp(part, dp), loss=loss)
            found[name] = [(loader.latest.local_batch, index.tolist()) for *_, index in loader]
            if is_first:
                with pytest.raises(evenstep.UnsupportedError, match="wrap all models before the loop"):
                    job.wrap(ddp(torch.nn.BatchNorm1d(3), dp), loss="scaled")

    case("batch norm in a stage", torch.nn.BatchNorm1d(3) if is_first else network(), "sum", 15, 1)
    case("costs", network(), "sum", 16, 0, cost=[1] * SAMPLES)
    # Only the first rank may train a pipeline.
    for name in [name for name in sys.modules if rank and name.startswith("torch.distributed.pipelining")]:
        del sys.modules[name]
    case("modules of pipelines", network(), "sum", 16, 0)
    case("costs and modules of pipelines", network(), "sum", 16, 0, cost=[1] * SAMPLES)
    if rank == 0:
        del sys.modules["torch.distributed.pipelining.stage"]
    case("a stage without wrap, sums", None if is_first else network(), "sum", 16, 0)
    case("a stage without wrap, means", None if is_first else network(), "mean", 16, 0)
    return found


def test_all_ranks_of_a_worker_get_the_same_samples_also_if_their_models_differ() -> None:
    everyone = run_ranks(4, cuts)
    for name in everyone[0]:
        first, second, third, last = (found[name] for found in everyone)
        assert (first, third) == (second, last), name
        *batches, _ = [batch for batch, _ in third]
        least = {"batch norm in a stage": 2, "a stage without wrap, sums": 0}.get(name, 1)
        assert batches == [least] * len(batches), name


def ends(_rank: int) -> list[tuple[int, int]]:
    """Returns the number of complete iterations at each pass of interleaved stages, after the number of the pass's."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    own, found, schedules = mesh.get_local_rank("pp"), list[tuple[int, int]](), dict[int, Any]()
    with evenstep.init(plan=[12, 4], quantum=4, mesh=mesh["dp"]) as job:

        def passes(*_: Any) -> None:
            found.append((number, job._run.binding.trained.iteration))

        class Stage(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = super().forward(x)
                if y.requires_grad:
                    passes()
                    y.register_hook(passes)
                return y * 1

        loader = job.loader(Samples(WHOLE_SAMPLES), global_batch=GLOBAL_BATCH)
        sizes = [(8, 8), (8, 8), (8, 8), (8, 3)]
        models = [job.wrap(ddp(Stage(*sizes[at]).double(), mesh["dp"]), loss="sum") for at in (own, own + 2)]
        optimizer = sgd(torch.nn.ModuleList(models))
        for number, (x, y, _) in enumerate(loader):
            count = len(x) // 2
            if count not in schedules:
                device, group = torch.device("cpu"), mesh.get_group("pp")
                stages: list[Any] = [
                    PipelineStage(at, i, 4, device, group=group) for at, i in zip(models, (own, own + 2), strict=True)
                ]
                schedules[count] = ScheduleInterleaved1F1B(stages, count, mean_of_outputs, scale_grads=False)
            with job.step():
                schedules[count].step(*[x] if own == 0 else [], target=y)
                assert job._run.binding.trained.iteration == number + 1
            optimizer.step()
            optimizer.zero_grad()
    return found


def test_an_iteration_ends_with_the_last_stage_of_the_rank() -> None:
    for found in run_ranks(4, ends):
        assert found
        assert all(number == complete for number, complete in found)


def empty(_rank: int) -> str:
    """Returns the error of a pipeline of two stages whose first iteration has no samples for a worker."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    own, net = mesh.get_local_rank("pp"), network()
    part: Any = [net[:2], net[2:]][own]  # type: ignore[index]  # A Sequential.
    with evenstep.init(plan=[8, 8], mesh=mesh["dp"]) as job:
        loader = job.loader(Samples(1), global_batch=GLOBAL_BATCH)
        stage = PipelineStage(
            job.wrap(ddp(part, mesh["dp"]), loss="sum"), own, 2, torch.device("cpu"), group=mesh.get_group("pp")
        )
        schedule = Schedule1F1B(stage, 2, mean_of_outputs, scale_grads=False)
        x, y, _ = next(iter(loader))
        with pytest.raises(evenstep.UnsupportedError) as error, job.step():
            schedule.step(*[x] if own == 0 else [], target=y)
    dist.barrier()
    return str(error.value)


def test_all_stages_refuse_an_iteration_without_samples_for_a_worker() -> None:
    for message in run_ranks(4, empty):
        assert "iteration 0: a worker has none of the 1 samples" in message
