"""Models and loops that burst-parallel training gets right, or refuses on all ranks with advice."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

import evenstep
from bursts import GLOBAL_BATCH
from evenstep.errors import EvenstepError, UnsupportedError
from ranks import preload, run_ranks

preload("torch.distributed.fsdp")


class Stopped(nn.Module):
    """Passes no gradient on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.detach())  # type: ignore[no-any-return]


class Averages(nn.Module):
    """Assigns a buffer in its forward pass."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        # The next buffer is not aligned if the buffers are sent as one.
        self.register_buffer("flags", torch.zeros(3, dtype=torch.int8))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.inner(x - self.mean)  # type: ignore[no-any-return]


class Mean(nn.Linear):
    """Returns no samples."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(0)


class Failing(nn.Module):
    """Fails."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 // 0)


class Transposed(nn.Module):
    """Gives samples along the second axis to its encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x[:, None].transpose(0, 1)).transpose(0, 1)[:, 0]
        return made


class Scaled(nn.Sequential):
    """Multiplies by an attribute between layers."""

    kind: Any = float
    scale: Any = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self[2](self[1](self[0](x) * self.scale))
        return made


class Tempered(Scaled):
    """Its attribute is a tensor."""

    kind = torch.tensor


def net_of(middle: Callable[[], nn.Module] = nn.Tanh, kind: type[nn.Sequential] = nn.Sequential) -> Any:
    torch.manual_seed(0)
    return kind(nn.Linear(6, 8), middle(), nn.Linear(8, 5)).double()


def plan_of(*samples: list[int]) -> dict[str, Any]:
    layers = [{"name": str(at), "samples": own} for at, own in enumerate(samples)]
    return {"gpus": 2, "global_batch": GLOBAL_BATCH, "layers": layers}


HALVES, ONE, HALF = [6, 6], [12], slice(6)
USUAL, LAST = plan_of(HALVES, ONE, HALVES), plan_of(HALVES, HALVES, ONE)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + seed)
    return torch.randn(GLOBAL_BATCH, 6).double(), torch.randint(0, 5, (GLOBAL_BATCH,))


def in_place(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.div_(2.0), y)


def trained(model: Any, loss: Any = functional.cross_entropy, data: Any = batch) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for at in range(3):
        x, y = data(at)
        net = model if isinstance(model, nn.Sequential) else model._net
        if isinstance(net, Scaled):
            net.scale = net.kind(1.0 + at)
        optimizer.zero_grad()
        if isinstance(model, nn.Sequential):
            loss(model(x), y).backward()
        else:
            loss(model(x[model.rows]), model.targets(y[model.rows])).backward()
        optimizer.step()
    return model


def apart(model: Any, reference: nn.Module) -> float:
    whole = reference.state_dict()
    return max(float((value - whole[name]).abs().max()) for name, value in model.state_dict().items())


def scaled(model: Any) -> float:
    """Returns the scale after three steps, in one of which rank 0 alone has an infinite gradient."""
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.2), ShardedGradScaler("cpu", init_scale=256.0)
    for at in range(3):
        x, y = batch(at)
        loss = functional.cross_entropy(model(x[model.rows].float()), model.targets(y[model.rows]))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if at == 1:
            for name, parameter in model.named_parameters():
                if name == "2.weight" and not parameter.is_meta:
                    parameter.grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


def equal(_rank: int) -> dict[str, float]:
    """Returns the differences to one process."""
    far = {}
    cases: tuple[tuple[str, Callable[[], Any], dict[str, Any], Any], ...] = (
        ("detached", lambda: net_of(Stopped), USUAL, functional.cross_entropy),
        ("buffer", lambda: net_of(Averages), plan_of(ONE, [0, 12], ONE), functional.cross_entropy),
        ("transposed", lambda: net_of(Transposed), USUAL, functional.cross_entropy),
        ("attribute", lambda: net_of(kind=Scaled), USUAL, functional.cross_entropy),
        ("tensor", lambda: net_of(kind=Tempered), USUAL, functional.cross_entropy),
        ("in place", net_of, USUAL, in_place),
    )
    for name, made, plan, loss in cases:
        far[name] = apart(trained(evenstep.burst(made(), plan), loss), trained(made(), loss))

    def tokens(_at: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(GLOBAL_BATCH) % 6, torch.arange(GLOBAL_BATCH) % 5

    def sparse() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(6, 8, sparse=True), nn.Tanh(), nn.Linear(8, 5)).double()

    far["sparse"] = apart(trained(evenstep.burst(sparse(), USUAL), data=tokens), trained(sparse(), data=tokens))
    far["moved"] = apart(trained(evenstep.burst(net_of(), LAST).to("cpu")), trained(net_of()))
    far["converted"] = apart(
        trained(evenstep.burst(net_of().float(), LAST).double()), trained(net_of().float().double())
    )
    model = evenstep.burst(net_of(), USUAL)
    trained(torch.compile(model, backend="eager"))
    far["compiled"] = apart(model, trained(net_of()))
    far["scaled"] = abs(scaled(evenstep.burst(net_of().float(), LAST)) - 128)
    net = net_of()
    model = evenstep.burst(net, USUAL)
    averaged = AveragedModel(net)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    averaged.update_parameters(trained(model))
    model.load_state_dict(before)
    far["own state"] = apart(model, net_of())
    return far


