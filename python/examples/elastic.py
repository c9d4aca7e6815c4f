"""A training that continues from its checkpoint when the launcher starts it again: `elastic.py FOLDER [EPOCHS]`."""

import os
import sys
from pathlib import Path

import evenstep
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
#: Iterations between two checkpoints.
EVERY = 10

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.manual_seed(0)
x = torch.randn(16_384, 64)
dataset = data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True))
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)

job = evenstep.init()
loader = job.loader(dataset, global_batch=256)
model = job.wrap(DistributedDataParallel(net))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

checkpoint, first = Path(sys.argv[1]) / "checkpoint.pt", 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    job.load_state_dict(state["job"])
    first = state["job"]["epoch"]

for _ in range(first, EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
        done = state["job"]["iteration"]
        if done % EVERY == 0:
            loss = job.reduce(loss)
            if dist.get_rank() == 0:
                # The old checkpoint stays until the new one is complete.
                torch.save(state, checkpoint.with_suffix(".partial"))
                checkpoint.with_suffix(".partial").replace(checkpoint)
                print(f"iteration {done}: loss {loss.item():.9f} on {dist.get_world_size()} ranks", flush=True)
dist.destroy_process_group()
