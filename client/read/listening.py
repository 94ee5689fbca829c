"""Listens to one ledger at one bookie: by a subscription, or by long polls where the bookie knows no subscriptions.

A feed (:mod:`octavo.client.read.feed`) has a few of these, each with a different bookie. A bookie that refuses a
subscription is polled once, so that the refusal of the poll tells the feed why, and so that a bookie with too many
subscriptions is followed all the same; then the subscription is tried again.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from octavo.client.read.lac import LacAsker, Polled
from octavo.client.read.poll_pause import pause_seconds
from octavo.client.wire.subscriptions import BookieSubscriptions
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Subscribe
from octavo.protocol.pushes import Push

_HELD_SHARE_MIN = 0.5
"""Share of the time of a poll that must pass for the client to assume that the bookie held the poll. A poll without a
higher LAC that ends earlier is followed by a pause."""


class Listens(Protocol):
    """The feed, as one of its listenings sees it."""

    asker: LacAsker

    def choose(self, listening: "Listening") -> BookieId:
        """The bookie that it should listen to. Raises :class:`OctavoError` if there are no bookies any more."""

    def subscriptions(self, bookie_id: BookieId) -> BookieSubscriptions:
        """Those of this client at the bookie. Raises :class:`OctavoError`."""

    def request(self, number: int, *, credit_bytes: int | None) -> Subscribe:
        """A request about this subscription."""

    def credit(self, *, brings: bool) -> int:
        """Bytes of entries that a bookie may send ahead of the readers."""

    def entries_wanted(self, *, brings: bool) -> int:
        """How many entries an answer to a poll should bring."""

    def pushed(self, listening: "Listening", push: Push) -> None:
        """A bookie has told something."""

    def polled(self, bookie_id: BookieId, polled: Polled) -> None:
        """A poll has been answered with a higher LAC."""

    def nothing_heard(self, bookie_id: BookieId | None, error: OctavoError | None) -> None:
        """A poll has brought nothing; or has failed, as a connection has. There are no bookies at all if it is None."""

    @property
    def readable_end(self) -> int:
        """Highest id that is known to be readable; -1 for none."""

    @property
    def poll_seconds(self) -> float:
        """How long a bookie should hold a poll."""

    async def wait_wanted(self) -> None:
        """Return while some reader waits for more."""


class Listening:
    """See the module. ``brings``: this bookie sends entries, too."""

    __slots__ = (
        "_draw", "_failures", "_feed", "_granted_bytes", "_loop", "_poller", "_received_bytes", "_retry",
        "_subscribed_at", "bookie_id", "brings", "number",
    )  # fmt: skip

    def __init__(self, feed: Listens, number: int, draw: Callable[[], float], *, brings: bool) -> None:
        self._feed = feed
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self.number = number
        """Of its subscriptions."""
        self.brings = brings
        self.bookie_id: BookieId | None = None
        """The bookie that is listened to; None: none is."""
        self._subscribed_at: BookieSubscriptions | None = None
        self._poller: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failures = 0
        self._granted_bytes = self._received_bytes = 0

    @property
    def is_subscribed(self) -> bool:
        """Whether it listens by a subscription, or will as soon as the bookie is there."""
        return self._subscribed_at is not None

    def start(self) -> None:
        """Choose a bookie, and listen to it. Raises :class:`OctavoError` if there are no bookies any more."""
        self.stop()
        self.bookie_id = bookie_id = self._feed.choose(self)
        self._subscribed_at = subscriptions = self._feed.subscriptions(bookie_id)
        subscriptions.add(self.number, self)

    def stop(self) -> None:
        """Listen to no bookie."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        subscribed_at, self._subscribed_at = self._subscribed_at, None
        if subscribed_at is not None:
            subscribed_at.remove(self.number, self._feed.request(self.number, credit_bytes=None))
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None
        self.bookie_id = None

    def give_credit(self) -> None:
        """The readers have taken what has come: more may be sent."""
        if self._subscribed_at is None or not self.brings:
            return
        window = self._feed.credit(brings=True)
        if self._granted_bytes - self._received_bytes <= window // 2:
            self._granted_bytes = self._received_bytes + window
            self._subscribed_at.renew(self.number)

    # --- as a listener of subscriptions ------------------------------------------------------------------------------

    def subscription(self, *, anew: bool) -> Subscribe:
        """As :meth:`octavo.client.wire.subscriptions.Listener.subscription`."""
        if anew:
            self._received_bytes = 0
            self._granted_bytes = self._feed.credit(brings=self.brings)
        return self._feed.request(self.number, credit_bytes=self._granted_bytes)

    def pushed(self, push: Push) -> None:
        """As :meth:`octavo.client.wire.subscriptions.Listener.pushed`."""
        self._failures = 0
        self._received_bytes += sum(map(len, push.entries))
        self._feed.pushed(self, push)

    def lost(self, error: OctavoError) -> None:
        """As :meth:`octavo.client.wire.subscriptions.Listener.lost`. It stays subscribed, so that it is heard if this
        bookie is the first to be back; after a pause it chooses again."""
        assert self.bookie_id is not None, "it listens"
        self._feed.nothing_heard(self.bookie_id, error)
        self._start_later()

    def refused(self, error: OctavoError | None) -> None:
        """As :meth:`octavo.client.wire.subscriptions.Listener.refused`."""
        self._subscribed_at = None
        self._poller = self._loop.create_task(self._poll_on(repeatedly=error is None), name="octavo long poll")

    # --- polling -----------------------------------------------------------------------------------------------------

    async def _poll_on(self, *, repeatedly: bool) -> None:
        """Poll until a poll fails or is answered early without a higher LAC; ``repeatedly``: else once."""
        while True:
            await self._feed.wait_wanted()
            if not await self._poll():
                break
            self._failures = 0
            if not repeatedly:
                self._poller = None
                self._start_or_tell()
                return
        self._poller = None
        self._start_later()

    async def _poll(self) -> bool:
        """Send one long poll. Return whether it returned a higher LAC or was held to its end."""
        feed, bookie_id = self._feed, self.bookie_id
        assert bookie_id is not None, "it listens"
        wait_seconds = feed.poll_seconds
        started_at = self._loop.time()
        try:
            polled = await feed.asker.poll(
                bookie_id,
                above=feed.readable_end,
                wait_seconds=wait_seconds,
                entries_max=feed.entries_wanted(brings=self.brings),
            )
        except OctavoError as error:
            feed.nothing_heard(bookie_id, error)
            return False
        if polled.lac_advanced:
            feed.polled(bookie_id, polled)
            return True
        feed.nothing_heard(bookie_id, None)
        return self._loop.time() - started_at >= wait_seconds * _HELD_SHARE_MIN

    # --- trying again ------------------------------------------------------------------------------------------------

    def _start_later(self) -> None:
        if self._retry is None:
            self._failures += 1
            self._retry = self._loop.call_later(pause_seconds(self._failures, self._draw), self._start_or_tell)

    def _start_or_tell(self) -> None:
        self._retry = None
        try:
            self.start()
        except OctavoError as error:
            self._feed.nothing_heard(None, error)
