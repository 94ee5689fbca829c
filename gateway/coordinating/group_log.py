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
from octavo.gateway.groups.commits import Commits
from octavo.gateway.groups.entries import GroupEntry, decode_entry, encode_entry
from octavo.gateway.leading.led_log import LedLog
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
        self._led = LedLog[None](
            log,
            writer,
            Code.NOT_COORDINATOR,
            is_current=is_current,
            on_acknowledged=self._acknowledged,
            on_lost=on_lost,
        )
        self._is_live = is_live
        self._loop = asyncio.get_running_loop()
        self._restating: asyncio.Task[None] | None = None

    @property
    def lost(self) -> RefusedError | None:
        """Why the term is over; None while it is not."""
        return self._led.lost

    def check_leads(self) -> None:
        """Raise :class:`RefusedError` if the term is over, or may be."""
        self._led.check_leads()

    def add(self, entry: GroupEntry) -> asyncio.Future[None]:
        """Hand an entry over, in this step; a future that is done once it is acknowledged.

        Nothing withdraws it any more. To cancel the future only forgets the answer.

        Raises:
            RefusedError: The term is over.
        """
        payload = encode_entry(entry)
        self._led.add(payload)
        return self._led.answer(self.commits.hand_over(entry, len(payload)))

    def _acknowledged(self, position: int, _payload: bytes) -> None:
        self.commits.acknowledge(position)
        answer = self._led.answers.pop(position)
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
            await self._led.log.truncate(restating.before)
        except (RefusedError, OctavoError):
            return
        finally:
            self._restating = None

    def _add_restated(self, entry: GroupEntry) -> asyncio.Future[None]:
        before = self.commits.log_bytes
        added = self.add(entry)
        self.commits.note_restated(self.commits.log_bytes - before)
        return added

    async def close(self) -> None:
        """End the term: wait for what is under way, then give the log back."""
        if self._restating is not None:
            self._restating.cancel()
            await asyncio.wait([self._restating])
        with suppress(OctavoError):
            await self._led.close()
