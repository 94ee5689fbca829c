"""A bookie in memory that speaks the real wire over a real socket, with switches for everything that can go wrong.

Entries, fences and LACs live in dictionaries; nothing is durable, and ``stop`` keeps them, as a disk would. No switch
counts time: a held answer waits until the test releases it, so tests decide every order of events themselves.

    bookie = FakeBookie("b1")
    await bookie.start()
    bookie.hold(Op.ADD)            # adds are stored, their answers wait
    ...
    await bookie.received(Op.ADD, 3)
    bookie.release(Op.ADD, 1)      # the first of the held answers leaves
    await bookie.stop()
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from octavo.metadata import BookieRegistration, BookieState, MetadataStore
from octavo.protocol.entries import header_of, is_intact, verify_batch, verify_explicit_lac
from octavo.protocol.errors import (
    DigestMismatchError,
    DuplicateEntryError,
    LedgerFencedError,
    OctavoError,
    ProtocolError,
    TermOverError,
    UnauthorizedError,
    UnsupportedOperationError,
)
from octavo.protocol.frames import FrameDecoder, frame_of, unpack_body
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.messages import (
    CAPABILITY_DEFERRED_SYNC,
    CAPABILITY_REPAIR,
    CAPABILITY_TERMS,
    CONNECTION_REQUEST_ID,
    MAGIC,
    PROTOCOL_VERSION,
    Add,
    Added,
    AddFlag,
    EntryList,
    Force,
    Forced,
    Hello,
    Info,
    InfoAnswer,
    LacAnswer,
    LacWritten,
    ListEntries,
    Missing,
    MissingAnswer,
    Op,
    Ping,
    Pong,
    Read,
    ReadAnswer,
    ReadFlag,
    ReadLac,
    Reply,
    Request,
    WriteLac,
    decode_hello,
    decode_request,
    encode_error,
    encode_hello,
)
from octavo.protocol.packs import CAPABILITY_PACKS, USUAL, decode_pack, encode_done, is_pack
from octavo.protocol.places import check_places, last_place
from support.clusters.fake_ledger import FakeLedger
from support.waiting import WAIT_SECONDS

CLUSTER_ID = "test-cluster"


def _unanswered(request: Request) -> Reply:
    raise AssertionError(f"{type(request).__name__} was not answered before")


class FakeBookie:
    """See the module. ``address`` is known once :meth:`start` has returned and stays the same when started again."""

    def __init__(self, bookie_id: str = "bookie", *, cluster_id: str = CLUSTER_ID, in_doubt: bool = False) -> None:
        self.bookie_id = bookie_id
        self.cluster_id = cluster_id
        self.boot_id = "boot-1"
        self.in_doubt = in_doubt
        self.ledgers: dict[int, FakeLedger] = {}
        self.requests: list[Request] = []
        """Everything asked, in order, whatever became of it."""
        self.connections_made = 0
        self.hello_hung = False
        """While true, connections are accepted and nothing is ever said."""
        self.capabilities: tuple[str, ...] = (
            CAPABILITY_REPAIR, CAPABILITY_DEFERRED_SYNC, CAPABILITY_TERMS, CAPABILITY_PACKS,
        )  # fmt: skip
        """Of its hello. Without packs it takes none, as an older bookie."""
        self.packs: list[int] = []
        """The packs that have arrived: how many requests each had."""
        self.facts: dict[str, str | int | float | bool] = {"version": "fake"}
        self._server: asyncio.Server | None = None
        self._port = 0
        self._wires: set[_FakeWire] = set()
        self._refusals: dict[Op, deque[OctavoError]] = {}
        self._refusing: dict[Op, OctavoError] = {}
        self._dropped: set[Op] = set()
        self._held: dict[Op, deque[Callable[[], None]]] = {}
        self._altered: dict[Op, Callable[[Any], Reply]] = {}
        self._changed = asyncio.Event()
        self._long_polls: list[_LongPoll] = []
        self._answers: dict[type[Request], Callable[[Any], Reply]] = {
            Add: self._add,
            Read: self._read,
            ReadLac: self._read_lac,
            WriteLac: self._write_lac,
            Force: self._force,
            ListEntries: self._list,
            Missing: self._missing,
            Info: lambda _request: InfoAnswer(self.facts),
            Ping: lambda _request: Pong(),
        }

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, on the port of last time if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _FakeWire(self), "127.0.0.1", self._port, reuse_address=True)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and break every connection. What is held stays; held answers are lost."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.disconnect()
        await self.until(lambda: not self._wires)

    def restarted(self) -> None:
        """Take a new boot id, as a process started again has; deferred adds that were not forced are lost."""
        self.boot_id = f"boot-{int(self.boot_id.split('-')[1]) + 1}"
        for ledger in self.ledgers.values():
            for entry_id in ledger.unforced:
                del ledger.entries[entry_id]
            ledger.unforced.clear()

    def registration(self) -> BookieRegistration:
        """What a bookie at this address registers."""
        return BookieRegistration(
            bookie_id=BookieId(self.bookie_id),
            address=self.address,
            state=BookieState.WRITABLE,
            version="fake",
            boot_id=self.boot_id,
        )

    async def __aenter__(self) -> "FakeBookie":
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._port}"

    @property
    def listening(self) -> bool:
        """Whether new connections are accepted."""
        return self._server is not None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._wires)

    # --- switches ---------------------------------------------------------------------------------------------------

    def refuse(self, op: Op, error: OctavoError, *, times: int | None = None) -> None:
        """Refuse every request of this kind, or the next ``times`` of them, without doing anything."""
        if times is None:
            self._refusing[op] = error
        else:
            self._refusals.setdefault(op, deque()).extend([error] * times)

    def accept(self, op: Op) -> None:
        """Take back :meth:`refuse` and :meth:`drop`."""
        self._refusing.pop(op, None)
        self._refusals.pop(op, None)
        self._dropped.discard(op)

    def drop(self, op: Op) -> None:
        """Swallow requests of this kind: nothing is done, nothing is answered."""
        self._dropped.add(op)

    def hold(self, op: Op) -> None:
        """Do what is asked but keep the answers until :meth:`release`."""
        self._held.setdefault(op, deque())

    def release(self, op: Op, count: int | None = None) -> None:
        """Let the next ``count`` held answers leave; without a count all of them, and hold no more."""
        held = self._held.get(op, deque())
        for _ in range(len(held) if count is None else count):
            held.popleft()()
        if count is None:
            self._held.pop(op, None)

    def release_newest(self, op: Op) -> None:
        """Let the latest held answer leave before the older ones."""
        self._held[op].pop()()

    def held(self, op: Op) -> int:
        """How many answers wait."""
        return len(self._held.get(op, ()))

    def alter(self, op: Op, change: Callable[[Any], Reply]) -> None:
        """Send ``change(reply)`` for every reply to requests of this kind: a bookie that says what is not so."""
        self._altered[op] = change

    def answer(self, kind: type[Request], how: Callable[[Any], Reply]) -> Callable[[Any], Reply]:
        """Answer requests of a kind in this way. Gives the way in which they were answered so far; requests that the
        bookie does not know it did not answer."""
        before = self._answers.get(kind, _unanswered)
        self._answers[kind] = how
        return before

    def hang(self) -> None:
        """Stop reading from every socket: what is sent piles up at the sender."""
        for wire in self._wires:
            wire.transport.pause_reading()

    def unhang(self) -> None:
        """Read again."""
        for wire in self._wires:
            wire.transport.resume_reading()

    def disconnect(self) -> None:
        """Break every connection; new ones are accepted."""
        for held in self._held.values():
            held.clear()
        for wire in list(self._wires):
            wire.transport.abort()

    def say(self, raw: bytes) -> None:
        """Send these bytes, as they are, on every connection."""
        for wire in self._wires:
            wire.transport.write(raw)

    # --- what is held -----------------------------------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> FakeLedger:
        """The ledger's holdings, made if there are none."""
        return self.ledgers.setdefault(ledger_id, FakeLedger())

    def put(self, ledger_id: int, entries: list[bytes]) -> None:
        """Hold these sealed entries, unchecked."""
        self.ledger(ledger_id).entries.update((header_of(sealed).entry_id, sealed) for sealed in entries)
        self._wake_long_polls()

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Flip one bit of the last byte of the held copy; it is sent as it is."""
        held = self.ledgers[ledger_id].entries
        sealed = held[entry_id]
        held[entry_id] = sealed[:-1] + bytes([sealed[-1] ^ 1])

    def forget(self, ledger_id: int, entry_id: int) -> None:
        """Lose the entry: the bookie now says, wrongly, that it is absent."""
        del self.ledgers[ledger_id].entries[entry_id]

    def fence(self, ledger_id: int) -> None:
        """Fence the ledger, as a recoverer does."""
        self.ledger(ledger_id).fenced = True
        self._wake_long_polls()

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at again after every request and every connection change."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def received(self, op: Op, count: int = 1) -> None:
        """Wait until that many requests of this kind have arrived in all."""
        await self.until(lambda: self.count(op) >= count)

    def count(self, op: Op) -> int:
        """Requests of this kind so far."""
        return sum(request.op == op for request in self.requests)

    # --- answers ----------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something happened that :meth:`until` may wait for."""
        self._changed.set()

    def joined(self, wire: "_FakeWire") -> None:
        self._wires.add(wire)
        self.connections_made += 1
        self.changed()

    def left(self, wire: "_FakeWire") -> None:
        self._wires.discard(wire)
        self._long_polls = [poll for poll in self._long_polls if poll.wire is not wire]
        self.changed()

    def handle(self, wire: "_FakeWire", request_id: int, request: Request) -> None:
        """Do what a request asks, or what the switches say."""
        self.requests.append(request)
        op = request.op
        if op not in self._dropped:
            outcome = self._outcome(request)
            if isinstance(request, ReadLac) and isinstance(outcome, LacAnswer) and self._must_wait(request):
                self._long_polls.append(_LongPoll(wire, request_id, request))
            elif op in self._held:
                self._held[op].append(lambda: wire.answer(request_id, op, outcome))
            else:
                wire.answer(request_id, op, outcome)
        if isinstance(request, Add | WriteLac):
            self._wake_long_polls()
        self.changed()

    def _outcome(self, request: Request) -> Reply | OctavoError:
        try:
            self._raise_refusal(request.op)
            answer = self._answers.get(type(request))
            if answer is None:
                raise UnsupportedOperationError(f"{request.op.name} is not known here")
            return self._altered.get(request.op, _unaltered)(answer(request))
        except OctavoError as error:
            return error

    def _raise_refusal(self, op: Op) -> None:
        if self._refusals.get(op):
            raise self._refusals[op].popleft()
        if op in self._refusing:
            raise self._refusing[op]

    def _authorised(self, ledger_id: int, key: bytes, *, pin: bool) -> FakeLedger:
        ledger = self.ledger(ledger_id)
        if ledger.key is None and pin:
            ledger.key = key
        if ledger.key is not None and ledger.key != key:
            raise UnauthorizedError(f"ledger {ledger_id}: wrong key")
        return ledger

    def _add(self, request: Add) -> Reply:
        batch = verify_batch(LedgerId(request.ledger_id), request.entries)
        ledger = self._authorised(request.ledger_id, request.ledger_key, pin=True)
        if request.term:
            check_places(request.term, batch.entry_ids[0], batch.entry_ids[-1])
        if ledger.is_over(request.term) and not request.flags & AddFlag.RECOVERY:
            if request.term:
                raise TermOverError(f"ledger {request.ledger_id}: term {request.term} is over", may_have_happened=False)
            raise LedgerFencedError(f"ledger {request.ledger_id} is fenced", may_have_happened=False)
        for entry_id, sealed in zip(batch.entry_ids, request.entries, strict=True):
            held = ledger.entries.get(entry_id)
            if held is not None and held != sealed and is_intact(held):
                raise DuplicateEntryError(f"ledger {request.ledger_id}: other bytes are held at {entry_id}")
        if request.flags & AddFlag.DEFERRED_SYNC:
            ledger.unforced |= set(batch.entry_ids) - ledger.entries.keys()
        else:
            ledger.unforced -= set(batch.entry_ids)
        ledger.entries.update(zip(batch.entry_ids, request.entries, strict=True))
        return Added()

    def _force(self, request: Force) -> Reply:
        ledger = self._authorised(request.ledger_id, request.ledger_key, pin=False)
        if ledger.fenced:
            raise LedgerFencedError(f"ledger {request.ledger_id} is fenced", may_have_happened=False)
        ledger.unforced.clear()
        return Forced()

    def _read(self, request: Read) -> Reply:
        ledger = self.ledger(request.ledger_id)
        if request.flags & ReadFlag.FENCE:
            self._authorised(request.ledger_id, request.ledger_key, pin=False).fence(request.term)
        entries: list[bytes] = []
        unknown: list[tuple[int, int]] = []
        size = 0
        covered = request.last
        for entry_id in range(request.first, request.last + 1):
            if entry_id % request.modulus not in request.residues:
                continue
            sealed = ledger.entries.get(entry_id)
            if entry_id in ledger.unknown or (sealed is None and self.in_doubt):
                unknown.append((entry_id, entry_id))
            elif sealed is not None:
                if entries and (len(entries) >= request.entries_max or size + len(sealed) > request.bytes_max):
                    covered = entry_id - 1
                    break
                entries.append(sealed)
                size += len(sealed)
        return ReadAnswer(covered, entries, tuple(unknown), ledger.last_add_confirmed)

    def _read_lac(self, request: ReadLac) -> Reply:
        known = request.ledger_id in self.ledgers
        ledger = self.ledgers.get(request.ledger_id) or FakeLedger()
        if request.flags & ReadFlag.FENCE:
            ledger = self._authorised(request.ledger_id, request.ledger_key, pin=False)
            ledger.fence(request.term)
            self._wake_long_polls()
        entries: list[bytes] = []
        lac = ledger.last_add_confirmed
        if lac is not None and request.term:
            lac = min(lac, last_place(request.term))
        if request.entries_max and lac is not None:
            first = 0 if request.above is None else request.above + 1
            ids = [entry_id for entry_id in sorted(ledger.entries) if first <= entry_id <= lac]
            size = 0
            for entry_id in ids[: request.entries_max]:
                size += len(ledger.entries[entry_id])
                if entries and size > request.bytes_max:
                    break
                entries.append(ledger.entries[entry_id])
        return LacAnswer(
            known, ledger.is_over(request.term), self.in_doubt, ledger.explicit, ledger.highest_lac_entry, entries
        )

    def _write_lac(self, request: WriteLac) -> Reply:
        lac = verify_explicit_lac(LedgerId(request.ledger_id), request.sealed)
        ledger = self._authorised(request.ledger_id, request.ledger_key, pin=True)
        if ledger.explicit is None or header_of(ledger.explicit).entry_id < lac:
            ledger.explicit = request.sealed
        return LacWritten()

    def _list(self, request: ListEntries) -> Reply:
        held = sorted(i for i in self.ledger(request.ledger_id).entries if request.first <= i <= request.last)
        runs: list[tuple[int, int]] = []
        for entry_id in held:
            if runs and runs[-1][1] == entry_id - 1:
                runs[-1] = (runs[-1][0], entry_id)
            else:
                runs.append((entry_id, entry_id))
        return EntryList(request.last, tuple(runs))

    def _missing(self, request: Missing) -> Reply:
        ledger = self.ledger(request.ledger_id)
        asked = [i for i in range(request.first, request.last + 1) if i % request.modulus in request.residues]
        lost = [(i, i) for i in asked if i not in ledger.entries and i not in ledger.unknown]
        unknown = [(i, i) for i in asked if i in ledger.unknown]
        if self.in_doubt:
            return MissingAnswer(request.last, (), tuple(sorted(lost + unknown)))
        return MissingAnswer(request.last, tuple(lost), tuple(unknown))

    # --- long polls: they wait for a LAC, a fence, or end_long_polls; never for time --------------------------------

    @property
    def long_polls(self) -> int:
        """READ_LAC requests that wait now."""
        return len(self._long_polls)

    def end_long_polls(self) -> None:
        """Answer every waiting long-poll as if its time were over."""
        polls, self._long_polls = self._long_polls, []
        for poll in polls:
            poll.wire.answer(poll.request_id, Op.READ_LAC, self._read_lac(poll.request))
        self.changed()

    def _must_wait(self, request: ReadLac) -> bool:
        ledger = self.ledgers.get(request.ledger_id) or FakeLedger()
        lac = ledger.last_add_confirmed
        higher = lac is not None and (request.above is None or lac > request.above)
        return request.wait_milliseconds > 0 and not higher and not ledger.is_over(request.term)

    def _wake_long_polls(self) -> None:
        ready = [poll for poll in self._long_polls if not self._must_wait(poll.request)]
        self._long_polls = [poll for poll in self._long_polls if poll not in ready]
        for poll in ready:
            poll.wire.answer(poll.request_id, Op.READ_LAC, self._read_lac(poll.request))


