"""The subscriptions of one connection: which ledgers its client follows, and what of them it has been told.

A subscription is an object that hears from its ledger of each change. It then waits in a queue, once, however much
happens; what is pushed is what the ledger's state is when its turn comes. So a client that takes its pushes slowly
makes the bookie keep nothing but the queue, and gets fewer and larger pushes. One task serves the queue of a
connection: it takes memory for a frame (:mod:`octavo.bookie.memory.answer_memory`), which is there only while the
client reads its socket, and fills the frame with the ledgers that have moved.

A subscription without credit waits for :data:`HINT_SECONDS` together with all others of that kind: it is there for the
case that another bookie is slow, and a busy ledger would otherwise cost a push for each of its entries.

What is pushed and lost with its connection is told again on the next one (rule R6).

Whether the ledger may be read is asked when the subscription is set, and again for each push: a ledger may become
private with its first add, and may be deleted (rules S3 and B5).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
from octavo.bookie.memory.answer_memory import AnswerQueue, Demand
from octavo.bookie.server.clients import Client
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.service import Traffic
from octavo.bookie.storage.ledger_reader import LedgerReader
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import Subscribe
from octavo.protocol.pushes import PUSHES_PER_FRAME_MAX, Push, PushFlag, encode_pushes

log = structlog.get_logger("octavo.bookie")

HINT_SECONDS: Final = 0.05
"""How long after a change a subscription without credit is pushed: little for a person who waits, and twenty pushes a
second at most for a ledger."""

_PUSH_BYTES: Final = 256
"""What a push takes beside its entries, at most: two explicit LACs."""


class Subscription:
    """One of them; a follower of its ledger."""

    __slots__ = ("client", "is_queued", "next_id", "owner", "pushed_bytes", "request", "told", "told_explicit")

    def __init__(self, owner: "Subscriptions", request: Subscribe, client: Client | None) -> None:
        self.owner = owner
        self.client = client
        self.request = request
        """As it was set last."""
        self.next_id = request.first
        """The first entry that has not been pushed."""
        self.pushed_bytes = 0
        self.told: tuple[int | None, bool] = (None, False)
        """LAC, and whether the term is over, as the client has heard."""
        self.told_explicit: bytes | None = None
        self.is_queued = False

    @property
    def credit_bytes(self) -> int:
        """Bytes of entries that may be pushed now."""
        return (self.request.credit_bytes or 0) - self.pushed_bytes

    def moved(self) -> None:
        """As :meth:`octavo.bookie.storage.ledger_state.Follower.moved`."""
        if not self.is_queued:
            self.is_queued = True
            self.owner.queue(self)


class Subscriptions:
    """See the module. ``check`` raises an :class:`OctavoError` unless the ledger of a request may be read;
    ``client``: to which the connection belongs now."""

    def __init__(
        self,
        reader: LedgerReader,
        replies: Replies,
        answers: AnswerQueue,
        traffic: Traffic,
        *,
        check: Callable[[Subscribe], None],
        client: Callable[[], Client | None],
    ) -> None:
        self._reader = reader
        self._replies = replies
        self._answers = answers
        self._traffic = traffic
        self._check = check
        self._client = client
        self._by_number: dict[int, Subscription] = {}
        self._moved: deque[Subscription] = deque()
        """What is to be pushed, the longest waiting first."""
        self._lagging: dict[Subscription, None] = {}
        """The same without credit; they wait for the timer."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        """Pushes; there is one while anything is to be pushed."""
        self._wanted = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._by_number)

    def set(self, request: Subscribe) -> None:
        """Begin the subscription, or give it more credit. Raises :class:`BookieOverloadedError`,
        :class:`NoSuchLedgerError`."""
        subscription = self._by_number.get(request.subscription)
        if subscription is not None and subscription.request.ledger_id != request.ledger_id:
            self.end(request.subscription)
            subscription = None
        if subscription is None:
            client = self._client()
            if client is not None:
                client.begin_subscription()
            subscription = self._by_number[request.subscription] = Subscription(self, request, client)
            self._reader.follow(LedgerId(request.ledger_id), subscription)
        else:
            subscription.request = request
            if subscription in self._lagging and subscription.credit_bytes > 0:
                del self._lagging[subscription]
                subscription.is_queued = False
        subscription.moved()  # what is known already is pushed, too

    def end(self, number: int) -> None:
        """End a subscription, if there is one with this number."""
        subscription = self._by_number.pop(number, None)
        if subscription is not None:
            self._reader.unfollow(LedgerId(subscription.request.ledger_id), subscription)
            if subscription.client is not None:
                subscription.client.end_subscriptions(1)

    def queue(self, subscription: Subscription) -> None:
        """The ledger has moved."""
        if subscription.credit_bytes > 0:
            self._moved.append(subscription)
            self._push_soon()
            return
        self._lagging[subscription] = None
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(HINT_SECONDS, self._hints_due)

    def close(self) -> None:
        """The connection is lost, or about to be closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        for number in list(self._by_number):
            self.end(number)
        self._moved.clear()
        self._lagging.clear()

    # --- pushing ----------------------------------------------------------------------------------------------

    def _hints_due(self) -> None:
        self._timer = None
        self._moved.extend(self._lagging)
        self._lagging.clear()
        self._push_soon()

    def _push_soon(self) -> None:
        """When the turn of the event loop is over: what moves in the same turn shares the frame."""
        if self._task is None and not self._closed:
            self._task = self._replies.spawn(self._push())
        self._wanted.set()

    async def _push(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._moved:
                grant = await self._answers.wait_turn(
                    Demand(FRAME_PAYLOAD_BYTES_TARGET, other_bytes=PUSHES_PER_FRAME_MAX * _PUSH_BYTES)
                )
                try:
                    pushes = await self._collect(grant.bytes_max)
                    if pushes:
                        self._replies.send(encode_pushes(pushes))
                finally:
                    self._answers.finish(grant)

    async def _collect(self, bytes_max: int) -> list[Push]:
        """A push for each ledger that has moved, as many as fit into one frame."""
        pushes: list[Push] = []
        entries_max = ENTRIES_PER_FRAME_MAX - PUSHES_PER_FRAME_MAX
        while self._moved and len(pushes) < PUSHES_PER_FRAME_MAX and bytes_max > 0 and entries_max > 0:
            subscription = self._moved.popleft()
            subscription.is_queued = False
            if self._by_number.get(subscription.request.subscription) is not subscription:
                continue  # it has been ended
            push = await self._push_of(subscription, bytes_max, entries_max)
            if push is not None:
                pushes.append(push)
                bytes_max -= sum(map(len, push.entries))
                entries_max -= len(push.entries)
        return pushes

    async def _push_of(self, subscription: Subscription, bytes_max: int, entries_max: int) -> Push | None:
        """All that the client has not been told; None if that is nothing."""
        request = subscription.request
        number, ledger_id = request.subscription, LedgerId(request.ledger_id)
        try:
            self._check(request)
            entries = await self._entries(subscription, bytes_max, entries_max)
            view = self._reader.last_add_confirmed(ledger_id, request.term)
        except Exception as error:
            if not isinstance(error, OctavoError):  # a defect met with one ledger ends nothing else
                log.exception("subscription ended by a defect", ledger=ledger_id)
            self.end(number)
            return Push(number, int(PushFlag.ENDED), None, None, [])
        told, told_explicit = (view.last_add_confirmed, view.fenced), view.explicit
        if not entries and told == subscription.told and told_explicit == subscription.told_explicit:
            return None
        explicit = None if told_explicit == subscription.told_explicit else told_explicit
        subscription.told, subscription.told_explicit = told, told_explicit
        flags = PushFlag.OVER if view.fenced else PushFlag.NONE
        return Push(number, int(flags), view.last_add_confirmed, explicit, entries)

    async def _entries(self, subscription: Subscription, bytes_max: int, entries_max: int) -> list[bytes]:
        """The entries to be pushed. If they are not all, the subscription waits for its next turn."""
        credit_bytes, request = subscription.credit_bytes, subscription.request
        if credit_bytes <= 0:
            return []
        ledger_id, first = LedgerId(request.ledger_id), subscription.next_id
        last = self._reader.highest(ledger_id, request.term)
        if last is None or first > last:
            return []
        bytes_max = min(bytes_max, credit_bytes)
        entries = self._reader.latest(ledger_id, first, last, entries_max=entries_max, bytes_max=bytes_max)
        if entries is not None:
            stop = first + len(entries)
        else:
            result = await self._reader.read(ledger_id, first, last, entries_max=entries_max, bytes_max=bytes_max)
            entries, stop = result.entries, result.last_covered + 1
        subscription.next_id = stop
        size = sum(map(len, entries))
        subscription.pushed_bytes += size
        traffic = self._traffic
        traffic.entries_read += len(entries)
        traffic.bytes_read += size
        if stop <= last:
            subscription.moved()
        return entries
