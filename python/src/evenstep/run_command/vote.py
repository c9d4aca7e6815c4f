"""The decision of all ranks whether to balance. It does not hang if the ranks of a script do different things."""

import json
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # missing in torch's type stubs.

#: Maximum time that a rank waits for the others before it decides for all that nothing is balanced, in seconds.
PATIENCE_S = 60.0


def decide(store: Store, name: str, rank: int, ranks: int, *, facts: dict[str, Any], why_not: str) -> str:
    """Returns why nothing is balanced, the same on all ranks; empty if all can, with the same facts.

    The first decision of a name that reaches the store counts, so a rank that comes late or alone gets it too.
    """
    store.set(f"{name}/vote/{rank}", json.dumps({"facts": facts, "why_not": why_not}))
    patience = timedelta(seconds=PATIENCE_S)
    try:
        if rank:
            store.wait([f"{name}/verdict"], patience)
            verdict = "unknown"
        else:
            votes = [f"{name}/vote/{other}" for other in range(ranks)]
            store.wait(votes, patience)
            verdict = _verdict([json.loads(store.get(vote)) for vote in votes])
    except RuntimeError:
        verdict = f"rank {rank} waited {PATIENCE_S:g} s for the others to read the same batch"
    return str(json.loads(store.compare_set(f"{name}/verdict", "", json.dumps(verdict))))


def _verdict(votes: list[dict[str, Any]]) -> str:
    for rank, vote in enumerate(votes):
        if vote["why_not"]:
            return str(vote["why_not"])
        for name, value in votes[0]["facts"].items():
            if vote["facts"][name] != value:
                return f"ranks differ: {name} is {value} on rank 0, and {vote['facts'][name]} on rank {rank}"
    return ""
