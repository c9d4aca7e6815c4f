"""Hugging Face's Trainer with uneven batches trains as one process does, for every kind of loss."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import evenstep
import ranks
from evenstep.samples.costs import Costs
from evenstep.samples.epoch import Epoch
from evenstep.samples.order import Order, epoch_seed
from training import difference, parameters

transformers = pytest.importorskip("transformers", reason="evenstep[transformers] is not installed")
pytest.importorskip("accelerate", reason="evenstep[transformers] is not installed")
Trainer = pytest.importorskip(
    "evenstep.transformers", reason="evenstep[transformers] is not installed", exc_type=ImportError
).Trainer
ranks.preload("transformers.trainer", "evenstep.transformers")

#: The required accuracy, in float64.
TOLERANCE = 1e-14
#: The required accuracy, in float32.
TOLERANCE_32 = 1e-6
SAMPLES, GLOBAL_BATCH, EPOCHS, SEED = 53, 8, 2, 42
CLIP = 0.5


def plan(iteration: int) -> list[int]:
    return [[4, 2, 2], [6, 2, 0], [2, 0, 6]][iteration % 3]


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Sequences of 1 to 9 tokens."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= SAMPLES:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(1, 11, (1 + index * 7 % 9,), generator=generator)
        return {"input_ids": tokens, "labels": tokens * 3 % 11}


class Marked(Sentences):
    """The same, each with one number as its label."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": super().__getitem__(index)["input_ids"], "labels": torch.tensor(index % 11)}


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    def padded(name: str, filler: int) -> torch.Tensor:
        if not rows[0][name].ndim:
            return torch.stack([row[name] for row in rows])
        return torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, filler)

    tokens = padded("input_ids", 0)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": padded("labels", -100)}


class Net(torch.nn.Module):
    """Returns an output for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(11, 6, padding_idx=0)
        self.head = torch.nn.Linear(6, 11)
        self.double()

    def logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.head(torch.tanh(self.embedding(input_ids)))
        return said


class Tokens(Net):
    """Divides by the number of items that it gets, as language models do."""

    def forward(self, input_ids: Any, labels: Any, num_items_in_batch: Any = None, **_: Any) -> Any:
        loss = functional.cross_entropy(self.logits(input_ids).flatten(0, 1), labels.flatten(), reduction="sum")
        return {"loss": loss / (num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum())}


class IgnoresItemCount(Net):
    """Takes the number of items and ignores it, as token classifiers do: the mean over its own items."""

    def forward(self, input_ids: Any, labels: Any, **_: Any) -> Any:
        return {"loss": functional.cross_entropy(self.logits(input_ids).flatten(0, 1), labels.flatten())}


class Plain(Net):
    """Does not take the number of items: the mean over samples."""

    def forward(self, input_ids: Any, labels: Any, attention_mask: Any) -> Any:
        said = self.logits(input_ids) * attention_mask.unsqueeze(-1)
        return {"loss": functional.cross_entropy(said.sum(1), labels)}


def language_model() -> Any:
    """A language model of the library; it computes partly in float32, regardless of its input."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, bos_token_id=0, eos_token_id=0)
    return transformers.LlamaForCausalLM(config)


def classifier() -> Any:
    """A classifier of the library; it takes the number of items and ignores it."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **drops, intermediate_size=16, num_labels=11)
    return transformers.BertForSequenceClassification(config)


#: The model, its data, and the required accuracy relative to one process.
MODELS: dict[str, tuple[Callable[[], Any], type[Sentences], float]] = {
    "tokens": (Tokens, Sentences, TOLERANCE),
    "deaf": (IgnoresItemCount, Sentences, TOLERANCE),
    "plain": (Plain, Marked, TOLERANCE),
    "Llama": (language_model, Sentences, TOLERANCE_32),
    "BERT": (classifier, Marked, TOLERANCE_32),
}


class Repeated(torch.utils.data.Sampler[int]):
    """Repeats each index, with a generator whose state continues over epochs, as TRL's RepeatSampler does."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(SEED)

    def __len__(self) -> int:
        return 2 * SAMPLES

    def __iter__(self) -> Any:
        for index in torch.randperm(SAMPLES, generator=self.generator).tolist():
            yield from (index, index)


class Unrepeatable(Repeated):
    """Has random numbers that no seed of the trainer reaches."""

    def __iter__(self) -> Any:
        yield from random.SystemRandom().sample(range(SAMPLES), SAMPLES)


def weighted() -> Any:
    """Draws with replacement from the global random numbers."""
    return torch.utils.data.WeightedRandomSampler([1.0 + index % 5 for index in range(SAMPLES)], 40)


