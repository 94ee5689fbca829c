"""The requests of one connection that look something up: READ, READ_LAC with its long polls, SUBSCRIBE, LIST_ENTRIES,
MISSING.

A private ledger is read with its key, or by a repair (rule S3). That is checked on arrival, and again when the answer
is made: a reader may wait for a ledger that becomes private with its first add. Where the bookie may have lost
whether it is private, only a repair is served before the metadata have told.

Each waits for its turn in the connection's ``AnswerQueue``. A fence takes effect on arrival (rule F2). A request about
a deleted ledger is refused on arrival, so that the connection can ask the metadata whether the ledger is alive after
all (rule B5).
"""

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from octavo.bookie.memory.answer_budget import Grant
from octavo.bookie.memory.answer_memory import AnswerQueue, Demand
from octavo.bookie.server.access import Gate
from octavo.bookie.server.answers import (
    LIST_BYTES_MAX,
    MISSING_BYTES_MAX,
    answer_list_entries,
    answer_missing,
    answer_read,
    answer_read_lac,
)
from octavo.bookie.server.clients import Client
from octavo.bookie.server.ledger_privacy import PrivacyUnknownError
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.service import BookieService
from octavo.bookie.server.subscriptions import Subscriptions
from octavo.protocol.entries import SEALED_BYTES_MAX
from octavo.protocol.errors import BookieOverloadedError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import LONG_POLLS_PER_CONNECTION_MAX
from octavo.protocol.messages import ListEntries, Missing, Op, Read, ReadFlag, ReadLac, Reply, Subscribe, Subscribed

type _Readable = Read | ReadLac | ListEntries | Missing | Subscribe

Lookup: Final = (Read, ReadLac, ListEntries, Missing, Subscribe)
"""The requests that are served here."""


class LedgerKeyUnverifiedError(UnauthorizedError):
    """A read of a private ledger whose key is not pinned here: ``keys`` can verify the key of the request."""

    def __init__(self, message: str, keys: NewLedgers) -> None:
        super().__init__(message, may_have_happened=False)
        self.keys = keys


@dataclass(slots=True)
class _Turn:
    """A request that waits for something else before it waits for memory: a long poll, or a repair's read."""

    grant: Grant | None = None
    """The memory for its answer; None until it may be answered."""


