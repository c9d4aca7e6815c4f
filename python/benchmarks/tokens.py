"""Useful tokens per second of a small transformer on ranks of unequal speed, for several ways to split an iteration.

    OMP_NUM_THREADS=1 python benchmarks/tokens.py --predictor ../target/release/evenstep-predictor --json tokens.json

The script starts a predictor and four ranks like torchrun, with Gloo on CPUs. Each rank takes an imposed time per token
(real gradients, then sleep up to the target), so four ranks fit on two cores. All policies train on the same documents
with the same global batch. Rates count useful tokens, not padding, after the warm-up. *Of ideal* is their fraction of
the sum of the imposed speeds.

- fixed: equal numbers of documents, padded to the longest of each rank's batch, as with DistributedSampler.
- bucketed: the same, with documents of similar length in the same iteration.
- tokens: equal numbers of tokens on all ranks, packed, as Megatron and verl balance.
- speed: the predictor's shares in documents, packed.
- tokens_x_speed: the predictor's shares in tokens, packed.
- hedged: the same with a shared tail.
- ratio: the given shares of tokens in the ratio of the speeds, packed, without a predictor.

Padding costs imposed time, but is not computed. With ``--width H``, a document of L tokens takes the time of
L + L^2 / (6 H) tokens, as in a transformer of this width. The policies are not told the width, and *of ideal* counts
this work.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # missing in torch's type stubs.
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import evenstep
import start

POLICIES = ("fixed", "bucketed", "tokens", "speed", "tokens_x_speed", "hedged", "ratio")

#: Distributions of document lengths in tokens: log-normal with median 512, and the mix of ODB's synthetic benchmark.
LENGTHS = ("lognormal-0.5", "lognormal-0.8", "lognormal-1.0", "odb")
MEDIAN, LONGEST = 512, 4096
ODB = ((0.72, 64, 384), (0.22, 384, 1400), (0.06, 1400, 4096))

WIDTH, WORDS = 16, 256

_CONTEXT = multiprocessing.get_context("forkserver")
# DistributedDataParallel loads the compiler at its first use, which takes longer than a policy.
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "torch._dynamo.callback", "evenstep"])


def lengths_of(name: str, count: int, seed: int) -> torch.Tensor:
    """Draws document lengths in tokens."""
    generator = torch.Generator().manual_seed(seed)
    if name == "odb":
        kinds = torch.multinomial(torch.tensor([share for share, _, _ in ODB]), count, True, generator=generator)
        low, high = (torch.tensor([kind[at] for kind in ODB])[kinds] for at in (1, 2))
        return (low + torch.rand(count, generator=generator) * (high - low)).long()
    sigma = float(name.removeprefix("lognormal-"))
    drawn = torch.exp(math.log(MEDIAN) + sigma * torch.randn(count, generator=generator))
    return drawn.long().clamp(1, LONGEST)


class Documents(Dataset[torch.Tensor]):
    """Random tokens of given lengths."""

    def __init__(self, lengths: torch.Tensor) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(WORDS, (int(self.lengths[index]),), generator=torch.Generator().manual_seed(index))


class Paced(torch.autograd.Function):
    """The identity, whose backward pass returns at a given time, after the backward passes of all later layers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, until: float) -> torch.Tensor:
        ctx.until = until
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(max(0.0, ctx.until - time.perf_counter()))
        return gradient, None


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)[0]


class Transformer(torch.nn.Module):
    """One layer over packed documents, which do not attend to each other. A pass takes an imposed time."""

    def __init__(self, pace_s: float, quadratic: float) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )
        self.head = torch.nn.Linear(WIDTH, WORDS)
        self.pace_s = pace_s
        self.quadratic = quadratic

    def work(self, lengths: Sequence[int]) -> float:
        """Returns the work of documents in tokens."""
        return sum(length + self.quadratic * length**2 for length in lengths)

    def forward(self, documents: list[torch.Tensor], computed: float) -> torch.Tensor:
        """Returns the sum of the losses of the next tokens; ``computed`` is the work with padding."""
        begun = time.perf_counter()
        x = Paced.apply(self.embedding(torch.cat(documents)), begun + self.pace_s * computed)
        qkv = self.project(x)[None].split([len(document) for document in documents], dim=1)
        attended = [attend(*own.chunk(3, dim=-1)) for own in qkv]
        x = x + torch.cat(attended)
        outputs = self.head(x + self.feed(x))
        labels = torch.cat([torch.cat([document[1:], document.new_tensor([-100])]) for document in documents])
        return cross_entropy(outputs, labels, reduction="sum")


def batches(job: evenstep.Job, policy: str, data: Documents, model: Any, size: int) -> Iterator[Iterable[Any]]:
    """Yields each iteration as an iterable of batches."""
    if policy == "hedged":
        smallest = int(data.lengths.float().mean())
        yield from job.steps(
            data, global_batch=size, model=model, cost=data.lengths, min_chunk=smallest, collate_fn=list
        )
        return
    options: dict[str, Any] = {}
    if policy in {"tokens", "tokens_x_speed", "ratio"}:
        options["cost"] = data.lengths
    if policy == "bucketed":
        options["order"] = lambda epoch: bucketed(data.lengths, size, epoch)
    for batch in job.loader(data, global_batch=size, collate_fn=list, **options):
        yield [batch]


