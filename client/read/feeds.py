"""The feeds of a client: one for each term of a ledger that is followed, however many readers follow it.

One timer serves all feeds, while there are any. Each time it

* asks the bookies at which something is subscribed to whether they still answer: a connection whose other end is gone
  looks like one on which nothing happens;
* lets readers that wait, and whose bookies have told nothing since the last time, read the metadata again (rule V4):
  a bounded number each time, in turn, so that ten thousand idle followers cost a store no more than a few hundred;
* ends listening where no reader has waited since the last time.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from octavo.client.options import ClientOptions
from octavo.client.read.feed import Feed, FeedTools
from octavo.client.read.range_read import BlameList
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import Digest, LedgerSecrets
from octavo.protocol.errors import OctavoError
from octavo.protocol.messages import Ping

READS_PER_SECOND: Final = 10
"""Reads of the metadata by followers that hear nothing, for all of a client: little for a store, and as many as three
hundred followers need to read them every half minute."""

_WINDOW_BYTES_MAX: Final = 256 * 1024
_WINDOW_BYTES_MIN: Final = 16 * 1024
_WINDOWS_BYTES: Final = 64 * 1024 * 1024
"""Entries that bookies may send ahead of readers: a window for each feed, smaller ones where there are many, so that
all together hardly exceed the last of these."""

type _Key = tuple[int, int, Digest, bytes, bool, LedgerSecrets]


class Feeds:
    """See the module. Of one client; ``draw`` gives a random number from 0 to 1."""

    def __init__(
        self, pool: ConnectionPool, options: ClientOptions, blame: BlameList, draw: Callable[[], float]
    ) -> None:
        self._pool, self._options = pool, options
        self._tools = FeedTools(pool, options, blame, draw)
        self._loop = asyncio.get_running_loop()
        self._feeds: dict[_Key, Feed] = {}
        """Those that were looked at longest ago come first."""
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, term: Versioned[Term], secrets: LedgerSecrets) -> Feed:
        """The feed of this term; made if there is none. The caller joins it."""
        value = term.value
        key = (value.ledger_id, value.number, value.key.digest, value.key.verifier, value.private, secrets)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(
                self._tools, term, secrets, window_bytes=self._window_bytes, on_left=lambda _feed: self._forget(key)
            )
            if self._timer is None:
                self._look_later()
        else:
            feed.adopt(term)
        return feed

    def _forget(self, key: _Key) -> None:
        self._feeds.pop(key, None)
        if not self._feeds and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _window_bytes(self) -> int:
        return min(_WINDOW_BYTES_MAX, max(_WINDOW_BYTES_MIN, _WINDOWS_BYTES // max(1, len(self._feeds))))

    # --- now and then ---------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._options.long_poll_seconds, self._look)

    def _look(self) -> None:
        self._look_later()
        self._ask_whether_bookies_answer()
        reads_left = max(1, int(READS_PER_SECOND * self._options.long_poll_seconds))
        for key, feed in list(self._feeds.items()):
            heard, feed.heard_anything = feed.heard_anything, False
            if not feed.waiting:
                if not heard and feed.is_listening and not feed.waited:
                    feed.rest()
            elif not heard and reads_left:
                reads_left -= 1
                self._feeds[key] = self._feeds.pop(key)  # the others come first the next time
                feed.read_metadata_again()
            feed.waited = feed.waiting

    def _ask_whether_bookies_answer(self) -> None:
        for bookie_id in self._tools.bookies:
            with contextlib.suppress(OctavoError):  # the client is being closed
                connection, request_id = self._pool.get(bookie_id), self._pool.next_request_id()
                connection.send(
                    Ping().encode(request_id), request_id, lambda _outcome: None,
                    timeout_seconds=self._options.request_timeout_seconds,
                )  # fmt: skip