def by_length() -> Any:
    lengths = [len(sample["input_ids"]) for sample in map(Sentences().__getitem__, range(SAMPLES))]
    return transformers.trainer_pt_utils.LengthGroupedSampler(1, lengths=lengths)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "weighted": weighted,
    "repeated": Repeated,
    "by length": by_length,
    "unrepeatable": Unrepeatable,
}


class Sampling(Trainer):  # type: ignore[misc,valid-type]  # Found at run time.
    """Overrides the sampler, as trainers for unbalanced data do."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return self.sampler()

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the loss twice, as trainers do that compare two passes."""
        losses = [super(Sampling, self).compute_loss(model, inputs, *args, **kwargs) for _ in range(2)]
        return sum(losses) / 2


def trainer(
    kind: str,
    job: evenstep.Job,
    accumulate: int,
    folder: str,
    trainer_class: Any = Trainer,
    *,
    own: Any = None,
    **options: Any,
) -> Any:
    net, dataset, _ = MODELS[kind]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments = transformers.TrainingArguments(
        **{"save_strategy": "no", "num_train_epochs": EPOCHS, **options},
        output_dir=folder,
        use_cpu=True,
        seed=SEED,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulate,
        dataloader_drop_last=True,
        max_grad_norm=CLIP,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    return trainer_class(
        job=job,
        global_batch=GLOBAL_BATCH,
        model=model,
        args=arguments,
        data_collator=collate,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        **{"train_dataset": dataset(), **(own or {})},
    )


def train(_rank: int, kind: str, accumulate: int, folder: str) -> list[list[float]]:
    train_ = trainer(kind, evenstep.init(plan=plan), accumulate, folder)
    train_.train()
    return parameters(train_.model)


class Listed(Sentences):
    """The same, with the lengths in a column."""

    column_names = ("input_ids", "labels", "length")

    def __getitem__(self, index: Any) -> Any:
        if index == "length":
            return [1 + at * 7 % 9 for at in range(SAMPLES)]
        return super().__getitem__(index)


def train_by_cost(_rank: int, accumulate: int, folder: str) -> list[list[float]]:
    own = {"train_dataset": Listed(), "cost": "length"}
    train_ = trainer("tokens", evenstep.init(plan=plan), accumulate, folder, own=own)
    train_.train()
    return parameters(train_.model)


def train_sampled(_rank: int, name: str, folder: str) -> list[list[float]]:
    if name == "by length":
        old = "group_by_length" in transformers.TrainingArguments.__dataclass_fields__
        options = {"group_by_length": True} if old else {"train_sampling_strategy": "group_by_length"}
        train_ = trainer("tokens", evenstep.init(plan=plan), 1, folder, **options)
    else:
        train_ = trainer("tokens", evenstep.init(plan=plan), 1, folder, Sampling)
        train_.sampler = SAMPLERS[name]
    train_.train()
    return parameters(train_.model)


class OwnLoader(Trainer):  # type: ignore[misc,valid-type]  # Found at run time.
    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Sentences(), GLOBAL_BATCH, collate_fn=collate)


def refused_sampler(_rank: int, folder: str) -> list[str]:
    told = []
    for trainer_class, options in (
        (Sampling, {}),
        (Trainer, {"train_sampling_strategy": "batch_rebalance"}),
        (OwnLoader, {}),
    ):
        train_ = trainer("tokens", evenstep.init(plan=plan), 1, folder, trainer_class, **options)
        train_.sampler = SAMPLERS["unrepeatable"]
        with pytest.raises(evenstep.EvenstepError) as refused:
            train_.train()
        told.append(str(refused.value))
    return told


