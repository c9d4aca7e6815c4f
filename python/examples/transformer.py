"""A transformer trained with the parts of a usual script; start it with torchrun.

It writes a checkpoint after each epoch into the folder that it gets as argument. The next start continues from there.
"""

import os
import sys
from pathlib import Path
from typing import Any

import evenstep
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

EPOCHS, BATCH, TOKENS, LENGTH = 3, 64, 32, 16


class Transformer(torch.nn.Module):
    """Predicts the next token of each position."""

    def __init__(self) -> None:
        """Creates a network with two layers."""
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, 64)
        self.positions = torch.nn.Parameter(torch.randn(LENGTH, 64) * 0.1)
        layer = torch.nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(64, TOKENS)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: torch.Tensor) -> Any:
        """Returns the logits, shape (batch, length, tokens)."""
        return self.head(self.layers(self.embedding(tokens) + self.positions, mask=self.mask, is_causal=True))


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of a batch of sequences."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def validate(net: torch.nn.Module, dataset: data.TensorDataset) -> float:
    """Returns the mean loss over a data set, of which each rank reads a part."""
    device = next(net.parameters()).device
    part = data.Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    total = torch.zeros(2, dtype=torch.float64, device=device)
    net.eval()
    with torch.no_grad():
        for (batch,) in data.DataLoader(part, batch_size=64):
            total += torch.tensor([loss_of(net, batch.to(device)) * len(batch), len(batch)], device=device)
    net.train()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.manual_seed(0)
# Each token follows from the first one and its position.
sequences = (torch.randint(TOKENS, (1250, 1)) + 3 * torch.arange(LENGTH + 1)) % TOKENS
train_set, val_set = data.TensorDataset(sequences[:1000]), data.TensorDataset(sequences[1000:])
net = Transformer().to(device)

job = evenstep.init()
loader = job.loader(train_set, global_batch=BATCH, num_workers=2)
model = job.wrap(DistributedDataParallel(net))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=EPOCHS * len(loader))

checkpoints = sorted(Path(sys.argv[1]).glob("epoch-*.pt"))
if checkpoints:
    state = torch.load(checkpoints[-1], map_location=device)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    job.load_state_dict(state["job"])

for epoch in range(len(checkpoints), EPOCHS):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss_of(model, batch.to(device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    loss = validate(net, val_set)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: validation loss {loss:.4f}")
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        state["job"] = job.state_dict()
        torch.save(state, Path(sys.argv[1]) / f"epoch-{epoch}.pt")
dist.destroy_process_group()
