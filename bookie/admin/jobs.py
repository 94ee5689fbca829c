"""Work that an operator has asked for and that takes longer than a request: begun, watched, cancelled by number."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from octavo.protocol.errors import OctavoError

log = structlog.get_logger("octavo.bookie")

KEPT_MAX = 100
"""Jobs that are over and can still be asked for."""


@dataclass(slots=True)
class Job:
    """One piece of work."""

    job_id: int
    kind: str
    began_at: float
    """The loop's seconds."""
    started_at: float
    """Seconds since 1970."""
    task: "asyncio.Task[Mapping[str, Any]]"
    seconds: float | None = None
    """How long it took; None while it runs."""

    def as_json(self, now: float) -> dict[str, Any]:
        """The job as clients see it; ``now`` is the loop's time."""
        value: dict[str, Any] = {
            "job": self.job_id,
            "kind": self.kind,
            "state": self._state(),
            "started_at": round(self.started_at, 3),
            "seconds": round(now - self.began_at if self.seconds is None else self.seconds, 3),
            "result": None,
            "error": None,
        }
        if self.task.done() and not self.task.cancelled():
            error = self.task.exception()
            if error is None:
                value["result"] = dict(self.task.result())
            else:
                value["error"] = error.message if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
        return value

    def _state(self) -> str:
        if not self.task.done():
            return "running"
        if self.task.cancelled():
            return "cancelled"
        return "done" if self.task.exception() is None else "failed"


class JobRunningError(Exception):
    """A job of this kind runs already; ``job_id`` is its number."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class Jobs:
    """The jobs of one bookie. ``wall_clock`` gives seconds since 1970."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._jobs: dict[int, Job] = {}
        self._last_id = 0

    def start(self, kind: str, work: Callable[[], Awaitable[Mapping[str, Any]]]) -> Job:
        """Begin ``work``, whose result is a JSON object. Raises :class:`JobRunningError` while there is such a job."""
        for job in self._jobs.values():
            if job.kind == kind and not job.task.done():
                raise JobRunningError(job.job_id)
        self._last_id += 1
        loop = asyncio.get_running_loop()

        async def run() -> Mapping[str, Any]:
            return await work()

        task = loop.create_task(run(), name=f"octavo-job-{kind}")
        job = self._jobs[self._last_id] = Job(self._last_id, kind, loop.time(), self._wall_clock(), task)
        log.info("job started", job=job.job_id, kind=kind)
        task.add_done_callback(lambda _task: self._ended(job))
        over = [old.job_id for old in self._jobs.values() if old.task.done()]
        for job_id in over[: max(0, len(over) - KEPT_MAX)]:
            del self._jobs[job_id]
        return job

    def get(self, job_id: int) -> Job | None:
        """The job with this number, if it is still known."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Every job that is still known, oldest first."""
        return list(self._jobs.values())

    async def stop(self) -> None:
        """Cancel what runs."""
        tasks = [job.task for job in self._jobs.values() if not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, job: Job) -> None:
        job.seconds = asyncio.get_running_loop().time() - job.began_at
        seen = job.as_json(0.0)
        log.info(
            "job ended", job=job.job_id, kind=job.kind, state=seen["state"], seconds=seen["seconds"],
            result=seen["result"], error=seen["error"],
        )  # fmt: skip
