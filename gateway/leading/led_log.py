"""A log that this gateway leads: one term of it, for a partition or for a coordinator of groups (rules K2 and K10).

A payload is handed to the log's writer in one step, and added whatever becomes of the request that it came with: no
closed connection and no time-out cancels it. Any failure of an add ends the lead, and everything under way is answered
with an error after which clients try again: whether it is in the log, the next leader finds out.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.gateway.codes import Code, RefusedError, WrongPositionError
from octavo.protocol.errors import OctavoError, WouldBlock


class LedLog[Answer]:
    """See the module."""

    def __init__(
        self,
        log: Log,
        writer: LogWriter,
        code: Code,
        *,
        is_current: Callable[[], bool],
        on_acknowledged: Callable[[int, bytes], object],
        on_lost: Callable[[], object],
    ) -> None:
        """``code``: the refusal of what comes once the lead is over. ``is_current``: whether no other gateway can lead
        yet, by the lease of this one. ``on_acknowledged`` is called with position and payload of each entry, in order;
        if it raises :class:`WrongPositionError`, the lead is over. ``on_lost`` is called once, when it is over."""
        self.log = log
        self.writer = writer
        self.answers: dict[int, asyncio.Future[Answer]] = {}
        """Of what is under way, by keys of the owner's: refused when the lead is over."""
        self.lost: RefusedError | None = None
        """Why the lead is over; None while it is not."""
        self._code = code
        self._is_current = is_current
        self._on_acknowledged = on_acknowledged
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._adding: set[asyncio.Future[int]] = set()

    def check_leads(self) -> None:
        """Raise :class:`RefusedError` if the lead is over, or may be.

        What a leader says of now, such as an end or an offset, is wrong once another one leads. A process that stood
        still does not know that yet; the lease of its gateway, asked for the time, does.
        """
        if not self.leads():
            assert self.lost is not None, "it is over"
            raise RefusedError(self.lost.code, self.lost.text)

    def leads(self) -> bool:
        """Whether the lead is not over, and cannot be: as :meth:`check_leads`."""
        if self.lost is None and not self._is_current():
            self._lose("the gateway's lease has ended")
        if self.lost is None and self.writer.lost.is_set():
            self._lose(self.writer.lost_reason or "the lead is lost")
        return self.lost is None

    def add(self, payload: bytes) -> None:
        """Hand a payload over, in this step. Nothing withdraws it any more.

        Raises:
            RefusedError: The lead is over.
        """
        self.check_leads()
        adding: asyncio.Future[int]
        try:
            adding = self.writer.add_nowait(payload)
        except WouldBlock:
            # It begins at once: the payload is in the writer's queue, behind those that wait there, before anything
            # else happens (rule K2).
            adding = asyncio.Task(self.writer.add(payload), loop=self._loop, eager_start=True)
        except OctavoError as error:
            self._lose(f"the writer of the log has refused an add: {error}")
            self.check_leads()
            return
        self._adding.add(adding)
        adding.add_done_callback(partial(self._added, payload))

    def answer(self, key: int) -> "asyncio.Future[Answer]":
        """A new answer, under this key. The owner takes it out of :attr:`answers` when it is given."""
        made = self.answers[key] = self._loop.create_future()
        return made

    def _added(self, payload: bytes, adding: asyncio.Future[int]) -> None:
        self._adding.discard(adding)
        error = None if adding.cancelled() else adding.exception()
        if self.lost is not None:
            return
        if adding.cancelled() or error is not None:
            self._lose(f"an add to the log has failed: {error}")
            return
        try:
            self._on_acknowledged(adding.result(), payload)
        except WrongPositionError as wrong:
            self._lose(str(wrong))

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = RefusedError(self._code, f"log {self.log.name}: {why}")
        answers, self.answers = self.answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(RefusedError(self.lost.code, self.lost.text))
                answer.exception()  # the request that waits for it may be gone
        self._on_lost()

    async def close(self) -> None:
        """End the lead: wait for what is under way, then give the log back. Raises :class:`OctavoError`."""
        try:
            await self.writer.close()
        except OctavoError as error:
            self._lose(str(error))
        if self._adding:
            await asyncio.wait(set(self._adding))
        self._lose("the gateway has given it up")
        await self.log.close()


@asynccontextmanager
async def leading(
    client: Client, log_name: str, leader_name: str, password: bytes
) -> AsyncIterator[tuple[Log, LogWriter]]:
    """Open a log and lead it; it is given back if the block raises. Raises as ``Client.open_log`` and ``Log.lead``."""
    log = await client.open_log(log_name, password=password)
    try:
        writer = await log.lead(leader_name)
        try:
            yield log, writer
        except BaseException:
            with suppress(OctavoError):
                await writer.close()
            raise
    except BaseException:
        await log.close()
        raise
