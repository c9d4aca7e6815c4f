"""`evenstep verify` on correct scripts that are not a plain loop over one DDP model, and on errors close to them."""

from pathlib import Path

import pytest

from test_verify import LOADER, LOSS, WRAP, script, status, verified

BACKWARD = f"        {LOSS}.backward()\n        optimizer.step()"

#: A loop that divides by the tokens of all ranks itself; a rank without samples has none.
OWN_TOKENS = (
    (WRAP, "job.wrap(DistributedDataParallel(net), loss='scaled')"),
    (
        BACKWARD,
        (
            "        with job.step():\n"
            "            counts = (y > 0).double()\n"
            "            tokens = counts.sum()\n"
            "            dist.all_reduce(tokens)\n"
            "            loss = (counts * (model(x) - y) ** 2).sum() / tokens * dist.get_world_size()\n"
            "            loss.backward()\n"
            "            optimizer.step()"
        ),
    ),
)

#: Two models with the same names, shapes and class. In one process another collection of garbage comes between them.
TWO_MODELS = (
    ("dist.init", "import gc; gc.disable()\ndist.init"),
    (
        "job = evenstep.init()",
        (
            "dist.get_world_size() == 1 and gc.collect()\n"
            "job = evenstep.init()\n"
            "other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()\n"
            "judge = job.wrap(DistributedDataParallel(other))\n"
            "its = torch.optim.SGD(judge.parameters(), lr=0.05)"
        ),
    ),
    (
        BACKWARD,
        (
            f"        {LOSS}.backward()\n"
            "        optimizer.step()\n"
            "        its.zero_grad()\n"
            "        mse_loss(judge(x), model(x).detach()).backward()\n"
            "        its.step()"
        ),
    ),
)

COMPILED = (WRAP, 'job.wrap(torch.compile(DistributedDataParallel(net), backend="eager", dynamic=True))')


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(OWN_TOKENS, id="own weights"),
        pytest.param(
            [
                (WRAP, "job.wrap(DistributedDataParallel(net), loss='tokens')"),
                (LOSS, "(job.count((y > 0).sum()), (y > 0) * (model(x) - y) ** 2)[1].sum()"),
            ],
            id="tokens",
        ),
        pytest.param([(LOADER, "job.loader(dataset, global_batch=16, order=[*range(0, 205, 2)] * 2)")], id="order"),
        pytest.param([COMPILED], id="compile"),
        pytest.param(TWO_MODELS, id="two models"),
    ],
)
def test_correct_scripts_agree(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    verdict = verified(script(tmp_path, *changes))
    assert verdict.result == "agree"
    assert {check.status for check in verdict.checks} == {"ok"}


def test_a_wrong_gradient_of_one_of_two_models_is_found(tmp_path: Path) -> None:
    wrong = ("model(x).detach()).backward()", "model(x).detach()).mul(1 + dist.get_rank()).backward()")
    verdict = verified(script(tmp_path, *TWO_MODELS, wrong), steps=2)
    assert verdict.result == "differ"
    assert status(verdict, "gradients") == "failed"
    assert "4 of 8 parameters" in next(check.found for check in verdict.checks if check.name == "gradients")