def bucketed(lengths: torch.Tensor, size: int, epoch: int) -> torch.Tensor:
    """Sorts documents by length, cuts them into iterations, and shuffles the iterations."""
    whole = lengths.argsort(stable=True)[: len(lengths) // size * size].view(-1, size)
    return whole[torch.randperm(len(whole), generator=torch.Generator().manual_seed(epoch))].flatten()


def work(rank: int, policy: str, environ: dict[str, str], told: Any, options: argparse.Namespace) -> None:
    """Runs one rank."""
    os.environ.update({**environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "EVENSTEP_WORKER": f"node/{rank}"})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    speed = options.speeds[rank] * options.unit
    given = {
        policy: [options.global_batch // options.ranks] * options.ranks for policy in ("fixed", "bucketed", "tokens")
    }
    given["ratio"] = [round(100 * own) for own in options.speeds]
    job = evenstep.init(plan=given[policy]) if policy in given else evenstep.init()
    net = Transformer(1 / speed, 1 / (6 * options.width) if options.width else 0.0)
    model = job.wrap(DistributedDataParallel(net), loss="tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = options.warm_up + options.steps
    data = Documents(lengths_of(options.lengths, steps * options.global_batch, options.seed))
    useful, done, computed, begun = 0, 0.0, 0.0, 0.0
    for step, iteration in enumerate(batches(job, policy, data, model, options.global_batch)):
        if step == options.warm_up:
            dist.barrier()
            begun, useful, done, computed = time.perf_counter(), 0, 0.0, 0.0
        optimizer.zero_grad()
        for documents in iteration:
            lengths = [len(document) for document in documents]
            work = net.work(lengths)
            padded = net.work([max(lengths)] * len(lengths)) if policy in {"fixed", "bucketed"} else work
            job.count(sum(lengths) - len(lengths))
            model(documents, padded).backward()
            useful, done, computed = useful + sum(lengths), done + work, computed + padded
        optimizer.step()
        if step + 1 == steps:
            break
    dist.barrier()
    took_s = time.perf_counter() - begun
    sums = torch.tensor([useful, done, computed], dtype=torch.float64)
    dist.all_reduce(sums)
    if rank == 0:
        useful, done, computed = sums.tolist()
        ideal = done / (sum(options.speeds) * options.unit)
        told.put((useful / took_s, ideal / took_s, 1 - done / computed, took_s / options.steps))
    job.close()
    dist.barrier()
    dist.destroy_process_group()


def measured(policy: str, server: str, options: argparse.Namespace) -> tuple[float, float, float, float]:
    """Returns useful tokens per second, the fraction of ideal, the fraction of padding, and seconds per step."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {
        "WORLD_SIZE": str(options.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "EVENSTEP_SERVER": server,
        "EVENSTEP_HOME": os.devnull,
        "EVENSTEP_JOB": f"{policy}-{options.lengths}-{'-'.join(f'{speed:g}' for speed in options.speeds)}",
    }
    told = _CONTEXT.SimpleQueue()
    arguments = (policy, environ, told, options)
    ranks = [_CONTEXT.Process(target=work, args=(rank, *arguments)) for rank in range(options.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        sys.exit(f"{policy}: ranks ended with {[process.exitcode for process in ranks]}")
    result: tuple[float, float, float, float] = told.get()
    return result


def main() -> None:
    """Runs each policy for each combination of speeds and lengths, and prints one line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", default="1:2:2:4,1:1:1:1", help="relative speeds of the ranks, for several runs")
    parser.add_argument("--lengths", default=",".join(LENGTHS), help="distributions of document lengths")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--unit", type=float, default=5_000.0, help="tokens per second of a rank with speed 1")
    parser.add_argument("--global-batch", type=int, default=64, help="documents per iteration")
    parser.add_argument("--steps", type=int, default=40, help="number of measured steps")
    parser.add_argument("--warm-up", type=int, default=20, help="number of warm-up steps")
    parser.add_argument("--width", type=float, help="width of the transformer; without it time has no quadratic part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--predictor", type=Path, help="default: the newest build of this repository")
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
    if given.predictor:
        os.environ["EVENSTEP_PREDICTOR"] = str(given.predictor)
    runs = []
    with start.predictor() as server:
        for speeds in given.speeds.split(","):
            for lengths in given.lengths.split(","):
                own = argparse.Namespace(**{**vars(given), "lengths": lengths})
                own.speeds = [float(speed) for speed in speeds.split(":")]
                own.ranks, together = len(own.speeds), sum(own.speeds) * own.unit
                print(f"speeds {speeds}, {lengths}: {together:.0f} tokens/s is the sum of the speeds")
                for policy in given.policies.split(","):
                    tokens_per_s, of_ideal, padding, step_s = measured(policy, server, own)
                    print(
                        f"  {policy:14} {tokens_per_s:7.0f} tokens/s, {of_ideal:6.1%} of ideal, "
                        f"{padding:5.1%} padding, {1e3 * step_s:.0f} ms per step",
                        flush=True,
                    )
                    runs.append(
                        {
                            "speeds": speeds,
                            "lengths": lengths,
                            "width": own.width,
                            "policy": policy,
                            "tokens_per_s": tokens_per_s,
                            "of_ideal": of_ideal,
                            "padding": padding,
                            "step_s": step_s,
                        }
                    )
    if given.json:
        given.json.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
