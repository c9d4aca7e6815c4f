"""A script as in PyTorch's tutorials: it knows nothing of evenstep."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(60, 6, dtype=torch.float64)
    dataset = TensorDataset(x, x[:, :1] * x[:, 1:2])
    sampler: DistributedSampler[object] = DistributedSampler(dataset, seed=5)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sizes = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            sizes.append(len(inputs))
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (len(loader), loader.batch_size, len(sizes)) == (8, 4, 16)
    found = {"sizes": sizes, "parameters": [at.tolist() for at in model.parameters()]}
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
