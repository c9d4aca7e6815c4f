"""Workers of an elastic job, forked from one process that has imported PyTorch.

A worker logs the samples of each iteration that it computes and completes, and its parameters at its end.
"""

import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # An optimizer would import it in each process.

import evenstep
from evenstep._native import Plan
from evenstep.elastic import keeper
from evenstep.elastic.sums import LostError
from evenstep.job.init import init
from evenstep.samples.order import Order
from evenstep.samples.progress import Progress, state_of

SAMPLES, BATCH = 400, 40


class Data(torch.utils.data.Dataset[Any]):
    """Samples with their indices."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
        self.y = self.x[:, :1] * self.x[:, 1:2]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


class Net(torch.nn.Module):
    """A model that also has unused tensors whose layout and type a copy must keep."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.unused = torch.nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)
        self.register_buffer("table", torch.arange(3, dtype=torch.int16))

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


def parts(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.SGD, Any]:
    """Returns a model, its optimizer and its scheduler."""
    torch.manual_seed(seed)
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)


def flat(net: torch.nn.Module) -> list[float]:
    """Returns all parameters."""
    return [value for at in net.parameters() for value in at.detach().reshape(-1).tolist()]


def loses_its_sums(job: Any, iteration: int) -> Callable[[], None]:
    """Makes the sums of one iteration fail on this worker after they are complete on the others."""
    sums, ends = job._sums, job._sums._sum

    def fail() -> None:
        ends()
        if sums._step.iteration == iteration and not sums.has_lost:
            sums.has_lost, sums.heard = True, None
            sums.failure = LostError("the sums of this worker failed")
            raise sums.failure

    sums.has_lost = False
    return fail


def stops(state_dict: Callable[[], Any]) -> Callable[[], Any]:
    """Stops this process once while it copies its state to another worker."""
    left = [signal.SIGSTOP]

    def stop() -> Any:
        if left and torch.distributed.get_world_size() > 1:
            os.kill(os.getpid(), left.pop())
        return state_dict()

    return stop


def main(folder: str, script: dict[str, Any]) -> None:  # noqa: C901, PLR0915
    """Trains; ``script`` has the iterations and moments at which this worker gets a signal or fails."""
    sys.stderr = Path(folder, f"{os.getpid()}.errors").open("w", buffering=1)  # noqa: SIM115
    logging.basicConfig(
        level=logging.INFO,
        filename=f"{folder}/{os.getpid()}.text",
        force=True,
        format="%(relativeCreated)d %(message)s",
    )
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
    log = Path(folder, f"{os.getpid()}.log").open("w", buffering=1)  # noqa: SIM115
    os.environ.update(script["environ"])
    torch.set_num_threads(1)

    def say(**what: Any) -> None:
        log.write(json.dumps(what) + "\n")

    # A worker that comes has other parameters until it gets the ones of the job.
    net, optimizer, scheduler = parts(script.get("seed", 0))
    epochs: int = script["epochs"]
    # The plan of an iteration after the last one is an error.
    plan = (lambda at: [*map(even, range(epochs * SAMPLES // BATCH))][at]) if script.get("plan") else None

    handled: list[int] = []

    def handle(*_: Any) -> None:
        handled.append(1)

    signal.signal(signal.SIGTERM, handle)
    sizes = {name: script[name] for name in ("min_workers", "max_workers") if name in script}
    job = init(elastic=True, epochs=epochs, hang_s=script.get("hang_s", 30.0), plan=plan, **sizes)
    if "checkpoint" in script:
        at = Progress(script["checkpoint"], 0, script["checkpoint"], script["checkpoint"] * BATCH)
        job.load_state_dict(state_of(at, Order(SAMPLES, BATCH), Plan.of([BATCH]), 0.0, "job"))
    loader = job.loader(Data(), global_batch=BATCH, num_workers=script.get("num_workers", 0))
    scaler = torch.amp.GradScaler("cpu", enabled=bool(script.get("scaler")))
    model = job.wrap(net, state=[optimizer, scheduler, *([scaler] if script.get("scaler") else [])])
    if script.get("stops"):
        optimizer.state_dict = stops(optimizer.state_dict)  # type: ignore[method-assign]
    events = {int(at): what for at, what in script.get("events", {}).items()}
    if "loses" in script:
        job._sums._sum = loses_its_sums(job, script["loses"])  # type: ignore[method-assign]

    def act(moment: str, iteration: int) -> None:
        name, at = events.get(iteration, ["", ""])
        if at == moment:
            events.pop(iteration)
            if name == "leave":
                job.leave()
                return
            os.kill(os.getpid(), getattr(signal, name))

    try:
        for _ in range(epochs):
            for x, y, index in loader:
                with job.step() as step:
                    generation = job.generation
                    ids = index.tolist() if step.local_batch else []
                    say(computes=step.iteration, generation=generation, ids=ids)
                    optimizer.zero_grad()
                    act("begin", step.iteration)
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    slow_s = script.get("slow_s", {}).get(str(generation), 0.0)
                    time.sleep(script.get("pause_s", 0.0) + slow_s * len(x))
                    # The scale overflows once, and the step of that iteration is left out.
                    (
                        scaler.scale(loss) * (float("inf") if scaler.is_enabled() and step.iteration == 3 else 1)
                    ).backward()
                    act("summed", step.iteration)
                    scaler.step(optimizer)
                    scaler.update()
                    if "outside" not in script:
                        scheduler.step()
                    say(completes=step.iteration, generation=generation)
            if "outside" in script:
                scheduler.step()
        assert signal.getsignal(signal.SIGTERM) is handle
    except SystemExit:
        say(leaves=job.progress.iteration)
        raise
    finally:
        say(
            iteration=job.progress.iteration,
            parameters=flat(net),
            rate=scheduler.get_last_lr()[0],
            handled=len(handled),
        )
    job.close()


def even(iteration: int) -> list[int]:
    """Returns a plan that depends on the iteration and on the number of workers."""
    count = torch.distributed.get_world_size()
    first = 1 + iteration % 5
    rest = BATCH - first
    return (
        [first, *(rest // (count - 1) + (at < rest % (count - 1)) for at in range(count - 1))] if count > 1 else [BATCH]
    )


def serve() -> None:
    """Forks a worker for each line, or waits for one."""
    assert evenstep.__file__
    for line in sys.stdin:
        told = json.loads(line)
        if "wait" in told:
            _, status = os.waitpid(told["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        if "listener" in told:
            # Faster than by a worker, because this process has imported PyTorch.
            bound = socket.create_server(("127.0.0.1", 0))
        if pid := os.fork():
            print(bound.getsockname()[1] if "listener" in told else pid, flush=True)
            if "listener" in told:
                bound.close()
            continue
        code = 1
        try:
            if "listener" in told:
                keeper._keep("127.0.0.1", bound.getsockname()[1], bound.fileno())
            else:
                main(told["folder"], told["script"])
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            logging.getLogger("evenstep").exception("the worker failed")
        finally:
            logging.shutdown()
            os._exit(code)


if __name__ == "__main__":
    serve()
