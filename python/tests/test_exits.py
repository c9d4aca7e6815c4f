"""The start and end of a process while another rank hangs, dies or is missing."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from evenstep._native import Plan
from evenstep.errors import EvenstepError
from evenstep.exchange import exchange
from evenstep.exchange.exchange import Exchange, Submission
from evenstep.exchange.report import Report
from programs import PATIENCE_S
from ranks import run_ranks

#: Rank 0 kills rank 1 or not while its interpreter ends.
END = """
class Last:
    # Other threads may run while the interpreter ends, until a deadline long after the peer's end is noticed.
    def __del__(self, kill=os.kill, sleep=time.sleep, write=os.write):
        if is_killed:
            kill(peer, 9)
            sleep(1.0)
        write(1, b"end")

sys.last_object = Last()
"""

#: Rank 1 stops itself, so rank 0's exchange waits for it.
EXCHANGE = """
import os, signal, sys, time
import torch.distributed as dist
from evenstep._native import Plan
from evenstep.exchange.exchange import Exchange, Submission
from evenstep.exchange.report import Report

rank, folder, peer, is_killed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "killed"
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
group = dist.new_group(backend="gloo")
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
exchange = Exchange(group, 2, [(0, Plan.even(4, 2))], dict, None)
exchange.submit(Submission(0, lambda: Report(0, 2, 0.1), True))
exchange.close(0.5)
"""

#: Rank 1 stops itself before its backward pass. Rank 0 fails in the middle of it.
BACKWARD = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import evenstep

rank, folder, peer, is_killed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "killed"
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
os.environ["LOCAL_RANK"] = str(rank)
job = evenstep.init(plan=[2, 2])
(x, *_), = job.loader(torch.utils.data.TensorDataset(torch.randn(4, 8)))

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("in the middle")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # One bucket for each type. That of the last layer is reduced first.
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1).double()

    def forward(self, x):
        return self.last(Fails.apply(self.first(x)).double())

model = job.wrap(DistributedDataParallel(Net()))
loss = model(x).sum()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    loss.backward()
except ValueError:
    pass
"""


@pytest.mark.parametrize("peer", ["killed", "stopped"])
@pytest.mark.parametrize("work", [EXCHANGE, BACKWARD], ids=["exchange", "backward"])
def test_a_rank_that_hangs_neither_aborts_nor_delays_the_end_of_another(work: str, peer: str, tmp_path: Path) -> None:
    """Both wait in Gloo's code. A collective itself waits half an hour."""
    script = tmp_path / "script.py"
    script.write_text(work + END)
    command = [sys.executable, "-W", "ignore", str(script)]
    stopped = subprocess.Popen([*command, "1", str(tmp_path), "0", peer])
    try:
        ends = subprocess.run(
            [*command, "0", str(tmp_path), str(stopped.pid), peer],
            capture_output=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
    finally:
        stopped.kill()
        stopped.wait()
    # Gloo of PyTorch 2.8 prints its connections.
    assert (ends.returncode, ends.stdout.splitlines()[-1:]) == (0, [b"end"]), ends.stderr


def closes_late(_rank: int, fails: str | None) -> bool:
    """Closes an exchange while the sum exists; returns whether that waits for the sum's end."""
    reduce, sums = dist.all_reduce, list[Any]()

    def all_reduce(*args: Any, **options: Any) -> Any:
        sums.append(reduce(*args, **options))
        if fails:
            raise RuntimeError(fails)
        return sums[-1]

    dist.all_reduce, exchange._NOTICE_S = all_reduce, PATIENCE_S
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    ended = Exchange(group, 2, [(0, Plan.even(4, 2))], dict, None)
    ended.submit(Submission(0, lambda: Report(0, 2, 0.1), is_last=True))
    ended.settle(PATIENCE_S)
    # A loop that reads again after an error gets no plan that other ranks may not have.
    for _ in range(2 if fails else 0):
        with pytest.raises(EvenstepError, match="a rank was lost"):
            ended.plan(9)
    closing = threading.Thread(target=ended.close, args=(PATIENCE_S,))
    closing.start()
    # Without a wait for the sum's end, this is enough.
    closing.join(0.5)
    waits = closing.is_alive()
    sums.clear()
    closing.join(PATIENCE_S / 2)
    return waits and not closing.is_alive()


@pytest.mark.parametrize("fails", [None, "a rank was lost"])
def test_an_exchange_ends_when_gloo_has_let_go_of_its_tensors(fails: str | None) -> None:
    """Gloo's thread needs the interpreter's lock for that, and would abort a process whose interpreter ends."""
    assert run_ranks(2, closes_late, fails) == [True, True]
