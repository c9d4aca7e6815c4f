"""Each case of docs/reference/python-cases.md: three ranks with uneven, changing plans train as one process does.

``pytest -s tests/test_cases.py`` prints the differences.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FSDPModule

import cases
from programs import ROOT
from ranks import preload, run_ranks
from training import Samples, bucketed, difference, loss_of, network, sgd, weighted
from worlds import Alone, Ranks, World

preload("cases", "worlds")

Parameters = list[list[float]]


@dataclass(frozen=True)
class Case:
    """A script, and the allowed difference of its parameters to one process."""

    #: Trains and returns a model.
    script: Callable[[World], Any]
    #: The batches of all ranks are multiples of it.
    factor: int = 1
    tolerance: float = 1e-13


WORKERS: dict[str, Any] = {
    "num_workers": 2,
    "prefetch_factor": 3,
    "persistent_workers": True,
    "multiprocessing_context": "fork",
}

#: Scripts by the name of their row in docs/reference/python-cases.md.
CASES: dict[str, Case] = {
    "plain DDP": Case(cases.plain),
    "gradient accumulation with `no_sync`": Case(partial(cases.accumulated, syncs_each=False), factor=4),
    "gradient accumulation without `no_sync`": Case(partial(cases.accumulated, syncs_each=True), factor=4),
    "accumulation with `no_sync`, and a remainder that does not divide": Case(
        partial(cases.accumulated, syncs_each=False, samples=203), factor=4
    ),
    "accumulation without `no_sync`, and a remainder that does not divide": Case(
        partial(cases.accumulated, syncs_each=True, samples=203), factor=4
    ),
    "own numbers of passes (`micro_batch`)": Case(cases.own_passes),
    "own numbers of passes with `gradient_as_bucket_view`": Case(
        partial(cases.own_passes, gradient_as_bucket_view=True, bucket_cap_mb=0.0005)
    ),
    "own numbers of passes with `find_unused_parameters`": Case(partial(cases.own_passes, find_unused_parameters=True)),
    'own numbers of passes, `loss="sum"`': Case(partial(cases.own_passes, loss="sum")),
    'own numbers of passes, `loss="tokens"`': Case(partial(cases.own_passes, loss="tokens")),
    "gradients of two iterations added": Case(partial(cases.added, loss="mean")),
    "gradients of two iterations added with `no_sync`": Case(partial(cases.added, loss="mean", syncs_each=False)),
    'gradients of two iterations added, `loss="sum"`': Case(partial(cases.added, loss="sum")),
    'gradients of two iterations added, `loss="tokens"`': Case(partial(cases.added, loss="tokens")),
    "gradient penalty": Case(cases.penalised),
    "AMP with bfloat16, in float32": Case(cases.autocast, tolerance=5e-3),
    "AMP with `GradScaler` and clipping": Case(cases.grad_scaler),
    "clipping by norm": Case(partial(cases.clipped, by_norm=True)),
    "clipping by value": Case(partial(cases.clipped, by_norm=False)),
    "AdamW with the schedule `OneCycleLR`": Case(cases.scheduled),
    "exponential moving average of the weights": Case(cases.averaged),
    "frozen layers": Case(cases.frozen),
    "`find_unused_parameters`": Case(cases.unused),
    "`static_graph`": Case(partial(cases.with_options, static_graph=True)),
    "`gradient_as_bucket_view`": Case(partial(cases.with_options, gradient_as_bucket_view=True)),
    "another communication hook (`inner=`)": Case(partial(cases.with_options, inner=allreduce_hook)),
    "`DDP(torch.compile(net))`": Case(partial(cases.compiled, inside=True)),
    "`torch.compile(DDP(net))`": Case(partial(cases.compiled, inside=False)),
    "batches padded to a multiple of 8 samples": Case(cases.padded_rows),
    "activation checkpointing": Case(partial(cases.checkpointed, reentrant=False)),
    "activation checkpointing, reentrant, with `static_graph`": Case(partial(cases.checkpointed, reentrant=True)),
    "two models with two optimizers (GAN)": Case(cases.adversarial),
    "weighted sampler as `order=`": Case(partial(cases.plain, order=weighted)),
    "bucketed sampler as `order=`": Case(partial(cases.plain, order=bucketed)),
    "next batch read before the backward pass": Case(cases.reads_before_backward),
    "three batches read ahead with `job.step`": Case(cases.reads_ahead),
    "two workers of the loader": Case(partial(cases.plain, **WORKERS)),
    "remainder smaller than the number of ranks": Case(partial(cases.plain, dataset=Samples(50))),
    "the same remainder with `drop_last`": Case(partial(cases.plain, dataset=Samples(50), drop_last=True)),
    'sum over samples, `loss="sum"`': Case(cases.summed),
    'mean over tokens of padded batches, `loss="tokens"`': Case(cases.tokens),
    'mean over tokens with accumulation, `loss="tokens"`': Case(partial(cases.tokens, samples=208), factor=4),
    'accumulation with `loss="tokens"`, and a remainder that does not divide': Case(
        partial(cases.tokens, samples=203), factor=4
    ),
    'mean over tokens with `inner=`, `loss="tokens"`': Case(partial(cases.tokens, inner=allreduce_hook)),
    'mean over tokens with `static_graph`, `loss="tokens"`': Case(partial(cases.tokens, static_graph=True)),
    'class weights, `loss="tokens"`': Case(cases.class_weights),
    "`job.scale` without `wrap`": Case(cases.scaled),
    "hedged steps": Case(partial(cases.hedged, shards=False)),
}
if hasattr(FSDPModule, "set_custom_reduce_scatter"):
    CASES |= {
        "FSDP2 (ZeRO-3)": Case(cases.sharded),
        "FSDP2 with own numbers of passes (ZeRO-2)": Case(partial(cases.own_passes, shards=True)),
        'FSDP2 with own numbers of passes, `loss="sum"`': Case(partial(cases.own_passes, shards=True, loss="sum")),
        'FSDP2 with own numbers of passes, `loss="tokens"`': Case(
            partial(cases.own_passes, shards=True, loss="tokens")
        ),
        "FSDP2 with hedged steps (ZeRO-2)": Case(partial(cases.hedged, shards=True)),
    }


#: The row of a training that another number of ranks resumes, and the iteration of its checkpoint.
RESUMED, STOP = "resume within an epoch with another number of ranks", 7


def parameters(model: Any) -> Parameters:
    whole = (getattr(parameter, "full_tensor", lambda one=parameter: one)() for parameter in model.parameters())
    return [parameter.detach().double().flatten().tolist() for parameter in whole]


def part(_rank: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Trains until the iteration of the checkpoint, or from there to the end."""
    world, net = Ranks(), network()
    optimizer = sgd(net)
    if state:
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        world.job.load_state_dict(state["job"])
    model = world.ddp(net)
    for x, y, _ in world.batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if not state and world.job.state_dict()["iteration"] == STOP:
            break
    states = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": world.job.state_dict()}
    return {**states, "parameters": parameters(net)}