def test_models_that_equal_one_process() -> None:
    for far in run_ranks(2, equal):
        assert max(far.values()) <= 1e-12, far


def overlapped(_rank: int) -> list[str]:
    """Returns the order of events in a backward pass through two blocks with parameters."""
    events: list[str] = []
    real = dist.all_reduce

    class Work:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            events.append("wait")
            self.work.wait()

    def sums(*args: Any, **kwargs: Any) -> Work:
        events.append("begin")
        return Work(real(*args, **kwargs))

    net = net_of()
    model = evenstep.burst(net, plan_of(HALVES, [4, 8], HALVES))
    net[0].register_forward_hook(
        lambda _module, _given, made: made.register_hook(lambda _: events.append("backward of 0")) and None
    )
    x, y = batch(0)
    loss = functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows]))
    dist.all_reduce = sums  # type: ignore[assignment]
    loss.backward()
    dist.all_reduce = real
    return events


def test_gradient_sums_overlap_with_earlier_blocks() -> None:
    for events in run_ranks(2, overlapped):
        assert events == ["begin", "backward of 0", "begin", "wait", "wait"]


def few() -> None:
    model = evenstep.burst(net_of(), USUAL)
    x, _ = batch(0)
    model(x[:8][model.rows])


def few_targets(rank: int) -> None:
    """Gives wrong targets on rank 1. Rank 0 learns of it before other collectives of the script, though none move."""
    model = evenstep.burst(net_of(), USUAL)
    x, y = batch(0)
    model(x[model.rows])
    model.targets(y[HALF][rank:])
    dist.barrier()


def few_again(rank: int) -> None:
    """Continues after an error, which changes nothing."""
    model = trained(evenstep.burst(net_of(Averages), LAST))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(EvenstepError):
        model(batch(0)[0][HALF][rank:])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    trained(model)
    few()


def refused(rank: int) -> list[str]:  # noqa: C901  # One function for each call.
    """Returns the errors of calls that ranks make together, some of them only wrong on one."""
    said = []

    def expect(act: Callable[[], Any]) -> None:
        with pytest.raises((EvenstepError, AttributeError)) as caught:
            act()
        said.append(f"{type(caught.value).__name__}: {caught.value}")

    def skipped() -> None:
        model = evenstep.burst(net_of(), USUAL)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at in range(14):
            for micro in range(3):
                x, y = batch(3 * at + micro)
                functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows])).backward()
            if not rank or at != 6:
                optimizer.step()

    def again() -> None:
        net = net_of()
        for _ in range(2):
            evenstep.burst(net, LAST)

    def replaced() -> None:
        net = net_of()
        model = evenstep.burst(net, USUAL)
        if rank:
            net[0].weight = nn.Parameter(net[0].weight.detach())
        model(batch(0)[0][model.rows])

    def infinite() -> None:
        model = evenstep.burst(net_of(), USUAL)
        if rank:
            next(model.parameters()).data.fill_(torch.nan)
        model(batch(0)[0][model.rows])

    expect(few)
    expect(lambda: few_targets(rank))
    expect(lambda: few_again(rank))
    expect(skipped)
    expect(again)
    expect(replaced)
    expect(infinite)
    expect(lambda: evenstep.burst(net_of(), USUAL if rank else None))  # type: ignore[arg-type]
    expect(lambda: evenstep.burst(net_of() if rank else None, USUAL))  # type: ignore[arg-type]
    expect(lambda: evenstep.burst(net_of(), USUAL).load_state_dict(net_of().state_dict(), assign=True))
    expect(lambda: copy.deepcopy(evenstep.burst(net_of(), USUAL)))
    return said


def test_calls_that_are_wrong_on_one_rank_are_refused_on_both() -> None:
    first, second = run_ranks(2, refused)
    for at, named in enumerate(
        (
            "SettingError: rank 1 got 2 samples, planned are 6 of 12",
            "SettingError: rank 1 got 5 samples, planned are 6 of 12",
            "SettingError: rank 1 got 2 samples, planned are 6 of 12",
            r"DivergedError: .* optimizer steps, other calls\]: \[\[22, 21, 7, 21\], \[22, 21, 6, 21\]\]",
            "UnsupportedError: .*weight has no memory .* runs once for a model",
            "UnsupportedError: rank 1 has other parameters than after evenstep.burst",
            "DivergedError: ranks 0, 1 have different parameters of layers '0'",
            "SettingError: plan: None must be the file or the object",
            "(AttributeError|UnsupportedError: rank 0: AttributeError)",
            "SettingError: assign=True: must be False",
            "UnsupportedError: .* cannot be copied or saved: copy or average net",
        )
    ):
        for said in (first[at], second[at]):
            assert re.match(named, said), said


