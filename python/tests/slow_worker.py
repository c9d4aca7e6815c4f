"""A job at a predictor with two workers, one of which becomes slow. It sends the requests of a training loop."""

from programs import fetch, fetch_json

#: The workers; the first becomes slow.
WORKERS = ("node-a/pod/0", "node-b/pod/0")
NORMAL, SLOW = 100.0, 50.0


class SlowWorker:
    """The job of the two workers."""

    def __init__(self, predictor: str, job: str) -> None:
        self._predictor, self._job, self._iteration = predictor, job, 0
        fetch(f"{predictor}/v1/jobs/{job}", method="PUT", body={"global_batch": 128})
        for worker in WORKERS:
            fetch(f"{predictor}/v1/jobs/{job}/workers", method="POST", body={"worker": worker})
        self._generation = fetch_json(f"{predictor}/v1/jobs/{job}")["generation"]

    def train(self, iterations: int, speed: float) -> None:
        """Reports iterations in which the first worker has this speed, in samples per second."""
        for _ in range(iterations):
            reports = [
                {
                    "worker": worker,
                    "iteration": self._iteration - 1,
                    "local_batch": 64,
                    "compute_time_s": 64 / own,
                    "drivers": {},
                }
                for worker, own in zip(WORKERS, (speed, NORMAL), strict=True)
            ]
            body = {
                "job_id": self._job,
                "generation": self._generation,
                "iteration": self._iteration,
                "reports": reports if self._iteration else [],
            }
            status, answer = fetch(f"{self._predictor}/allocate", method="POST", body=body)
            assert status == 200, answer
            self._iteration += 1
