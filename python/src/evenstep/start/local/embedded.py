"""The predictor and the agents that a training run starts."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenstep.settings.launcher import slurm_job
from evenstep.start.local.error import LocalError, SlowStartError
from evenstep.start.local.folder import open_folder
from evenstep.start.local.programs import AGENT, PREDICTOR, STORE, Local

log = logging.getLogger("evenstep")

#: The store keeps raw rows up to this size, then only minutes of the older ones.
_KEEP = "1GiB"

#: Address of a predictor that is still starting. Nothing responds at the discard port, so the run looks for it again.
_NOT_YET = "http://127.0.0.1:9"

#: Time that the programs keep running without users in a Slurm job, in seconds: none may outlive the job for long.
_SLURM_LINGER_S = 10


@dataclass(slots=True)
class Embedded:
    """The part of one process: rank 0 starts the predictor, and local rank 0 of each node its agent."""

    #: URL of the predictor, on rank 0 only; None if it cannot be started.
    server: str | None = None
    _local: Local | None = field(default=None, repr=False)
    #: Held while the predictor is looked for, so that no thread is there when the interpreter ends.
    _finding: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _failure: str = ""
    #: Further arguments of both programs.
    _arguments: tuple[str, ...] = ()

    @classmethod
    def start(
        cls,
        rank: int,
        local_rank: int,
        *,
        with_agent: bool,
        server: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "Embedded":
        """Starts what this rank is responsible for. Never raises: training continues without the programs.

        Args:
            rank: the rank of this process.
            local_rank: its rank on its node.
            with_agent: whether local rank 0 starts the agent.
            server: URLs of a shared predictor, to which the agent sends samples; None to start a predictor on rank 0.
            environ: environment variables; Slurm's give the name of the node.
        """
        embedded, environ = cls(), environ or {}
        if slurm_job(environ):
            embedded._arguments = ("--linger-s", str(_SLURM_LINGER_S))
        starts_predictor = rank == 0 and server is None
        if not starts_predictor and (local_rank or not with_agent):
            return embedded
        try:
            embedded._local = Local(open_folder())
            if starts_predictor:
                embedded.server = first_server(embedded._local, embedded._arguments)
            if with_agent and local_rank == 0:
                # The embedded predictor of another node listens on its loopback address only.
                to = server or ("off" if embedded.server in (None, _NOT_YET) else embedded.server)
                spool = str(embedded._local.folder / "agent")
                name = None if environ.get("EVENSTEP_NODE") else environ.get("SLURMD_NODENAME")
                node = ["--node", name] if name else []
                flags = ["--server", to, "--spool-dir", spool, "--log", "warn", *node]
                embedded._local.start(AGENT, [*flags, *embedded._arguments])
        except LocalError as error:
            is_even = starts_predictor and embedded.server is None
            consequence = "with equal batches" if is_even else "without readings of GPUs"
            log.warning("%s; training continues %s", error, consequence)
        return embedded

    def find_server(self) -> str | None:
        """Returns the URL of the predictor, which is started again if it has ended; None if it cannot be started."""
        with self._finding:
            if self._local is None or self._local.closing.is_set():
                return None
            try:
                self.server = start_predictor(self._local, self._arguments)
            except LocalError as error:
                if str(error) != self._failure and not self._local.closing.is_set():
                    self._failure = str(error)
                    log.warning("%s; training continues with the last plan", error)
                return None
            return self.server

    def close(self) -> None:
        """Releases the programs, which end a while after their last user."""
        if self._local is not None:
            self._local.closing.set()
            with self._finding:
                self._local.close()


def first_server(local: Local, arguments: Sequence[str] = ()) -> str:
    """Returns the URL of the predictor, also if it is not ready yet.

    Raises:
        LocalError: it cannot be started.
    """
    try:
        return start_predictor(local, arguments)
    except SlowStartError as error:
        log.warning("%s; training begins with equal batches", error)
        return _NOT_YET


def start_predictor(local: Local, arguments: Sequence[str] = ()) -> str:
    """Returns the URL of the predictor, which is started if necessary.

    Raises:
        LocalError: it cannot be started.
    """
    store = f"sqlite://{local.folder / STORE}"
    return local.start(PREDICTOR, ["--store", store, "--keep-bytes", _KEEP, "--log", "warn", *arguments]).url
