"""The same training with Accelerate: `torchrun --nproc-per-node 2 with_accelerate.py`."""

import evenstep.accelerate
import torch
from accelerate import Accelerator
from torch.utils import data

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=not torch.cuda.is_available())
torch.manual_seed(0)
x = torch.randn(16_384, 64)
dataset = data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True))
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

job = evenstep.init()
loader = job.loader(dataset, global_batch=256, accumulate=2)
model, optimizer, loader = evenstep.accelerate.prepare(job, accelerator, net, optimizer, loader)

for inputs, targets in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

accelerator.print(f"the last loss of rank 0: {loss.item():.2f}")
accelerator.end_training()
