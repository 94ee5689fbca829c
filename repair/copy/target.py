"""The target: carries out the plan that the auditor has written for this bookie, and reports (rules A6 and A7)."""

import asyncio
import contextlib
from typing import Final

import structlog
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import (
    ClientClosedError,
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    OctavoError,
)
from octavo.protocol.ids import BookieId
from octavo.repair.base.documents import (
    Report,
    WorkPlan,
    decode_plan,
    decode_report,
    done_name,
    encode_report,
    work_name,
)
from octavo.repair.base.keep_running import keep_running
from octavo.repair.base.planning import Blocked, BlockedClass, Job
from octavo.repair.base.settings import RepairSettings
from octavo.repair.copy.jobs import Jobs
from octavo.repair.copy.progress import Progress
from octavo.repair.copy.puller import LOCAL_FAILURES, Copied

log = structlog.get_logger("octavo.repair")

STORE_PAUSE_SECONDS: Final = 1.0
"""Pause after the metadata store has not answered."""


class Target:
    """See the module."""

    def __init__(
        self, bookie_id: BookieId, store: MetadataStore, jobs: Jobs, copied: Copied, settings: RepairSettings
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._copied = copied
        self._settings = settings
        self._work_name, self._done_name = work_name(bookie_id), done_name(bookie_id)
        self._progress = Progress()
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._stored: Report | None = None
        self._stored_version: Version | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        await self._find_report()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_running("reports of copies", self._report_always))
                group.create_task(keep_running("plan of copies", self._follow_plans))
        finally:
            tasks = [*self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_plans(self) -> None:
        while True:
            with contextlib.suppress(MetadataError, MetadataUnavailableError):
                await self._follow_plan()
            await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def _find_report(self) -> None:
        while True:
            try:
                found = await self._store.read_document(self._done_name)
                if found is not None:
                    self._stored_version = found.version
                    self._stored = decode_report(found.value, self._done_name)
                    self._progress = Progress(self._stored)
            except MetadataUnavailableError:
                await asyncio.sleep(STORE_PAUSE_SECONDS)
                continue
            except MetadataError as error:
                log.warning("the report of this bookie cannot be understood; it begins again", reason=error.message)
            return

    async def _follow_plan(self) -> None:
        async with self._store.watch_document(self._work_name) as watch:
            async for found in watch:
                try:
                    plan = None if found is None else decode_plan(found.value, self._work_name)
                except MetadataError as error:
                    log.warning("the plan of this bookie cannot be understood", reason=error.message)
                    plan = None
                self._adopt(plan)

    def _adopt(self, plan: WorkPlan | None) -> None:
        for job in self._progress.adopt(plan).given_up:
            task = self._tasks.pop(job, None)
            if task is not None:
                task.cancel()
        self._changed.set()
        self._begin_jobs()

    def _begin_jobs(self) -> None:
        while len(self._tasks) < self._settings.ledgers_at_once:
            job = self._progress.next_job()
            if job is None:
                return
            task = asyncio.get_running_loop().create_task(self._do(job))
            self._tasks[job] = task

    async def _do(self, job: Job) -> None:
        try:
            blocked = await self._outcome(job)
        except asyncio.CancelledError:
            raise
        except (MetadataUnavailableError, *LOCAL_FAILURES):
            await asyncio.sleep(STORE_PAUSE_SECONDS)
            self._progress.put_back(job)
        else:
            self._progress.ended(job, blocked)
            self._changed.set()
        del self._tasks[job]
        self._begin_jobs()

    async def _outcome(self, job: Job) -> Blocked | None:
        try:
            return (await self._jobs.run(job)).blocked
        except (MetadataUnavailableError, *LOCAL_FAILURES):
            raise
        except OctavoError as error:  # read-only, metadata that cannot be understood: another target may do better
            log.warning("copies could not be made", ledger=int(job.ledger_id), reason=error.message)
            return Blocked(job.ledger_id, 0, None, BlockedClass.NO_TARGET, (), error.message)
        except Exception as error:
            log.exception("copies could not be made", ledger=int(job.ledger_id))
            return Blocked(job.ledger_id, 0, None, BlockedClass.NO_TARGET, (), f"{type(error).__name__}: {error}")

    # --- reports ------------------------------------------------------------------------------------------------------

    async def _report_always(self) -> None:
        """Store a report soon after something has changed; while there is work, also when nothing has, so that the
        auditor knows that this target lives."""
        while True:
            busy = self._progress.left > 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.silent_seconds / 4 if busy else None):
                    await self._changed.wait()
            self._changed.clear()
            if self._progress.plan.number:
                with contextlib.suppress(MetadataUnavailableError, MetadataConflictError):
                    await self._store_report()
            if self._progress.left:
                await asyncio.sleep(self._settings.report_seconds)
            else:
                await asyncio.sleep(self._settings.report_seconds / 10)

    async def _store_report(self) -> None:
        report = self._progress.report(entries_copied=self._copied.entries, bytes_copied=self._copied.bytes)
        try:
            self._stored_version = await self._store.put_document(
                self._done_name, encode_report(report), self._stored_version
            )
        except MetadataConflictError:
            # An earlier write whose answer was lost, or the auditor has deleted the report of a finished plan.
            found = await self._store.read_document(self._done_name)
            self._stored_version = None if found is None else found.version
            self._changed.set()
            return
        except ClientClosedError:
            return
        self._stored = report