@asynccontextmanager
async def registered_bookies(store: MetadataStore, count: int, *, first: int = 0) -> AsyncIterator[list[FakeBookie]]:
    """Bookies ``b0``, ``b1``, ... (or from another number on) of the store's cluster, registered as writable. All are
    stopped at the end."""
    cluster_id = await store.cluster_id()
    async with AsyncExitStack() as stack:
        bookies = [FakeBookie(f"b{number}", cluster_id=cluster_id) for number in range(first, first + count)]
        for bookie in bookies:
            await stack.enter_async_context(bookie)
            await store.register_bookie(bookie.registration())
        yield bookies


def _unaltered(reply: Reply) -> Reply:
    return reply


@dataclass(eq=False)
class _LongPoll:
    wire: "_FakeWire"
    request_id: int
    request: ReadLac


class _FakeWire(asyncio.Protocol):
    """One connection of a client."""

    transport: asyncio.Transport

    def __init__(self, bookie: FakeBookie) -> None:
        self._bookie = bookie
        self._decoder = FrameDecoder()
        self._greeted = False
        self._packed: set[int] = set()
        """Requests that came in packs and have no answer."""
        self._done: list[int] = []
        self._in_pack = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports are no subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self.transport = transport
        self._bookie.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.left(self)

    def data_received(self, data: bytes) -> None:
        if self._bookie.hello_hung:
            return
        try:
            for body in self._decoder.feed(data):
                values = unpack_body(body)
                if self._greeted and is_pack(values) and CAPABILITY_PACKS in self._bookie.capabilities:
                    pack = decode_pack(values)
                    self._pack(pack.first_id, pack.requests)
                elif self._greeted:
                    self._bookie.handle(self, *decode_request(values))
                else:
                    self._greet(decode_hello(values))
        except (ProtocolError, DigestMismatchError) as error:
            self._send(encode_error(CONNECTION_REQUEST_ID, Op.ERROR, error))
            self.transport.close()

    def answer(self, request_id: int, op: Op, outcome: Reply | OctavoError) -> None:
        """Send a reply or a refusal; nothing if the connection is gone."""
        packed = request_id in self._packed
        self._packed.discard(request_id)
        if isinstance(outcome, OctavoError):
            self._send(encode_error(request_id, op, outcome))
        elif packed and type(outcome) is type(USUAL[op]):
            self._done.append(request_id)
            if not self._in_pack:
                self._send_done()
        else:
            self._send(outcome.encode(request_id))

    def _pack(self, first_id: int, requests: list[Request]) -> None:
        """Those that succeed at once are answered in one frame."""
        self._bookie.packs.append(len(requests))
        self._packed.update(range(first_id, first_id + len(requests)))
        self._in_pack = True
        for request_id, request in enumerate(requests, first_id):
            self._bookie.handle(self, request_id, request)
        self._in_pack = False
        self._send_done()

    def _send_done(self) -> None:
        done, self._done = self._done, []
        if done:
            self._send(encode_done(done))

    def _greet(self, hello: Hello | OctavoError) -> None:
        assert isinstance(hello, Hello)
        self._greeted = True
        bookie = self._bookie
        version = PROTOCOL_VERSION
        answer = Hello(
            MAGIC, version, version, "fake", bookie.cluster_id, bookie.bookie_id, bookie.boot_id, bookie.capabilities
        )
        self._send(encode_hello(answer))

    def _send(self, body: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(frame_of(body))
