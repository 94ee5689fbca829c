"""The replies of one connection: which requests are outstanding, and how their answers are sent.

A request is *outstanding* from :meth:`Replies.begin` to its reply, except while it is set aside (a long poll that waits
for something to happen). Replies leave in the order in which they are ready.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import structlog
from octavo.bookie.server.authority import Standing
from octavo.bookie.server.request_counts import RequestCounts
from octavo.protocol.errors import InternalError, OctavoError
from octavo.protocol.frames import LENGTH
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.messages import Added, Op, Reply, encode_error
from octavo.protocol.packs import encode_done

log = structlog.get_logger("octavo.bookie")

_JOIN_BYTES_MAX = 128 * 1024
"""Bodies up to this size are copied behind their length: a write of four bytes by itself is a system call and a packet
more, and wakes the client for nothing."""


class Replies:
    """See the module. ``on_finished`` is called after a reply while :attr:`watched` is set."""

    def __init__(
        self, on_finished: Callable[[], None], counts: RequestCounts, standing: Standing | None = None
    ) -> None:
        self._on_finished = on_finished
        self._standing = standing or Standing.always()
        self._counts = counts
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._packed: set[int] = set()
        """Ids of requests that came in packs and are outstanding."""
        self._done: dict[int, Op] = {}
        """Ids and operations of the requests of packs that have succeeded in this turn of the event loop."""
        self.outstanding = 0
        self.began_at = 0.0
        """When the request arrived that is being dispatched, by the clock of the counts."""
        self.watched = False
        self.bytes_sent = 0
        self.closed = True

    def connected(self, transport: asyncio.Transport) -> None:
        """From now on replies can be sent."""
        self._transport = transport
        self.closed = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size()

    # --- requests ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A request has arrived."""
        self.outstanding += 1
        self.began_at = self._counts.clock()

    def begin_pack(self, first_id: int, requests: int) -> None:
        """As many requests have arrived in one frame, with ids that follow one another."""
        self.outstanding += requests
        self.began_at = self._counts.clock()
        self._packed.update(range(first_id, first_id + requests))

    def set_aside(self) -> None:
        """The request waits for something to happen, and does not count meanwhile."""
        self.outstanding -= 1

    def resume(self) -> None:
        """The request that was set aside counts again."""
        self.outstanding += 1

    def start(self, request_id: int, op: Op, work: Awaitable[Reply], began_at: float | None) -> asyncio.Task[None]:
        """Answer a request that arrived at ``began_at`` (None: its time does not count) once ``work`` is done;
        cancelled when the connection is lost."""
        return self.spawn(self._answer(request_id, op, work, began_at))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which answers a request itself; cancelled when the connection is lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, request_id: int, op: Op, work: Awaitable[Reply], began_at: float | None) -> None:
        try:
            reply = await work
            body = b"" if request_id in self._packed else reply.encode(request_id)
        except asyncio.CancelledError:
            self.outstanding -= 1
            raise
        except Exception as error:  # every failure is an answer; none may end the bookie from here
            self.refuse(request_id, op, error)
        else:
            self._counts.answered(op, began_at)
            if body:
                self._finish(body)
            else:
                self._finish_packed((request_id,), op)

    # --- replies ----------------------------------------------------------------------------------------------

    def finish(self, reply: Reply, request_id: int) -> None:
        """Send the reply of the request that is being dispatched."""
        self._counts.answered(reply.op, self.began_at)
        if request_id in self._packed:
            self._finish_packed((request_id,), reply.op)
        else:
            self._finish(reply.encode(request_id))

    def _finish(self, body: bytes) -> None:
        self.outstanding -= 1
        self.send(body)
        if self.watched:
            self._on_finished()

    def added(self, request_id: int, began_at: float, failure: BaseException | None) -> None:
        """Send the reply of an add that arrived at ``began_at``. The bookie may have been paused since: whether it may
        confirm anything is asked here, by the clock (rule B10)."""
        if failure is None:
            counts = self._counts
            now = counts.clock()
            if now >= self._standing.sure_until and not self._standing.may_confirm(now):
                self.refuse(request_id, Op.ADD, self._standing.refusal(may_have_happened=True))
                return
            counts.add_seconds.observe(now - began_at)
            if request_id in self._packed:
                self._finish_packed((request_id,), Op.ADD)
            else:
                self._finish(Added().encode(request_id))
        else:
            self.refuse(request_id, Op.ADD, failure)

    def added_together(self, request_ids: Sequence[int], began_at: float, failure: BaseException | None) -> None:
        """As :meth:`added` for adds of one pack that have one outcome."""
        now = self._counts.clock()
        if failure is None and now >= self._standing.sure_until and not self._standing.may_confirm(now):
            failure = self._standing.refusal(may_have_happened=True)
        if failure is not None:
            for request_id in request_ids:
                self.refuse(request_id, Op.ADD, failure)
            return
        self._counts.add_seconds.observe_alike(now - began_at, len(request_ids))
        self._finish_packed(request_ids, Op.ADD)

    def refuse(self, request_id: int, op: Op, error: BaseException) -> None:
        """Send an error as the reply of a request. One that is not an :class:`OctavoError` is a defect, and logged."""
        if not isinstance(error, OctavoError):
            log.error("request failed by a defect", error=repr(error), exc_info=error)
            error = InternalError(f"a defect of the bookie: {type(error).__name__}")
        self._counts.note_refused(op, error)
        self._packed.discard(request_id)
        self._finish(encode_error(request_id, op, error))

    def _finish_packed(self, request_ids: Sequence[int], op: Op) -> None:
        """Requests of packs have succeeded: they are answered when the turn of the event loop ends, with the others."""
        self._packed.difference_update(request_ids)
        if not self._done:
            asyncio.get_running_loop().call_soon(self.send_done)
        self._done.update(dict.fromkeys(request_ids, op))

    def send_done(self) -> None:
        """Answer the requests of packs that have succeeded, unless the bookie has been paused since for so long that it
        may confirm nothing (rule B10)."""
        done, self._done = self._done, {}
        if not done:
            return
        now = self._counts.clock()
        if now >= self._standing.sure_until and not self._standing.may_confirm(now):
            for request_id, op in done.items():
                self.refuse(request_id, op, self._standing.refusal(may_have_happened=True))
            return
        self.outstanding -= len(done)
        done_ids = list(done)
        for start in range(0, len(done_ids), ENTRIES_PER_FRAME_MAX):
            self.send(encode_done(done_ids[start : start + ENTRIES_PER_FRAME_MAX]))
        if self.watched:
            self._on_finished()

    def send(self, body: bytes) -> None:
        """Send a frame with this body; nothing once the connection is closed."""
        if not self.closed:
            # Not writelines(): asyncio's own transports do not pause their protocol in it.
            size = len(body)
            self.bytes_sent += LENGTH.size + size
            prefix = LENGTH.pack(size)
            if size <= _JOIN_BYTES_MAX:
                self._transport.write(prefix + body)
            else:
                self._transport.write(prefix)
                self._transport.write(body)

    def close(self) -> None:
        """Send what is ready, and nothing more."""
        self.send_done()
        self.closed = True

    def cancel(self) -> None:
        """The connection is lost: end the requests that are being worked on."""
        self.closed = True
        self._done.clear()
        for task in self._tasks:
            task.cancel()
