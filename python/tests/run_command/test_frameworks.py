"""`evenstep run` on programs of Lightning, Accelerate and Hugging Face's Trainer that know nothing of evenstep."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shapes import data, net
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from ranks import preload, run_ranks

lightning = pytest.importorskip("lightning.pytorch", reason="evenstep[lightning] is not installed")
accelerate = pytest.importorskip("accelerate", reason="evenstep[accelerate] is not installed")
transformers = pytest.importorskip("transformers", reason="evenstep[transformers] is not installed")
preload("evenstep.run_command.script", "shapes", "lightning.pytorch", "accelerate", "transformers.trainer")
preload("transformers.models.gpt2.modeling_gpt2")

ENVIRON = {"EVENSTEP_RUN": '{"plan": [3, 1], "max_batch": [], "watch": false}'}
BATCH, EPOCHS = 4, 2


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]  # The package may be missing.
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: Any, _: int) -> Any:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def by_lightning(_: Path) -> Any:
    lightning.seed_everything(0, verbose=False)
    module = Module()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, **quiet)
    trainer.fit(module, DataLoader(data(), batch_size=BATCH, shuffle=True), DataLoader(data(), batch_size=BATCH))
    return module


def by_accelerate(_: Path) -> Any:
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = net()
    loader: Any = DataLoader(data(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
    for _epoch in range(EPOCHS):
        for x, target in loader:
            accelerator.backward(torch.nn.functional.mse_loss(model(x), target))
            optimizer.step()
            optimizer.zero_grad()
    return model


class Tokens(Dataset[Any]):
    """Sequences of different lengths, whose labels are padded."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, at: int) -> Any:
        tokens = torch.randint(0, 20, (8,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": tokens, "labels": tokens.masked_fill(torch.arange(8) > 2 + at % 6, -100)}


def by_trainer(folder: Path) -> Any:
    transformers.set_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=20, n_positions=8, **dropout)
    model = transformers.GPT2LMHeadModel(config).double()
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, use_cpu=True, report_to=[],
        save_strategy="no", eval_strategy="epoch", disable_tqdm=True, optim="sgd", learning_rate=0.1,
    )  # fmt: skip
    dataset = Tokens()
    transformers.Trainer(model=model, args=arguments, train_dataset=dataset, eval_dataset=dataset).train()
    return model


def compared(rank: int, work: Callable[[Path], Any], folder: Path) -> tuple[float, bool, str]:
    """Returns the difference to the program's own run, whether it was balanced, and why not."""
    from evenstep.run_command import hook  # noqa: PLC0415  # On a rank.
    from evenstep.run_command.script import Script  # noqa: PLC0415

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [parameter.detach() for parameter in work(folder / str(rank)).parameters()]

    own, stock = trained(), DistributedDataParallel.__init__

    @functools.wraps(stock)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        hook.made(self)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    run, script = trained(), Script.current
    assert script is not None
    script._ends()
    difference = max((a - b).abs().max().item() for a, b in zip(own, run, strict=True))
    return difference, script._balance is not None, script._why_not or script._odd


@pytest.mark.parametrize("work", [by_lightning, by_accelerate, by_trainer], ids=lambda work: str(work.__name__))
def test_an_unchanged_program_is_balanced_and_equals_its_own_run(work: Callable[[Path], Any], tmp_path: Path) -> None:
    found = run_ranks(2, compared, work, tmp_path, environ=ENVIRON)
    for difference, is_balanced, why_not in found:
        assert is_balanced, why_not
        assert difference < 1e-12
