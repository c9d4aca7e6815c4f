"""Ray Train with workers that may join and leave: `python ray_train.py FOLDER`."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evenstep
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

EPOCHS = 3
#: Iterations between two reports. Each waits up to two seconds for Ray, so report seldom.
EVERY = 20


def train_loop(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(16_384, 64)
    dataset = data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True))
    device = get_device()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)

    job = evenstep.init()
    loader = job.loader(dataset, global_batch=config["global_batch"])
    # Ray's prepare_model would return the bare module if there is only one worker.
    model = job.wrap(DistributedDataParallel(net))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    first = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        job.load_state_dict(state["job"])
        first = state["job"]["epoch"]

    for _ in range(first, EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            done = job.state_dict()["iteration"]
            if done % EVERY == 0:
                report(job, model, optimizer, {"iteration": done, "loss": job.reduce(loss).item()})
    job.close()


def report(job: evenstep.Job, model: Any, optimizer: torch.optim.Optimizer, metrics: dict[str, float]) -> None:
    """All ranks call it together; only rank 0 has a checkpoint and the forecasts."""
    if train.get_context().get_world_rank() != 0:
        train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
        torch.save(state, Path(folder) / "state.pt")
        train.report({**metrics, **job.metrics()}, checkpoint=train.Checkpoint.from_directory(folder))


class Shares(train.UserCallback):
    """Prints the shares, the forecast and the gain, in the process that controls the run."""

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:  # noqa: ARG002
        told = metrics[0]
        shares = [f"{told.get(f'evenstep/local_batch/rank_{rank}', 0):.0f}" for rank in range(len(metrics))]
        shown = [f"{name} {form.format(told[key])}" for name, (key, form) in SHOWN.items() if key in told]
        line = f"iteration {told['iteration']}: loss {told['loss']:.9f}, batches {', '.join(shares)}"
        print(", ".join([line, *shown]), flush=True)


SHOWN = {"step time": ("evenstep/step_time_s", "{:.3g} s"), "gain": ("evenstep/gain", "{:.2f}x")}


def trainer(
    folder: str, workers: int | tuple[int, int], loop: Callable[[dict[str, Any]], None] = train_loop, **scaling: Any
) -> TorchTrainer:
    """Returns the trainer; ``workers`` is the number of workers, or its minimum and maximum."""
    return TorchTrainer(
        loop,
        train_loop_config={"global_batch": 256},
        torch_config=TorchConfig(backend="nccl" if torch.cuda.is_available() else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available(), **scaling),
        run_config=train.RunConfig(
            name="example",
            storage_path=folder,
            callbacks=[Shares()],
            failure_config=train.FailureConfig(max_failures=3),
        ),
    )


if __name__ == "__main__":
    trainer(str(Path(sys.argv[1]).absolute()), (1, 2)).fit()
