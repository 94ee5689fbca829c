"""The log of a coordinator: one term of it (rule K10).

An entry is handed over to the log's writer and to :class:`~octavo.gateway.groups.commits.Commits` in one step, and its
future is done once it is acknowledged. Any failure of an add ends the term, and everything under way is answered with
an error after which clients look for the coordinator again: whether it is in the log, the next coordinator finds out.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress

from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.commits import Commits, WrongPositionError
from octavo.gateway.groups.entries import GroupEntry, decode_entry, encode_entry
from octavo.protocol.errors import OctavoError


async def read_commits(log: Log, end: int, commits: Commits, is_live: Callable[[str], bool]) -> None:
    """Give the entries of a log below ``end`` to a machine that has none yet.

    ``is_live``: whether a topic with this id is there; offsets of others are forgotten.

    Raises:
        OctavoError: The bookies do not answer, or an entry is lost, or of a newer version.
    """
    if log.first_position < end:
        async with aclosing(log.entries(log.first_position, end - 1)) as entries:
            async for entry in entries:
                what = f"entry {entry.position} of log {log.name}"
                commits.load(entry.position, decode_entry(entry.payload, what), len(entry.payload))
    commits.loaded(end, is_live)


class GroupLog:
    """See the module."""

    def __init__(
        self,
        log: Log,
        writer: LogWriter,
        commits: Commits,
        *,
        is_current: Callable[[], bool],
        is_live: Callable[[str], bool],
        on_lost: Callable[[], object],
    ) -> None:
        """``commits``: as read from the log up to the writer's start. ``is_current``: whether no other gateway can
        coordinate yet, by the lease of this one. ``is_live``: whether a topic with this id is there. ``on_lost`` is
        called once, when the term is over."""
        self.commits = commits
        self._log = log
        self._writer = writer
        self._is_current = is_current
        self._is_live = is_live
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[None]] = {}
        """By position, of each entry under way."""
        self._adding: set[asyncio.Task[int]] = set()
        self._restating: asyncio.Task[None] | None = None
        self.lost: RefusedError | None = None
        """Why the term is over; None while it is not."""

    def check_leads(self) -> None:
        """Raise :class:`RefusedError` if the term is over, or may be.

        What a coordinator says of now, an offset or that a member still is one, is wrong once another one coordinates.
        A process that stood still does not know that yet; the lease of its gateway, asked for the time, does.
        """
        if self.lost is None and not self._is_current():
            self._lose("the gateway's lease has ended")
        if self.lost is None and self._writer.lost.is_set():
            self._lose(self._writer.lost_reason or "the lead is lost")
        if self.lost is not None:
            raise RefusedError(self.lost.code, self.lost.text)

    def add(self, entry: GroupEntry) -> asyncio.Future[None]:
        """Hand an entry over, in this step; a future that is done once it is acknowledged.

        Nothing withdraws it any more. To cancel the future only forgets the answer.

        Raises:
            RefusedError: The term is over.
        """
        self.check_leads()
        payload = encode_entry(entry)
        # It begins at once: the writer has the entry, or has refused it, before anything else happens.
        adding = asyncio.Task(self._writer.add(payload), loop=self._loop, eager_start=True)
        if adding.done() and adding.exception() is not None:
            self._lose(f"the writer of the log has refused an add: {adding.exception()}")
            self.check_leads()
        position = self.commits.hand_over(entry, len(payload))
        answer = self._answers[position] = self._loop.create_future()
        self._adding.add(adding)
        adding.add_done_callback(self._added)
        return answer

    def _added(self, adding: asyncio.Task[int]) -> None:
        self._adding.discard(adding)
        error = None if adding.cancelled() else adding.exception()
        if self.lost is not None:
            return
        if adding.cancelled() or error is not None:
            self._lose(f"an add to the log has failed: {error}")
            return
        try:
            self.commits.acknowledge(adding.result())
        except WrongPositionError as wrong:
            self._lose(str(wrong))
            return
        answer = self._answers.pop(adding.result())
        if not answer.done():
            answer.set_result(None)
        if self.commits.is_restating_due and self._restating is None:
            self._restating = self._loop.create_task(self._restate())

    async def _restate(self) -> None:
        """Add what is right of all groups once more, and truncate the log below. If it fails, the log stays long."""
        try:
            restating = self.commits.begin_restating()
            for group_id in restating.group_ids:
                # No other entry comes between what is restated of a group.
                added = [self._add_restated(one) for one in self.commits.restated(group_id, self._is_live)]
                if added:
                    await asyncio.wait(added)
            self.check_leads()
            await self._log.truncate(restating.before)
        except (RefusedError, OctavoError):
            return
        finally:
            self._restating = None

    def _add_restated(self, entry: GroupEntry) -> asyncio.Future[None]:
        before = self.commits.log_bytes
        added = self.add(entry)
        self.commits.note_restated(self.commits.log_bytes - before)
        return added

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = RefusedError(Code.NOT_COORDINATOR, f"log {self._log.name}: {why}")
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(RefusedError(self.lost.code, self.lost.text))
                answer.exception()  # the request that waits for it may be gone
        self._on_lost()

    async def close(self) -> None:
        """End the term: wait for what is under way, then give the log back."""
        if self._restating is not None:
            self._restating.cancel()
            await asyncio.wait([self._restating])
        try:
            await self._writer.close()
        except OctavoError as error:
            self._lose(str(error))
        if self._adding:
            await asyncio.wait(set(self._adding))
        self._lose("the gateway has given it up")
        with suppress(OctavoError):
            await self._log.close()
