"""The recipes of the documents with TensorBoard, Weights & Biases and MLflow, whose own files are read back."""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from programs import ROOT
from ranks import run_ranks
from test_service import GLOBAL_BATCH, PACE_S, Paced, environ
from training import Samples, loss_of, network, sgd

PAGE = ROOT / "docs/how-to/trackers.md"
NAMES = {"evenstep/gain", "evenstep/step_time_s", "evenstep/local_batch/rank_0", "evenstep/local_batch/rank_1"}


def recipes() -> list[str]:
    """Returns the code of the page: the call, then the lines of each tracker."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def tracked(rank: int) -> list[dict[str, float]]:
    """Trains with all recipes of the page, in one block, and returns the numbers that rank 0 logged."""
    folder = Path(os.environ["TESTS_FOLDER"])
    call, *lines = recipes()
    block = call + "".join(re.sub(r"(?m)^", "    ", line).rstrip(" ") for line in lines)
    names: dict[str, Any] = {"dist": dist}
    if rank == 0:
        import mlflow  # noqa: PLC0415
        import wandb  # noqa: PLC0415
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        mlflow.set_tracking_uri(f"file:{folder / 'mlruns'}")
        mlflow.start_run()
        run = wandb.init(mode="offline", project="evenstep", dir=folder, settings=wandb.Settings(silent=True))
        names |= {"mlflow": mlflow, "wandb": wandb, "writer": SummaryWriter(folder / "tensorboard")}
    job = evenstep.init()
    loader = job.loader(Samples(), global_batch=GLOBAL_BATCH)
    model = job.wrap(DistributedDataParallel(Paced(network(), PACE_S * (1 + 3 * rank))))
    optimizer = sgd(model)
    told = []
    iteration = 0
    for _ in range(4):
        for x, y, _index in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            names |= {"job": job, "iteration": iteration}
            exec(block, names)  # noqa: S102  # The code of the page.
            if "numbers" in names:
                told.append(names.pop("numbers"))
            iteration += 1
    job.close()
    if rank == 0:
        names["writer"].close()
        run.finish()
        mlflow.end_run()
    return told


def wandb_history(file: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields steps and numbers from a file of an offline run: records in the form of LevelDB's log, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415

    data, at, part = file.read_bytes(), 7, b""
    block, head, whole, last = 32768, struct.Struct("<IHB"), 1, 4
    while at + head.size <= len(data):
        if (left := block - at % block) < head.size:
            at += left
            continue
        _checksum, length, kind = head.unpack_from(data, at)
        part += data[at + head.size : at + head.size + length]
        at += head.size + length
        if kind in (whole, last):
            record = Record.FromString(part)
            part = b""
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                yield (
                    record.history.step.num,
                    {name: float(value) for name, value in items.items() if name.startswith("evenstep/")},
                )


def test_trackers_get_the_numbers(predictor: str, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mlflow", "tensorboard", "wandb"):
        pytest.importorskip(package)
    variables = {
        "TESTS_FOLDER": str(tmp_path),
        # MLflow recommends a database. Its smallest package cannot write one.
        "MLFLOW_ALLOW_FILE_STORE": "true",
        # Nothing leaves this machine.
        "WANDB_MODE": "offline",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    told, others = run_ranks(2, tracked, environ={**environ(predictor, job_id), **variables})
    assert others == [], "only rank 0 logs"
    assert set(told[-1]) >= NAMES
    expected = {10 * at: numbers for at, numbers in enumerate(told)}

    history = dict(wandb_history(next(tmp_path.glob("wandb/offline-run-*/*.wandb"))))
    assert {step: pytest.approx(numbers) for step, numbers in history.items() if numbers} == expected

    from mlflow import MlflowClient  # noqa: PLC0415
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(f"file:{tmp_path / 'mlruns'}")
    [run] = client.search_runs(["0"])
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    for name in NAMES:
        values = {step: numbers[name] for step, numbers in expected.items() if name in numbers}
        logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        assert logged == pytest.approx(values), name
        # TensorBoard has float32.
        scalars = {event.step: event.value for event in accumulator.Scalars(name)}
        assert scalars == pytest.approx(values, rel=1e-6), name