class Lookups:
    """See the module."""

    def __init__(
        self,
        replies: Replies,
        answers: AnswerQueue,
        service: BookieService,
        gate: Gate | None = None,
        *,
        client: Callable[[], Client | None],
    ) -> None:
        """``gate`` knows the principal; None: clients are not asked who they are. ``client``: to which the connection
        belongs now."""
        self._client = client
        self.peer = "?"
        """``HOST:PORT`` of the client."""
        self._audit = service.audit
        self._gate = gate
        self._keys = service.new_ledgers
        self._replies = replies
        self._answers = answers
        self._storage = service.storage
        self._traffic = service.traffic
        self._repair_reads = service.repair_reads
        self.subscriptions = Subscriptions(
            service.storage.reader, replies, answers, service.traffic, check=self._check_readable, client=client
        )
        self.long_polls = 0
        """Long polls that wait, or whose answer is being looked up."""

    def serve(self, request_id: int, request: _Readable) -> None:
        """Serve a request. Raises :class:`UnauthorizedError`, :class:`NoSuchLedgerError`,
        :class:`BookieOverloadedError`."""
        if isinstance(request, Read):
            self._read_entries(request_id, request)
        elif isinstance(request, ReadLac):
            self._read_lac(request_id, request)
        elif isinstance(request, Subscribe):
            self._subscribe(request_id, request)
        else:
            self._check_readable(request)
            bytes_max = LIST_BYTES_MAX if isinstance(request, ListEntries) else MISSING_BYTES_MAX
            demand = Demand(0, entry_bytes_min=0, other_bytes=bytes_max)
            self._look_up(request_id, request.op, demand, partial(self._list, request))

    # --- inside ------------------------------------------------------------------------------------------------

    def _read_entries(self, request_id: int, request: Read) -> None:
        """Entries. Raises :class:`UnauthorizedError`, :class:`NoSuchLedgerError`."""
        if request.flags == ReadFlag.REPAIR:
            self._check_readable(request)
            turn = _Turn()
            task = self._replies.start(request_id, request.op, self._repair_read(request, turn), None)
            task.add_done_callback(lambda _task: self._turn_is_over(turn))
            return
        durable = self._fence_or_check(request)
        self._look_up(request_id, request.op, Demand(request.bytes_max), partial(self._read, request), durable)

    def _read_lac(self, request_id: int, request: ReadLac) -> None:
        """The last add confirmed, now or when it has risen. Raises :class:`UnauthorizedError`,
        :class:`BookieOverloadedError`, :class:`NoSuchLedgerError`."""
        durable = self._fence_or_check(request)
        if request.wait_milliseconds == 0 or durable is not None:
            self._look_up(request_id, request.op, _lac_demand(request), partial(self._lac, request), durable)
            return
        if self.long_polls >= LONG_POLLS_PER_CONNECTION_MAX:
            raise BookieOverloadedError(f"more than {LONG_POLLS_PER_CONNECTION_MAX} long polls on one connection")
        client = self._client()
        if client is not None:
            client.begin_long_poll()
        self.long_polls += 1
        self._replies.set_aside()
        turn = _Turn()
        task = self._replies.start(request_id, request.op, self._long_poll(request, turn), None)
        task.add_done_callback(lambda _task: self._long_poll_finished(turn, client))

    def _subscribe(self, request_id: int, request: Subscribe) -> None:
        """Set or end a subscription. Raises :class:`UnauthorizedError`, :class:`BookieOverloadedError`,
        :class:`NoSuchLedgerError`."""
        if request.credit_bytes is None:
            self.subscriptions.end(request.subscription)
        else:
            self._check_readable(request)
            self.subscriptions.set(request)
        self._replies.finish(Subscribed(), request_id)

    def _look_up(
        self,
        request_id: int,
        op: Op,
        demand: Demand,
        answer: Callable[[int], Awaitable[Reply]],
        durable: asyncio.Future[None] | None = None,
    ) -> None:
        """``answer`` is computed when it is its turn, with the bytes of entries that it may bring, and sent once
        ``durable`` is done."""
        began_at = self._replies.began_at

        def begin(grant: Grant) -> None:
            work = answer(grant.bytes_max)
            if durable is not None:
                work = _sent_after(work, durable)
            task = self._replies.start(request_id, op, work, began_at)
            task.add_done_callback(lambda _task: self._answers.finish(grant))

        self._answers.put(demand, begin)

    def _fence_or_check(self, request: Read | ReadLac) -> asyncio.Future[None] | None:
        """Fence the ledger if the request asks for that; done once the fence is durable."""
        self._check_readable(request)
        return self._fence(request) if request.flags & ReadFlag.FENCE else None

    def _check_readable(self, request: _Readable) -> None:
        """Raise :class:`NoSuchLedgerError` for a deleted ledger, :class:`UnauthorizedError` unless a private one may be
        read with this request (rule S3), :class:`PrivacyUnknownError` if the metadata must tell first whether it is."""
        ledger_id = LedgerId(request.ledger_id)
        reader = self._storage.reader
        private, pinned = reader.private_key(ledger_id)
        if not private and not reader.privacy_is_lost(ledger_id):
            return
        if self._is_of_repair(request):
            return
        if not private:
            raise PrivacyUnknownError(ledger_id)
        key = request.ledger_key if isinstance(request, Read | ReadLac | Subscribe) else b""
        if key and pinned is not None and hmac.compare_digest(pinned, key):
            return
        if pinned is not None or not key:
            self._audit.refused("read", "private", principal=self._principal, peer=self.peer, ledger=int(ledger_id))
        message = f"ledger {ledger_id} is private: it is read with its password, or with the role repair"
        if not key or pinned is not None or self._keys is None:
            raise UnauthorizedError(message, may_have_happened=False)
        if not self._keys.is_verified(ledger_id, key):
            raise LedgerKeyUnverifiedError(message, self._keys)

    @property
    def _principal(self) -> str | None:
        return self._gate.name if self._gate is not None else None

    def _is_of_repair(self, request: _Readable) -> bool:
        if self._gate is not None:
            return self._gate.may_repair
        # A bookie that asks no client who it is cannot tell a repair from a client that says that it is one.
        if isinstance(request, Read | ReadLac):
            return bool(request.flags & ReadFlag.REPAIR)
        return not isinstance(request, Subscribe)

    def _fence(self, request: Read | ReadLac) -> asyncio.Future[None]:
        """Takes effect here, in the order of arrival; done once it is durable (rule F2)."""
        if not request.ledger_key:
            raise UnauthorizedError(f"ledger {request.ledger_id}: a fence needs the ledger key")
        writer = self._storage.writer
        fences = writer.fences
        durable = writer.fence(LedgerId(request.ledger_id), request.ledger_key, request.term)
        if writer.fences > fences:
            term = request.term or None
            self._audit.note("fence", principal=self._principal, peer=self.peer, ledger=request.ledger_id, term=term)
        return durable

    async def _read(self, request: Read, bytes_max: int) -> Reply:
        self._check_readable(request)
        self._repair_reads.ordinary_begins()
        try:
            answer = await answer_read(self._storage.reader, request, bytes_max)
        finally:
            self._repair_reads.ordinary_ends()
        traffic = self._traffic
        traffic.reads += 1
        traffic.entries_read += len(answer.entries)
        traffic.bytes_read += sum(map(len, answer.entries))
        return answer

    async def _repair_read(self, request: Read, turn: _Turn) -> Reply:
        await self._repair_reads.wait_turn()
        turn.grant = await self._answers.wait_turn(Demand(request.bytes_max))
        answer = await answer_read(self._storage.reader, request, turn.grant.bytes_max)
        self._repair_reads.count(sum(map(len, answer.entries)))
        return answer

    async def _list(self, request: ListEntries | Missing, _bytes_max: int) -> Reply:
        if isinstance(request, ListEntries):
            self._check_readable(request)
            return await answer_list_entries(self._storage.reader, request)
        answer = await answer_missing(self._storage.reader, request)
        # What is not missing counts as a copy (rule I9), and an add may have been accepted and not synced yet.
        await self._storage.writer.sync_accepted()
        return answer

    async def _lac(self, request: ReadLac, bytes_max: int) -> Reply:
        self._check_readable(request)
        return await answer_read_lac(self._storage.reader, request, bytes_max)

    async def _long_poll(self, request: ReadLac, turn: _Turn) -> Reply:
        # Counted as outstanding only while it is answered.
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.wait_milliseconds / 1000):
                    await self._storage.reader.wait_lac(LedgerId(request.ledger_id), request.above, request.term)
        finally:
            self._replies.resume()
        turn.grant = await self._answers.wait_turn(_lac_demand(request))
        self._check_readable(request)
        return await answer_read_lac(self._storage.reader, request, turn.grant.bytes_max)

    def _long_poll_finished(self, turn: _Turn, client: Client | None) -> None:
        self.long_polls -= 1
        if client is not None:
            client.end_long_poll()
        self._turn_is_over(turn)

    def _turn_is_over(self, turn: _Turn) -> None:
        if turn.grant is not None:
            self._answers.finish(turn.grant)


async def _sent_after(work: Awaitable[Reply], durable: asyncio.Future[None]) -> Reply:
    """Computed after the fence, sent after it is durable."""
    reply = await work
    await durable
    return reply


def _lac_demand(request: ReadLac) -> Demand:
    """The evidence of the LAC, which may be an entry, and the entries asked for."""
    if request.entries_max:
        return Demand(request.bytes_max, other_bytes=SEALED_BYTES_MAX)
    return Demand(0, entry_bytes_min=0, other_bytes=SEALED_BYTES_MAX)