def train_halves(_rank: int, folder: str) -> list[list[float]]:
    """Writes a checkpoint in the middle of the first epoch, and resumes from there with new objects."""
    # The first half ends at the checkpoint: later steps must not matter.
    trainer(
        "tokens", evenstep.init(plan=plan), 1, folder, max_steps=4, save_strategy="steps", save_steps=4, logging_steps=1
    ).train()
    resumed = trainer("tokens", evenstep.init(plan=plan), 1, folder, logging_steps=1)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == EPOCHS * (SAMPLES // GLOBAL_BATCH)
    for entry in resumed.state.log_history:
        assert entry["epoch"] == pytest.approx(entry["step"] / (SAMPLES // GLOBAL_BATCH), rel=1e-3)
    return parameters(resumed.model)


def resume_from_elsewhere(_rank: int, folder: str) -> str:
    with pytest.raises(evenstep.SettingError) as refused:
        trainer("tokens", evenstep.init(plan=plan), 1, folder).train(resume_from_checkpoint=folder)
    return str(refused.value)


def losses(_rank: int, accumulate: int, every: int, folder: str) -> tuple[float, float]:
    """Returns the mean loss of a training as it is returned and as it is logged."""
    train_ = trainer("tokens", evenstep.init(plan=plan), accumulate, folder, logging_steps=every)
    returned: float = train_.train().training_loss
    return returned, train_.state.log_history[-1]["train_loss"]


def one_process(
    kind: str, sampler: str | None = None, order: Order | None = None, told: Callable[[float], object] = abs
) -> list[list[float]]:
    """The reference: whole batches, plain PyTorch; ``told`` gets each loss."""
    net, dataset, _ = MODELS[kind]
    model, data = net(), dataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = order or Order(SAMPLES, GLOBAL_BATCH, SEED, drop_last=True)
    for epoch in range(EPOCHS):
        permutation = Epoch(order, epoch).indices(0, SAMPLES)
        if sampler:
            permutation = drawn(SAMPLERS[sampler](), epoch)
        for step in range(len(permutation) // GLOBAL_BATCH):
            rows = [data[at] for at in permutation[step * GLOBAL_BATCH :][:GLOBAL_BATCH]]
            optimizer.zero_grad()
            loss = model(**collate(rows))["loss"]
            told(loss.item())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    return parameters(model)


def drawn(sampler: Any, epoch: int) -> list[int]:
    """Draws from a sampler with the seed of an epoch."""
    seed = epoch_seed(SEED, epoch)
    torch.manual_seed(seed)
    if sampler.generator:
        sampler.generator.manual_seed(seed)
    return list(sampler)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_uneven_batches_train_as_one_process_does(kind: str, accumulate: int, tmp_path: Path) -> None:
    reference = one_process(kind)
    for trained in ranks.run_ranks(3, train, kind, accumulate, str(tmp_path)):
        assert difference(trained, reference) <= MODELS[kind][2]


@pytest.mark.parametrize(("accumulate", "every"), [(1, 500), (2, 500), (1, 5)])
def test_the_mean_loss_of_a_training_is_that_of_all_ranks(accumulate: int, every: int, tmp_path: Path) -> None:
    told: list[float] = []
    one_process("tokens", told=told.append)
    for found in ranks.run_ranks(3, losses, accumulate, every, str(tmp_path)):
        assert found == pytest.approx((sum(told) / len(told),) * 2, rel=TOLERANCE_32)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_tokens_are_balanced(accumulate: int, tmp_path: Path) -> None:
    costs = Costs.of([1 + at * 7 % 9 for at in range(SAMPLES)], SAMPLES)
    reference = one_process("tokens", order=Order(SAMPLES, GLOBAL_BATCH, SEED, drop_last=True, costs=costs))
    for trained in ranks.run_ranks(3, train_by_cost, accumulate, str(tmp_path)):
        assert difference(trained, reference) <= TOLERANCE


@pytest.mark.parametrize("name", ["weighted", "repeated", "by length"])
def test_a_sampler_is_the_order_of_samples(name: str, tmp_path: Path) -> None:
    reference = one_process("tokens", name)
    assert difference(reference, one_process("tokens")) > 1e-3, "another order"
    for trained in ranks.run_ranks(3, train_sampled, name, str(tmp_path)):
        assert difference(trained, reference) <= TOLERANCE


def test_a_kind_of_random_sampler_keeps_its_order() -> None:
    class EasiestFirst(torch.utils.data.RandomSampler):
        def __iter__(self) -> Any:
            return iter(range(SAMPLES))

    order = evenstep.transformers._order  # Accelerate's version decides which samplers arrive here.
    assert order(EasiestFirst(Sentences()), SAMPLES, SEED)["order"](0) == list(range(SAMPLES))
    assert order(torch.utils.data.RandomSampler(Sentences()), SAMPLES, SEED) == {"shuffle": True, "seed": SEED}


def test_an_order_leaves_the_random_numbers_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise dropout on GPUs would be the same on all ranks."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    sampler = torch.utils.data.RandomSampler(Sentences(), replacement=True, num_samples=50)
    order, state = evenstep.transformers._order(sampler, SAMPLES, SEED)["order"], torch.get_rng_state()
    assert order(0) == order(0) != order(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert not seeded


def test_samplers_that_cannot_be_an_order_are_refused(tmp_path: Path) -> None:
    unrepeatable, composed, own = ranks.run_ranks(3, refused_sampler, str(tmp_path))[0]
    assert "Unrepeatable" in unrepeatable
    assert "different indices in two calls" in unrepeatable
    assert composed.startswith("BatchRebalanceSampler composes the batches")
    assert own.startswith("OwnLoader.get_train_dataloader is overridden")


def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    for resumed in ranks.run_ranks(3, train_halves, str(tmp_path)):
        assert difference(resumed, one_process("tokens")) <= TOLERANCE


def test_only_what_was_trained_with_evenstep_is_resumed(tmp_path: Path) -> None:
    for said in ranks.run_ranks(2, resume_from_elsewhere, str(tmp_path)):
        assert os.path.join(tmp_path, "evenstep.json") in said  # noqa: PTH118
