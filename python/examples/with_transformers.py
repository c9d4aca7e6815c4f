"""A tiny language model with Hugging Face's Trainer: `torchrun --nproc-per-node 2 with_transformers.py`."""

import tempfile
from typing import Any

import evenstep
import torch
from evenstep.transformers import Trainer
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

VOCABULARY, LENGTH = 32, 24


class Counting(Dataset[dict[str, Any]]):
    """Sequences that count up from a random number, of different lengths."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = 6 + index * 7 % (LENGTH - 5)
        tokens = (torch.arange(LENGTH) + index) % VOCABULARY
        is_there = torch.arange(LENGTH) < length
        return {
            "input_ids": tokens,
            "attention_mask": is_there.long(),
            "labels": tokens.where(is_there, -100),
        }


config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    bos_token_id=0,
    eos_token_id=0,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        job=evenstep.init(),
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Counting(),
    )
    trainer.train()
