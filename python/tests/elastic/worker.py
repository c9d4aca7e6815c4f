"""One worker of an elastic job; it logs the samples of each iteration that it completes, and the final parameters."""

import faulthandler
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import torch
import torch._dynamo  # Imported before the fork: an optimizer would, in each process.

import evenstep
from evenstep.job import init  # noqa: F401  # Imported before the fork.

SAMPLES, BATCH, EPOCHS = 400, 40, 3


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


def parts(seed: int = 0) -> tuple[Any, Any, Any]:
    """Returns a model, its optimizer and its scheduler."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def main(folder: str, script: dict[str, Any], environ: dict[str, str]) -> None:
    """Trains; ``script`` has the iterations and moments at which this worker does something."""
    os.environ.update(environ)
    logging.basicConfig(level=logging.INFO, filename=f"{folder}/{os.getpid()}.text", force=True)
    sys.stderr = open(f"{folder}/{os.getpid()}.errors", "w", buffering=1)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
    torch.set_num_threads(1)
    log = open(f"{folder}/{os.getpid()}.log", "w", buffering=1)  # noqa: SIM115

    def say(**what: Any) -> None:
        log.write(json.dumps(what) + "\n")

    # Workers that come have other parameters.
    net, optimizer, scheduler = parts(seed=script.get("seed", 0))
    options = {"min_workers": script.get("min_workers", 1), "hang_s": script.get("hang_s", 30.0)}
    job = evenstep.init(elastic=True, epochs=script.get("epochs", EPOCHS), **options)
    loader = job.loader(Data(), global_batch=BATCH)
    model = job.wrap(net, state=[optimizer, scheduler])
    events = {int(at): what for at, what in script.get("events", {}).items()}
    pause_s = script.get("pause_s", 0.0)

    def act(moment: str, iteration: int) -> None:
        what, at = events.get(iteration, ["", ""])
        if at == moment:
            say(event=what, iteration=iteration)
            events.pop(iteration)
            os.kill(os.getpid(), getattr(signal, what))

    before = job.generation
    for _ in range(script.get("epochs", EPOCHS)):
        for x, y, index in loader:
            with job.step() as step:
                begun = time.monotonic()
                if job.generation != before:
                    before = job.generation
                    say(generation=before, iteration=step.iteration, workers=torch.distributed.get_world_size())
                optimizer.zero_grad()
                act("begin", step.iteration)
                loss = torch.nn.functional.mse_loss(model(x), y)
                time.sleep(pause_s)
                loss.backward()
                # The sums of this worker are complete, and others may not have them.
                act("summed", step.iteration)
                optimizer.step()
                scheduler.step()
            if job.progress.iteration > step.iteration:
                ids = index.tolist() if step.local_batch else []
                say(iteration=step.iteration, generation=before, ids=ids, s=time.monotonic() - begun)
    flat = torch.cat([at.detach().reshape(-1) for at in net.parameters()])
    say(parameters=flat.tolist(), rate=scheduler.get_last_lr()[0])
    job.close()

