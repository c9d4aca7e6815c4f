"""The workers of a run: ranks, or groups of ranks that get the same samples, as with tensor parallelism."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from evenstep.errors import DivergedError, SettingError, UnsupportedError

#: The ranks over which samples differ: one rank of each worker.
Mesh = DeviceMesh | dist.ProcessGroup


@dataclass(frozen=True, slots=True)
class DataMesh:
    """This rank and the corresponding ranks of the other workers."""

    #: The ranks in the order of their workers.
    ranks: tuple[int, ...]
    #: Successive sums over these groups are a sum over the ranks.
    groups: tuple[dist.ProcessGroup, ...]

    @classmethod
    def of(cls, mesh: Any) -> "DataMesh":
        """Reads the argument of :func:`evenstep.init`.

        Raises:
            SettingError: it is no mesh, or this rank is not in it.
        """
        ranks: list[int] = []
        if isinstance(mesh, DeviceMesh):
            ranks = mesh.mesh.flatten().tolist()
        elif isinstance(mesh, dist.ProcessGroup):
            ranks = dist.get_process_group_ranks(mesh)
        if not (dist.is_initialized() and dist.get_rank() in ranks):
            given = "a process group of other ranks" if mesh is dist.GroupMember.NON_GROUP_MEMBER else mesh
            raise SettingError(
                f"mesh={given}: must be a DeviceMesh or a process group with this rank, over which samples differ, "
                'such as mesh["dp"]'
            )
        groups = mesh.get_all_groups() if isinstance(mesh, DeviceMesh) else [mesh]
        return cls(tuple(ranks), tuple(groups))


@dataclass(frozen=True)
class Workers:
    """The workers of all ranks."""

    #: The worker of each rank, from 0.
    of_ranks: tuple[int, ...] = (0,)

    @classmethod
    def of_meshes(cls, meshes: Sequence[Sequence[int] | None]) -> "Workers":
        """Returns the workers of the ranks that each rank got as ``mesh``: of itself and of one rank per worker.

        Raises:
            DivergedError: the ranks do not agree.
        """
        holders: dict[Sequence[int] | None, list[int]] = {}
        for rank, own in enumerate(meshes):
            holders.setdefault(own, []).append(rank)
        if None in holders:
            if len(holders) > 1:
                rank = next(rank for rank, own in enumerate(meshes) if (own is None) != (meshes[0] is None))
                raise DivergedError(
                    f"mesh: rank 0 has {meshes[0]} but rank {rank} has {meshes[rank]}: pass it on all ranks"
                )
            return cls(tuple(range(len(meshes))))
        given = [own for own in meshes if own is not None]
        for own in dict.fromkeys(given):
            if sorted(own) != holders[own]:
                other = next(rank for rank in own if given[rank] != own)
                raise DivergedError(
                    f"mesh: rank {holders[own][0]} has the ranks {list(own)} but rank {other} of them has "
                    f"{given[other]}: must be the same on all of them"
                )
        sizes = list(map(len, given))
        for rank, size in enumerate(sizes):
            if size != sizes[0]:
                raise DivergedError(
                    f"mesh: rank 0 has {sizes[0]} ranks but rank {rank} has {size}: all of the {len(meshes)} ranks "
                    "must have as many, because each worker has one of them"
                )
        places = {own: {rank: at for at, rank in enumerate(own)} for own in dict.fromkeys(given)}
        return cls(tuple(places[own][rank] for rank, own in enumerate(given)))

    @property
    def noun(self) -> str:
        """The word for a worker in messages."""
        return "rank" if len(self.members) == len(self.of_ranks) else "worker"

    @cached_property
    def members(self) -> list[list[int]]:
        """The ranks of each worker, in order."""
        found: list[list[int]] = [[] for _ in range(max(self.of_ranks) + 1)]
        for rank, worker in enumerate(self.of_ranks):
            found[worker].append(rank)
        return found

    def check_parts(self, name: str, peers: Sequence[int]) -> None:
        """Checks that the ranks with the parts of a parameter are one worker, because they need the same samples.

        Raises:
            UnsupportedError: they are not.
        """
        if len({self.of_ranks[rank] for rank in peers}) > 1:
            raise UnsupportedError(
                f"the ranks {list(peers)} have parts of parameter {name}, but belong to several of the workers of "
                f"init(mesh=..), which have the ranks {self.members}: pass the mesh over which samples differ, such as "
                'mesh["dp"]'
            )

    def copies(self, ranks: Sequence[int], loss: str) -> int:
        """Returns the number of ranks of each worker over which a model sums its gradients.

        Raises:
            UnsupportedError: workers have different numbers of them, or the loss would count samples several times.
        """
        numbers = Counter(self.of_ranks[rank] for rank in ranks)
        if len(numbers) != len(self.members) or len(set(numbers.values())) > 1:
            raise UnsupportedError(
                f"the model sums its gradients over the ranks {list(ranks)}, but the workers of init(mesh=..) have the "
                f"ranks {self.members}: must be over as many ranks of each worker; pass the mesh over which samples "
                'differ, such as mesh["dp"], to init'
            )
        copies = next(iter(numbers.values()))
        if copies > 1 and loss in ("sum", "scaled"):
            raise UnsupportedError(
                f'the model sums its gradients over {copies} ranks of each worker, and with wrap(loss="{loss}") it is '
                'unknown whether each of them computes all samples: use loss="mean", or loss="tokens" and job.count'
            )
        return copies
