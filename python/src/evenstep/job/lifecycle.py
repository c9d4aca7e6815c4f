"""The lifecycle of a training job: the start, the state and the end of its run."""

import atexit
import os
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

from evenstep.errors import SettingError, UnsupportedError
from evenstep.exchange.exchange import CLOSED
from evenstep.hedge.begin import hedged
from evenstep.job.kubeflow import TIMEOUT_S, StatusPoster
from evenstep.job.metrics import Metrics, trainjob_status
from evenstep.run.observer import Observer
from evenstep.run.run import Run
from evenstep.samples.order import Order
from evenstep.settings.options import RunOptions
from evenstep.start.opening import OpenRun, Place, open_run

#: Maximum time that the end of a run waits for the last reports to be delivered, in seconds.
CLOSE_S = 5.0


class Lifecycle:
    """Opens and closes the run of a job, and has its options and its checkpoint."""

    def __init__(self, job_options: RunOptions) -> None:
        """Stores the options, which :func:`evenstep.init` validates."""
        self.observer = Observer.current
        self.options = self.observer.job_made(job_options)
        #: The run, between :meth:`open` and :meth:`close`.
        self.opened: OpenRun | None = None
        #: Called at the end of the job, the last one first.
        self.ends = ExitStack()
        #: The state of the checkpoint from which the job resumes; empty without one.
        self.state: dict[str, Any] = {}
        #: The process of this job.
        self._process = os.getpid()
        self._closed = False
        self._last: Run | None = None
        self.metrics = Metrics()

    @property
    def run(self) -> Run:
        """The run of this job.

        Raises:
            SettingError: it has not started.
        """
        if self.opened is None:
            self._refuse_closed()
            raise SettingError("the run has not started: call job.loader first")
        return self.opened.run

    def started_run(self) -> Run | None:
        """Returns the run; None if it has not started."""
        return self.opened.run if self.opened else None

    @property
    def place(self) -> Place | None:
        """The job at the predictor; None without one."""
        return self.opened.plans.place if self.opened and self.opened.plans else None

    def hedge(self, tail: float | None, min_chunk: int | None) -> None:
        """Changes the options to those of hedged steps.

        Raises:
            SettingError: an option breaks its rule, or the run has started with others.
            UnsupportedError: some ranks get the same samples.
        """
        if self.options.mesh:
            raise UnsupportedError(
                f"job.steps with init(mesh=..) of the ranks {list(self.options.mesh.ranks)}: each rank would claim "
                "other samples; use job.loader, or remove mesh"
            )
        job_options = hedged(self.options, tail, min_chunk)
        if self.opened and job_options != self.options:
            raise SettingError(
                f"job.steps(tail={tail}, min_chunk={min_chunk}): cannot be changed after the run has started; use "
                "the first values, and either job.steps or job.loader"
            )
        self.options = job_options

    def open(self, order: Order, reads_ahead: int) -> Run:
        """Opens the run, together with all ranks.

        Raises:
            SettingError: the job is closed.
        """
        self._refuse_closed()
        self.opened = opened = open_run(self.options, order, reads_ahead, self.state)
        # Ranks may have numbered themselves.
        self.options = replace(self.options, settings=opened.begin.job_options.settings)
        atexit.register(self.close)
        self.ends.callback(atexit.unregister, self.close)
        # A process that multiprocessing forked calls no functions of atexit.
        self.ends.callback(Finalize(None, self.close, exitpriority=0).cancel)
        status = trainjob_status(opened, self.options.epochs)
        poster = StatusPoster.of_environment(os.environ, status) if opened.is_first else None
        if poster:
            # The last update may take longer than the end of the run.
            self.ends.callback(poster.join, CLOSE_S + TIMEOUT_S)
        self.ends.callback(opened.close, CLOSE_S)
        if poster:
            self.ends.callback(poster.stop)
        return opened.run

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the run, also after its end; see :meth:`Job.state_dict`."""
        return (self._last or self.run).state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Restores the progress of a checkpoint; see :meth:`Job.load_state_dict`."""
        self._refuse_closed()
        opened = self.opened
        if opened and not opened.run.starts:
            raise SettingError(
                f"load_state_dict: the first batch was read already, and {opened.run.binding.trained.iteration} "
                "iterations are done: load the checkpoint before the loop over job.loader, or continue it in a new job "
                "of evenstep.init()"
            )
        if opened:
            opened.restore(state)
            opened.run.limits_of(state)
        self.state = dict(state)

    def close(self) -> None:
        """Ends the job; see :meth:`Job.close`."""
        if os.getpid() != self._process:
            return
        self._last, self.opened, self._closed = self.started_run() or self._last, None, True
        self.ends.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SettingError(f"no run can begin, because {CLOSED}")
