"""Measures how long ranks wait in any script with DistributedDataParallel, and estimates what balancing would bring."""

import json
import subprocess
import tempfile
from collections import deque
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.errors import EvenstepError
from evenstep.measure.moment import timer_of
from evenstep.start.local import find_program

#: Number of newest iterations that the estimate uses.
_KEPT = 512

#: Time limits of the end of a run for the times of the other ranks, and for the estimate, in seconds.
_PATIENCE_S, _ESTIMATE_S = 5.0, 60.0

#: A rank that takes this many times as long as the fastest one is named, and the maximum number of names.
_SLOW, _NAMES_MAX = 1.15, 4


class Watch:
    """Measures the compute time of this rank in each iteration: from a forward pass to the last gradient."""

    def __init__(self) -> None:
        """Starts without a model."""
        self._timer: Any = None
        self._begun: Any = None
        self._ended: Any = None
        self._spans: list[tuple[Any, Any]] = []
        #: Spans of the last iteration, which a GPU may still compute.
        self._earlier: list[tuple[Any, Any]] = []
        self._times: deque[float] = deque(maxlen=_KEPT)
        self._handles: list[tuple[int, Any]] = []
        self._last = 0
        #: Number of iterations.
        self.iterations = 0

    def follow(self, model: torch.nn.Module) -> None:
        """Measures the passes of a model, too."""
        used = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._timer = self._timer or timer_of(used[0].device)
        for parameter in used:
            handle = parameter.register_post_accumulate_grad_hook(self._computed)
            self._handles.append((id(parameter), handle))

    def hooked(self) -> tuple[Any, ...]:
        """Returns the functions that it has added to parameters."""
        return (self._computed,)

    def forward_begins(self) -> None:
        """Records the begin of a forward pass whose gradients are needed."""
        self._close()
        if self._begun is None:
            self._begun = self._timer.now()

    def _computed(self, parameter: torch.Tensor) -> None:
        self._ended, self._last = self._timer.now(), id(parameter)

    def _close(self) -> None:
        if self._begun is not None and self._ended is not None:
            self._spans.append((self._begun, self._ended))
            self._begun = self._ended = None

    def step_ends(self) -> None:
        """Records the end of an iteration."""
        self._close()
        if self._earlier:
            self._times.append(sum(self._timer.between(*span) for span in self._earlier))
        if self._spans and self.iterations == 1:
            # Gradients arrive in the same order, so the last one is enough.
            for number, handle in self._handles:
                if number != self._last:
                    handle.remove()
        self._earlier, self._spans, self._begun = self._spans, [], None
        self.iterations += 1

    def close(self) -> None:
        """Ends the measurement."""
        for _, handle in self._handles:
            handle.remove()
        self._handles.clear()

    def summary(self, store: Store, name: str, rank: int, ranks: int, batch: int | None) -> list[str]:
        """Returns the lines for rank 0, which waits for the times of the others; none on other ranks."""
        self.close()
        with suppress(RuntimeError):
            store.set(f"{name}/times/{rank}", json.dumps([round(seconds, 7) for seconds in self._times]))
        if rank:
            return []
        names = [f"{name}/times/{other}" for other in range(ranks)]
        try:
            store.wait(names, timedelta(seconds=_PATIENCE_S))
            times = [json.loads(store.get(name)) for name in names]
        except RuntimeError:
            return ["not all ranks have measured their iterations, so no gain is estimated"]
        return _estimate(times, batch)


def _estimate(times: list[list[float]], batch: int | None) -> list[str]:
    """Returns the lines about the compute times by rank, of the newest iterations."""
    count = min(map(len, times))
    rows = [
        f"{iteration},rank {rank},{batch or 64},{seconds[iteration - count]}\n"
        for iteration in range(count)
        for rank, seconds in enumerate(times)
    ]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "times.csv"
        trace.write_text("iteration,worker,local_batch,compute_time_s\n" + "".join(rows))
        command = ["simulate", "--json", "--networks", "no", "--warmup", "0.2", "--policies", "even,base"]
        command += ["--trace", str(trace), "--global-batch", str((batch or 64) * len(times))]
        try:
            command.insert(0, str(find_program("evenstep-predictor")))
            done = subprocess.run(command, capture_output=True, timeout=_ESTIMATE_S, check=True)  # noqa: S603  # Our program.
            found = json.loads(done.stdout)
            even = next(row for row in found["policies"] if row["policy"] == "even")
            way = next((way for way in found["advice"]["ways"] if way["advice"] == "use_evenstep"), None)
        except (subprocess.SubprocessError, OSError, ValueError, KeyError, StopIteration, EvenstepError):
            return [f"{count} measured iterations are too few to estimate a gain"]
    waited = even["barrier_wait_s"] / even["mean_step_time_s"]
    told = [f"{count} iterations measured, {waited:.0%} of their time lost waiting for the slowest rank"]
    sums = [sum(seconds[-count:]) for seconds in times]
    slow = sorted((rank for rank in range(len(sums)) if sums[rank] > _SLOW * min(sums)), key=lambda rank: -sums[rank])
    if slow:
        named = ", ".join(f"rank {rank} ({sums[rank] / min(sums):.1f} times as long)" for rank in slow[:_NAMES_MAX])
        told.append(f"slower than the fastest rank: {named}{' and others' if len(slow) > _NAMES_MAX else ''}")
    if way and (gain := way["gain"]):
        interval = f"90 % interval {gain['lower']:.2f} to {gain['upper']:.2f}"
        faster = f"{gain['ratio']:.2f} times as fast" if gain["lower"] > 1 else "not faster"
        told.append(f"balancing would make this {faster} ({interval})")
    return told