def train(rank: int) -> tuple[dict[str, Parameters], dict[str, Any]]:
    """Returns the parameters by case, and a checkpoint."""
    trained = {}
    for name, case in CASES.items():
        world = Ranks(case.factor)
        trained[name] = parameters(case.script(world))
        world.job.close()
    return trained, part(rank)


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    """The largest differences of parameters to one process, by case."""
    ranks = run_ranks(3, train)
    trained = {name: [rank[name] for rank, _ in ranks] for name in CASES}
    trained[RESUMED] = [rank["parameters"] for rank in run_ranks(2, part, ranks[0][1])]
    found = {}
    for name, ended in trained.items():
        case = CASES.get(name, CASES["plain DDP"])
        world = Alone(case.factor)
        reference = parameters(case.script(world))
        assert world.distance() > 0.01, f"{name} trains"
        found[name] = max(difference(one, reference) for one in ended)
        print(f"| {name} | {found[name]:.1e} |")
    return found


@pytest.mark.parametrize("name", [*CASES, RESUMED])
def test_uneven_batches_train_as_one_process_does(differences: dict[str, float], name: str) -> None:
    assert differences[name] <= CASES.get(name, CASES["plain DDP"]).tolerance


def test_the_documentation_lists_the_cases() -> None:
    text = (ROOT / "docs" / "reference" / "python-cases.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \| `(test_\w+)(?:::(\w+))?` \|$", text, re.MULTILINE)
    listed = {name: float(number) for name, number, file, _ in rows if file == "test_cases"}
    known = {**CASES, RESUMED: CASES["plain DDP"]}
    # FSDP needs a newer version of PyTorch than the oldest one.
    assert {name for name in listed if not name.startswith("FSDP") or name in CASES} == set(known)
    assert all(listed[name] <= case.tolerance for name, case in known.items())
    for name, _, file, test in rows:
        if test:
            assert f"\ndef {test}(" in (Path(__file__).parent / f"{file}.py").read_text(), name
