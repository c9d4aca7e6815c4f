"""Runs `ray_train.py` on a cluster of two nodes on this machine, with imposed speeds; a node goes and comes back.

Usage: ray_elastic.py FOLDER

Every wait has a time limit. Run it in a network namespace: otherwise Ray listens on the address of the machine.
"""

import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

import ray_train

#: Time limit of each wait, in seconds.
LIMIT_S = 400.0

#: Seconds per sample by worker: the second one is three times as fast.
PACES_S = {"node-0/0": 6e-4, "node-1/0": 2e-4}

#: More than enough for three groups of workers. The speeds are imposed until the last one has reported.
EPOCHS = 20

STORE_BYTES = 100_000_000


def paced(config: dict[str, Any]) -> None:
    """The loop of the example at the speed of this node, in float64."""
    pace_s, is_over = PACES_S[os.environ["EVENSTEP_WORKER"]], Path(config["is_over"])

    def sleep(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Linear) and module.in_features == 64 and not is_over.exists():
            time.sleep(pace_s * len(inputs[0]))

    torch.set_default_dtype(torch.float64)
    torch.nn.modules.module.register_module_forward_pre_hook(sleep)
    ray_train.EPOCHS = EPOCHS
    ray_train.train_loop(config)


def until_workers(number: int, output: Path, fit: threading.Thread, begin: int) -> int:
    """Waits for a report of this number of workers after a position of the output; returns the position behind it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        for report in re.finditer(r"iteration \d+: .*? batches ([\d, ]+?)(?:, step|\n|$)", output.read_text()[begin:]):
            if len(report[1].split(",")) == number:
                return begin + report.end()
        if not fit.is_alive() or time.monotonic() > deadline:
            sys.exit(f"no report of {number} workers: {output.read_text()[begin:]}")
        time.sleep(0.2)


def main() -> None:
    folder, failed = Path(sys.argv[1]), []
    output, is_over = folder / "output", folder / "is-over"
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 2 * STORE_BYTES},
    )

    def add_node(number: int) -> Any:
        name = {"EVENSTEP_WORKER": f"node-{number}/0"}
        return cluster.add_node(num_cpus=1, resources={"slot": 1}, object_store_memory=STORE_BYTES, env_vars=name)

    add_node(0)
    second = add_node(1)
    ray.init(address=cluster.address)
    each = {"CPU": 1, "slot": 1}
    trainer = ray_train.trainer(
        str(folder / "store"), (1, 2), paced, resources_per_worker=each, elastic_resize_monitor_interval_s=5
    )

    trainer.train_loop_config["is_over"] = str(is_over)

    def run() -> None:
        try:
            trainer.fit()
        except BaseException as error:  # noqa: BLE001  # The main thread reports it.
            failed.append(error)

    # Nodes can only be added in the main thread.
    fit = threading.Thread(target=run)
    fit.start()
    at = until_workers(2, output, fit, 0)
    cluster.remove_node(second)
    at = until_workers(1, output, fit, at)
    add_node(1)
    until_workers(2, output, fit, at)
    is_over.touch()
    fit.join(LIMIT_S)
    if fit.is_alive() or failed:
        sys.exit(f"the training has not ended: {failed}")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
