"""The same training with Lightning: `torchrun --nproc-per-node 2 with_lightning.py`."""

import os
from typing import Any

import evenstep
import torch
from evenstep.lightning import EvenstepCallback
from lightning.pytorch import LightningModule, Trainer
from torch.utils import data


class Net(LightningModule):
    def __init__(self, job: evenstep.Job) -> None:
        super().__init__()
        self.job = job
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))

    def train_dataloader(self) -> Any:
        x = torch.randn(16_384, 64, generator=torch.Generator().manual_seed(0))
        return self.job.loader(data.TensorDataset(x, (x[:, :8] * x[:, 8:16]).sum(1, keepdim=True)), global_batch=256)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)


job = evenstep.init()
trainer = Trainer(
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    max_epochs=1,
    callbacks=[EvenstepCallback(job)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(job))
if trainer.is_global_zero:
    print(f"{trainer.global_step} steps")
