"""Hedged steps of FSDP2 models, and the measurement of their speeds."""

import logging
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import evenstep
from evenstep.gradients import fsdp, fsdp_state
from programs import fetch_json
from ranks import run_ranks
from test_fsdp import CLIP, Parameters, check, clips, hedged_epochs, parameters, sharded, weights
from training import GLOBAL_BATCH, PLANS, Samples, Trained, difference, loss_of, network, sgd


def hedged(_rank: int, plan: str | None, options: dict[str, Any]) -> Trained:
    job = evenstep.init(plan=PLANS[plan] if plan else None)
    model: Any = sharded(reshard_after_forward=False)
    model.set_reshard_after_backward(False)
    passes = hedged_epochs(job, model, sgd(model), **options)
    assert not any(group.reshard_after_backward for group in fsdp_state.groups(model[0])), (
        "the script's setting is kept"
    )
    return Trained(parameters(model), [sample for batch in passes for sample in batch])


def with_mixed_precision(_rank: int, is_hedged: bool) -> tuple[Parameters, str]:
    """Returns the gradient of the first iteration, of passes in bfloat16, and its type."""
    job = evenstep.init(plan=[12, 3, 1])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = network().float()
    fully_shard(net, mp_policy=policy, reshard_after_forward=not is_hedged)
    model = job.wrap(net)
    if is_hedged:
        for x, y, _ in next(iter(job.steps(Samples(), model=model))):
            loss_of(model, x, y).backward()
    else:
        x, y, _ = next(iter(job.loader(Samples())))
        loss_of(model, x, y).backward()
    gradients: list[Any] = [parameter.grad for parameter in fsdp.parameters(model)]
    return [gradient.full_tensor().flatten().tolist() for gradient in gradients], str(gradients[0].dtype)


def warns(_rank: int, server: str, job_id: str) -> list[str]:
    """Returns what a run with a predictor logs about speeds."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep").addHandler(handler)
    job = evenstep.init(server=server, job=job_id)
    model = job.wrap(sharded(reshard_after_forward=False))
    hedged_epochs(job, model, sgd(model), global_batch=GLOBAL_BATCH)
    job.close()
    return [line for line in told if "speed of ranks" in line]


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("6/5/5", {"tail": 0.4}),
        ("13/3/0", {}),
        (None, {"global_batch": 16, "tail": 1.0}),
        ("changing", {"tail": 0.3, "micro_batch": 2}),
        pytest.param("12/3/1", {"tail": 0.3, "clip": CLIP}, marks=clips),
    ],
    ids=["a tail", "a rank without passes", "only a tail", "small passes", "clipped"],
)
def test_hedged_steps_train_as_one_process_does(plan: str | None, options: dict[str, Any]) -> None:
    check(run_ranks(3, hedged, plan, options), options.get("clip"))


@weights
def test_hedged_gradients_of_bfloat16_passes_are_summed_in_float32() -> None:
    (reference, kind), (trained, hedged_kind) = (
        run_ranks(3, with_mixed_precision, is_hedged)[0] for is_hedged in (False, True)
    )
    assert kind == hedged_kind == "torch.float32"
    assert difference(trained, reference) <= 1e-6, "both reduce in float32"


@weights
def test_hedged_steps_measure_speeds(predictor: str, job_id: str) -> None:
    assert run_ranks(2, warns, predictor, job_id) == [[], []]
    times = fetch_json(f"{predictor}/v1/jobs/{job_id}/history")["step_time_s"]
    assert sum(time_s is not None for time_s in times) > len(times) / 2