def misled(rank: int) -> list[str]:  # noqa: C901  # One function for each call.
    """Returns the errors of calls that are wrong on one rank, or that one rank makes and the other does not."""
    said = []

    def expect(act: Callable[[], Any]) -> None:
        with pytest.raises((EvenstepError, ZeroDivisionError)) as caught:
            act()
        said.append(f"{type(caught.value).__name__}: {caught.value}")

    def nan_skipped() -> None:
        model = evenstep.burst(net_of(), LAST)
        for at in range(2):
            x, y = batch(at)
            loss = functional.cross_entropy(model(x[model.rows]), model.targets(y[model.rows]))
            if loss.isfinite():
                loss.backward()

    def validated() -> None:
        net = net_of()
        model = evenstep.burst(net, USUAL)
        if not rank:
            net.eval()
        model(batch(0)[0][model.rows])

    def second_pass(x: torch.Tensor) -> None:
        model = evenstep.burst(net_of(), USUAL)
        model(batch(0)[0][model.rows])
        with torch.autocast("cpu", torch.bfloat16, enabled=rank > 0 and x.dim() == 2):
            model(x)

    def other_method() -> None:
        model = evenstep.burst(net_of(), USUAL)
        if rank:
            model.clip_grad_norm_(1.0)
        else:
            model.reduce(torch.ones(()))

    def chained() -> None:
        first, second = (evenstep.burst(nn.Sequential(nn.Linear(6, 6)), plan_of(HALVES)) for _ in range(2))
        second(first(torch.ones(6, 6)))

    def combined() -> None:
        model = evenstep.burst(net_of(), USUAL)
        torch.optim.LBFGS(model.parameters()).step(lambda: 0.0)

    expect(nan_skipped)
    expect(validated)
    expect(lambda: evenstep.burst(net_of(Mean), USUAL)(batch(0)[0][HALF]))
    expect(lambda: evenstep.burst(net_of(Failing), USUAL)(batch(0)[0][HALF]))
    expect(lambda: second_pass(batch(1)[0][HALF, None] if rank else batch(1)[0][HALF]))
    expect(lambda: second_pass(batch(1)[0][HALF]))
    expect(other_method)
    expect(lambda: evenstep.burst(net_of(), USUAL).targets([1]))  # type: ignore[arg-type]
    expect(chained)
    expect(combined)
    expect(lambda: evenstep.burst(net_of(), {**USUAL, "gpu_order": [1, 0], "memory_bytes": 1 << 60}))
    return said


def test_calls_of_one_rank_alone_are_refused_on_both() -> None:
    for *said, named in zip(
        *run_ranks(2, misled),
        (
            r"DivergedError: .* backward passes, .*: \[\[1, 1, 0, 1\], \[2, 0, 0, 1\]\]. .* if the loss is NaN",
            r"DivergedError: .*: \[\[0, 0, 0, 1\], \[1, 0, 0, 0\]\]. .* in the same mode",
            "UnsupportedError: layer '1' returned \\(8,\\) for 12 samples",
            "(UnsupportedError: rank 0: )?ZeroDivisionError: ",
            "DivergedError: .* different shape and type of samples",
            "DivergedError: .* different autocast type: it must be the same, not None and torch.bfloat16",
            "DivergedError: .* different method: it must be the same, not reduce and clip_grad_norm_",
            r"SettingError: targets\(y\) got list: must be a tensor",
            "UnsupportedError: the samples depend on parameters outside of the model",
            "UnsupportedError: LBFGS combines the gradients of all blocks",
            "SettingError: plan: memory_bytes 1152921504606846976 of rank 1, which runs all layers, must be at most",
        ),
        strict=True,
    ):
        for each in said:
            assert re.match(named, each), each


class Drawn(nn.Sequential):
    """Adds noise between layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self[1](self[0](x) + torch.randn(1, 4))
        return made


class Unread(nn.Sequential):
    """Has a parameter that only a loss could read."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self[1](self[0](x))
        return made


def hooked(*layers: nn.Module) -> nn.Module:
    net = nn.Sequential(*layers)
    net.register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Drawn, "Drawn cannot be cut: it draws random numbers between layers"),
        (Unread, "temperature is in no layer of the plan"),
        (hooked, "Sequential has hooks, which would not run"),
    ],
)
def test_models_whose_own_forward_pass_would_be_lost_are_refused(kind: Any, named: str) -> None:
    layers = [{"name": name, "samples": [2]} for name in ("0", "1")]
    with pytest.raises(UnsupportedError, match=named):
        evenstep.burst(kind(nn.Linear(4, 4), nn.Linear(4, 4)), {"gpus": 1, "global_batch": 2, "layers": layers})
