"""`evenstep verify` on scripts whose parameters are sharded over ranks."""

from pathlib import Path

import pytest

from test_fsdp import weights
from test_verify import LOADER, LOSS, WRAP, advice, script, status, verified

#: FSDP2 on the layers and on the whole.
SHARD = (
    "Linear(16, 3)).double()",
    (
        "Linear(16, 3)).double()\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "fully_shard(net[0]); fully_shard(net[2]); fully_shard(net)"
    ),
)


@weights
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([(WRAP, "job.wrap(net)")], id="mean"),
        pytest.param(
            [
                (WRAP, "job.wrap(net, loss='tokens')"),
                (LOADER, LOADER.replace("16", "16, accumulate=2, drop_last=True")),
                ("for x, y in loader:", "for at, (x, y) in enumerate(loader):"),
                ("        optimizer.zero_grad()", "        net.set_requires_gradient_sync(at % 2 == 1)"),
                ("        optimizer.step()", "        at % 2 and (optimizer.step(), optimizer.zero_grad())"),
                (LOSS, "(job.count((y > 0).sum()), (y > 0) * (model(x) - y) ** 2)[1].sum()"),
            ],
            id="tokens and accumulation",
        ),
        pytest.param(
            [
                (WRAP, "job.wrap(net)"),
                ("shard(net)\n", "shard(net, reshard_after_forward=False)\n"),
                ("(net[0]); fully_shard(net[2]);", "(net[0], reshard_after_forward=False);"),
                (LOADER, "job.steps(dataset, global_batch=16, tail=0.3, min_chunk=2)"),
                ("for x, y in loader:", "for step in loader:"),
                (f"        {LOSS}.backward()", f"        for x, y in step:\n            {LOSS}.backward()"),
            ],
            id="hedged steps",
        ),
    ],
)
def test_sharded_models_agree(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    verdict = verified(script(tmp_path, SHARD, *changes))
    assert verdict.result == "agree"
    assert verdict.difference is not None
    assert 0 < verdict.difference <= 1e-14


@weights
def test_passes_in_bfloat16_have_its_tolerance(tmp_path: Path) -> None:
    policy = (
        "\nfully_shard(net)",
        (
            "\nfrom torch.distributed.fsdp import MixedPrecisionPolicy\n"
            "fully_shard(net.float(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))"
        ),
    )
    shard = (SHARD[0], SHARD[1].replace("fully_shard(net[0]); fully_shard(net[2]); ", ""))
    verdict = verified(script(tmp_path, shard, policy, (WRAP, "job.wrap(net)"), ("y)", "y.bfloat16())")), steps=2)
    assert verdict.result == "agree"
    assert verdict.tolerance == 0.1


@weights
def test_a_wrong_gradient_of_sharded_models_differs(tmp_path: Path) -> None:
    wrong = (LOSS, f"({LOSS} * (1 + 0.03 * dist.get_rank()))")
    verdict = verified(script(tmp_path, SHARD, (WRAP, "job.wrap(net)"), wrong), steps=2)
    assert verdict.result == "differ"
    assert status(verdict, "gradients") == "failed"
    assert "mean over the samples" in advice(verdict, "gradients")


def test_flat_parameters_cannot_be_compared(tmp_path: Path) -> None:
    flat = (
        WRAP,
        "torch.distributed.fsdp.FullyShardedDataParallel(net, device_id=torch.device('cpu'), use_orig_params=True)",
    )
    imported = ("import evenstep", "import evenstep, torch.distributed.fsdp")
    verdict = verified(script(tmp_path, imported, flat, (LOSS, f"job.scale({LOSS})")))
    assert verdict.result == "failed"
    assert "cannot compare the parameters of FullyShardedDataParallel" in verdict.output
