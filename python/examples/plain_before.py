"""A short training of one epoch, on CPUs or GPUs; start it with torchrun."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.manual_seed(0)
x = torch.randn(16_384, 64)
dataset = data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True))
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)

loader = data.DataLoader(dataset, batch_size=256 // dist.get_world_size(), sampler=data.DistributedSampler(dataset))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for inputs, targets in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
    loss.backward()
    optimizer.step()

if dist.get_rank() == 0:
    print(f"the last loss of rank 0: {loss.item():.2f}")
dist.destroy_process_group()
