"""A feed: what a client hears of one term of a ledger while it is written, for all readers that follow it there.

Which bookies are listened to
=============================

A bookie learns the writer's LAC from the entries that it stores, and from the explicit LAC that an idle writer sends.
``E - Qw + 1`` bookies include a member of every write set, so one of them knows the highest LAC that any bookie
knows. One more is listened to, so that a slow or dead bookie delays nothing: ``min(E, E - Qw + 2)`` *listenings*
(:mod:`octavo.client.read.listening`), each with a different bookie of the last fragment, the preferred ones first. A
bookie that fails is blamed, and another one is chosen after a pause.

Listening begins when a reader waits for an entry. A reader without a follower asks nothing. Where no reader waits for
long, listening ends until one does.

Entries
=======

If every bookie stores every entry, the bookie of the first listening sends the entries, too. In a striped ledger, each
bookie sends those that it has. Entries arrive as soon as a bookie holds them, and are kept here until the readers that
wait have got them; a reader gets none before its own view says that it may be read (rule R6). What the feed does not
keep is read in the ordinary way: so a reader that is slow slows no other one down.

A bookie that is only there in case another one is slow tells the feed the LAC as a number, a little later. The number
is not believed (rule R3): if it is still ahead after a while, the bookie is asked for its evidence.

Metadata
========

Readers watch the metadata. They are also told to read them again whenever there is a reason to believe that the
bookies listened to may not be the writer's (rules R5 and V4): a term is over, a bookie fails, a poll brings nothing, or
nothing at all is heard for long. As long as a term is over and its end is not known, that is repeated, with growing
pauses. Listening moves to the last fragment as soon as one of the readers learns of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.client.options import ClientOptions
from octavo.client.read.lac import LacAsker, Polled
from octavo.client.read.ledger_view import LedgerView
from octavo.client.read.listening import Listening
from octavo.client.read.poll_pause import pause_seconds
from octavo.client.read.range_read import BlameList, ReplicaReader
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.subscriptions import BookieSubscriptions
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import Entry, LedgerSecrets, Opener
from octavo.protocol.errors import ClientClosedError, DigestMismatchError, OctavoError, TasksCancelledError
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.messages import Subscribe
from octavo.protocol.pushes import Push, PushFlag

_STRIPED_ENTRIES_MAX = 8
"""Entries that each bookie of a striped ledger sends with its answer to a poll: enough for a writer that adds one entry
at a time, and little waste at high rates, where every bookie has only some of the next entries."""

_BEHIND_SECONDS = 0.05
"""How long a bookie's LAC may be ahead of what is known before the bookie is asked for its evidence. Another bookie
usually brings that within a round trip."""


class FeedReader(Protocol):
    """A reader that follows, as its feed sees it."""

    def heard(self, entries: Sequence[Entry], last_add_confirmed: EntryId | None, length: int | None) -> None:
        """A bookie has told verified entries, ids ascending, or a verified LAC, with the length up to there if it is
        known."""

    def brought(self, bookie_id: BookieId, entries: int) -> None:
        """A bookie has told this number of entries, and they verified."""

    def read_metadata_again(self) -> None:
        """The metadata may tell more than the reader knows."""

    def feed_failed(self, error: OctavoError) -> None:
        """Nothing will be heard any more."""


class FeedTools:
    """The parts of a client of which its feeds are made."""

    def __init__(
        self, pool: ConnectionPool, options: ClientOptions, blame: BlameList, draw: Callable[[], float]
    ) -> None:
        self.pool, self.options, self.blame, self.draw = pool, options, blame, draw
        self._subscriptions: dict[BookieId, BookieSubscriptions] = {}

    @property
    def bookies(self) -> list[BookieId]:
        """Those at which something is subscribed to."""
        return list(self._subscriptions)

    def subscriptions(self, bookie_id: BookieId) -> BookieSubscriptions:
        """Those of this client at the bookie. Raises :class:`OctavoError` if the client is closed."""
        found = self._subscriptions.get(bookie_id)
        if found is None:
            found = self._subscriptions[bookie_id] = BookieSubscriptions(
                self.pool.get(bookie_id), timeout_seconds=self.options.request_timeout_seconds,
                on_idle=lambda: self._forget(bookie_id),
            )  # fmt: skip
        return found

    def _forget(self, bookie_id: BookieId) -> None:
        self._subscriptions.pop(bookie_id, None)


class Feed:
    """See the module. ``window_bytes`` returns how many bytes of entries a bookie may send ahead of the readers;
    ``on_left`` is called when the last reader has left."""

    def __init__(
        self,
        tools: FeedTools,
        term: Versioned[Term],
        secrets: LedgerSecrets,
        *,
        window_bytes: Callable[[], int],
        on_left: Callable[["Feed"], None],
    ) -> None:
        value, version = term
        self._tools = tools
        self._window_bytes = window_bytes
        self._on_left = on_left
        self._loop = asyncio.get_running_loop()
        self._quorums = value.quorums
        self._view = LedgerView(value, version)
        opener = Opener(value.ledger_id, value.key.digest, secrets)
        self._opener = opener
        self._replicas = ReplicaReader(
            ledger_id=value.ledger_id,
            opener=opener,
            read_key=secrets.ledger_key if value.private else b"",
            pool=tools.pool,
            options=tools.options,
            blame=tools.blame,
            draw=tools.draw,
            on_entries=self._opened,
        )
        self.asker = LacAsker(
            replicas=self._replicas, opener=opener, view=self, quorums=value.quorums, on_change=lambda: None
        )
        """Tells the feed, and so its readers, what bookies answer."""
        self._readers: dict[FeedReader, None] = {}
        self._waiting: set[FeedReader] = set()
        self._wanted: asyncio.Event | None = None
        """Set while some reader waits; there is one only where a bookie is polled."""
        self._listenings: list[Listening] = []
        self._entries: dict[int, Entry] = {}
        """Entries that readers may not have got, ids nearly ascending."""
        self._entry_bytes = 0
        self._again: asyncio.TimerHandle | None = None
        self._doubts = 0
        """How often the metadata were read again, since they last told something new."""
        self._over = False
        """A bookie says that the term is over."""
        self._behind: asyncio.TimerHandle | None = None
        self._ahead: dict[BookieId, int] = {}
        """The LAC that a bookie has told as a number."""
        self._asking: set[asyncio.Task[None]] = set()
        self.heard_anything = False
        """Something has been heard since this was last set to False."""
        self.waited = False
        """Some reader has waited since this was last set to False."""

    # --- readers --------------------------------------------------------------------------------------------------

    def join(self, reader: FeedReader) -> tuple[EntryId | None, int | None]:
        """The reader hears from now on. The highest LAC known, and the length up to there if that is known."""
        self._readers[reader] = None
        view = self._view
        return view.last_add_confirmed, view.length if view.length_known_exactly else None

    def leave(self, reader: FeedReader) -> None:
        """The reader hears nothing any more."""
        if self._readers.pop(reader, self) is self:
            return
        self._waiting.discard(reader)
        if not self._readers:
            self.rest()
            for task in self._asking:
                task.cancel()
            self._on_left(self)

    def wait(self, reader: FeedReader, readable_end: EntryId | None) -> None:
        """The reader has taken everything that it may read, up to this entry, and waits for more."""
        self._view.on_last_add_confirmed(readable_end, None)  # it may have heard of it from entries that it has read
        self._waiting.add(reader)
        self.waited = True
        if self._view.closed:
            reader.read_metadata_again()  # another reader knows more
        elif not self._listenings:
            self._begin()
        elif len(self._waiting) == len(self._readers):
            self._drop_up_to(self._view.readable_end)
        if self._wanted is not None:
            self._wanted.set()
        for listening in self._listenings:
            listening.give_credit()
        if self._ahead:
            self._look_ahead_soon()

    def wait_over(self, reader: FeedReader) -> None:
        """The reader does not wait any more."""
        self._waiting.discard(reader)
        if self._wanted is not None and not self._waiting:
            self._wanted.clear()

    def adopt(self, term: Versioned[Term]) -> None:
        """A reader has read the metadata: listen to the bookies that they name (rule R5)."""
        before = self._view.term.last_fragment.bookies
        if not self._view.on_metadata(*term):
            return
        self._doubts, self._over = 0, False
        if self._view.closed:
            self.rest()
        elif self._listenings and self._view.term.last_fragment.bookies != before:
            self.rest()
            self._begin()

    def entries(self, first: int, last: int) -> list[Entry]:
        """Entries ``first..last``, or the first few of them, if they are kept here."""
        kept = self._entries
        found: list[Entry] = []
        while first <= last and (entry := kept.get(first)) is not None:
            found.append(entry)
            first += 1
        return found

    def holds(self, entry_id: int) -> bool:
        """Whether this entry is kept here."""
        return entry_id in self._entries

    @property
    def waiting(self) -> bool:
        """Whether some reader waits."""
        return bool(self._waiting)

    @property
    def is_listening(self) -> bool:
        """Whether bookies are listened to."""
        return bool(self._listenings)

    @property
    def is_alone(self) -> bool:
        """Whether fewer than two bookies are listened to now: no other one may bring an entry."""
        return len(self._listenings) < 2

    # --- listening ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        size, write_quorum = self._quorums.ensemble_size, self._quorums.write_quorum
        count = min(size, size - write_quorum + 2)
        striped = self._quorums.striped
        self._listenings = [
            Listening(
                self, self._tools.pool.next_request_id(), self._tools.draw,
                brings=at == 0 or (striped and at <= size - write_quorum),
            )
            for at in range(count)
        ]  # fmt: skip
        try:
            for listening in self._listenings:
                listening.start()
        except OctavoError as error:
            self._fail(error)

    def rest(self) -> None:
        """Listen to no bookie until a reader waits."""
        listenings, self._listenings = self._listenings, []
        for listening in listenings:
            listening.stop()
        for timer in (self._again, self._behind):
            if timer is not None:
                timer.cancel()
        self._again = self._behind = None
        self._ahead.clear()

    def choose(self, listening: Listening) -> BookieId:
        """The preferred bookie that no other listening has."""
        if not self._listenings:
            raise ClientClosedError(f"ledger {self._view.term.ledger_id} is not followed any more")
        bookies = self._view.term.bookies
        taken = {other.bookie_id for other in self._listenings if other is not listening}
        order = [bookies[position] for position in self._replicas.preference(bookies)]
        return next((bookie_id for bookie_id in order if bookie_id not in taken), order[0])

    def subscriptions(self, bookie_id: BookieId) -> BookieSubscriptions:
        """As :meth:`FeedTools.subscriptions`."""
        return self._tools.subscriptions(bookie_id)

    def request(self, number: int, *, credit_bytes: int | None) -> Subscribe:
        """A request about this subscription."""
        term = self._view.term
        return Subscribe(
            number, term.ledger_id, self._replicas.read_key, term.number, self._view.readable_end + 1, credit_bytes
        )

    def credit(self, *, brings: bool) -> int:
        """Bytes of entries that a bookie may send ahead of the readers."""
        return self._window_bytes() if brings else 0

    def entries_wanted(self, *, brings: bool) -> int:
        """How many entries an answer to a poll should bring."""
        if self._quorums.striped:
            return _STRIPED_ENTRIES_MAX
        return ENTRIES_PER_FRAME_MAX if brings else 0

    @property
    def readable_end(self) -> int:
        """Highest id that is known to be readable; -1 for none."""
        return self._view.readable_end

    @property
    def poll_seconds(self) -> float:
        """How long a bookie should hold a poll."""
        return self._tools.options.long_poll_seconds

    async def wait_wanted(self) -> None:
        """Return while some reader waits for more."""
        if self._wanted is None:
            self._wanted = asyncio.Event()
            if self._waiting:
                self._wanted.set()
        await self._wanted.wait()

    # --- what is heard --------------------------------------------------------------------------------------------

    def pushed(self, listening: Listening, push: Push) -> None:
        """A bookie has told something."""
        bookie_id = listening.bookie_id
        assert bookie_id is not None, "it listens"
        self.heard_anything = True
        confirmed: EntryId | None = None
        try:
            if push.entries:
                opened, damaged = self._replicas.open_entries(push.entries)
                self._brought(bookie_id, len(opened))
                if opened:
                    confirmed = opened[-1].last_add_confirmed
                if damaged:
                    self._tools.blame.blame(bookie_id)
            if push.explicit is not None:
                explicit, length = self._opener.open_last_add_confirmed(push.explicit)
                self.on_last_add_confirmed(explicit, length)
                confirmed = explicit if confirmed is None or explicit is None else max(confirmed, explicit)
        except DigestMismatchError:
            self._tools.blame.blame(bookie_id)
        if push.flags & PushFlag.OVER:
            self._over = True
        if self._over or self.is_of_later_term(confirmed):
            self.doubt()
        self._note_hint(bookie_id, push.lac)

    def polled(self, bookie_id: BookieId, polled: Polled) -> None:
        """A poll has been answered with a higher LAC."""
        self.heard_anything = True
        self._brought(bookie_id, len(polled.entries))

    def nothing_heard(self, bookie_id: BookieId | None, error: OctavoError | None) -> None:
        """A poll has brought nothing; or has failed, as a connection has: the bookie is blamed. There are no bookies at
        all if it is None."""
        if error is not None and (bookie_id is None or isinstance(error, ClientClosedError | TasksCancelledError)):
            self._fail(error)
            return
        if error is not None and bookie_id is not None:
            self._tools.blame.blame(bookie_id)
        self.doubt(at_once=True)

    def doubt(self, *, at_once: bool = False) -> None:
        """Let the readers read the metadata again: now, or, if they have done so and learnt nothing, after a pause."""
        if at_once or not self._doubts:
            self._read_again()
        elif self._again is None:
            self._again = self._loop.call_later(
                pause_seconds(self._doubts, self._tools.draw), self._read_again_after_pause
            )

    def read_metadata_again(self) -> None:
        """Nothing has been heard for long."""
        for reader in list(self._readers):
            reader.read_metadata_again()

    def _read_again_after_pause(self) -> None:
        self._again = None
        self._read_again()

    def _read_again(self) -> None:
        self._doubts += 1
        self.read_metadata_again()
        if self._over and self._again is None and self._listenings:
            self._again = self._loop.call_later(
                pause_seconds(self._doubts, self._tools.draw), self._read_again_after_pause
            )

    def _fail(self, error: OctavoError) -> None:
        for reader in list(self._readers):
            reader.feed_failed(error)

    # --- evidence: as :class:`octavo.client.read.lac.LacFacts` ------------------------------------------------------

    @property
    def term(self) -> Term:
        """The term by the latest metadata seen."""
        return self._view.term

    def counts(self, last_add_confirmed: int | None) -> bool:
        """Whether this LAC says anything of what can be read here (rule V1)."""
        return self._view.counts(last_add_confirmed)

    def is_of_later_term(self, last_add_confirmed: int | None) -> bool:
        """Whether this LAC tells that the term is over, or never counted (rule V1)."""
        return self._view.is_of_later_term(last_add_confirmed)

    def on_entries(self, entries: Sequence[Entry]) -> bool:
        """Verified entries, ids ascending. Gives whether the LAC moved."""
        if not entries:
            return False
        moved = self._view.on_entries(entries)
        self._keep(entries)
        for reader in list(self._readers):
            reader.heard(entries, None, None)
        return moved

    def on_last_add_confirmed(self, last_add_confirmed: EntryId | None, length: int | None) -> bool:
        """A verified LAC, with the length up to there if it is known. Gives whether the LAC moved."""
        moved = self._view.on_last_add_confirmed(last_add_confirmed, length)
        if last_add_confirmed is not None:
            for reader in list(self._readers):
                reader.heard((), last_add_confirmed, length)
        return moved

    def _opened(self, entries: Sequence[Entry]) -> None:
        self.on_entries(entries)

    def _brought(self, bookie_id: BookieId, entries: int) -> None:
        for reader in self._readers:
            reader.brought(bookie_id, entries)

    def _keep(self, entries: Sequence[Entry]) -> None:
        kept, bytes_max = self._entries, self._window_bytes()
        for entry in entries:
            if entry.entry_id not in kept:
                self._entry_bytes += len(entry.payload)
            kept[entry.entry_id] = entry
        for entry_id in list(kept) if self._entry_bytes > bytes_max else ():
            if self._entry_bytes <= bytes_max or len(kept) == 1:
                break
            self._entry_bytes -= len(kept.pop(entry_id).payload)

    def _drop_up_to(self, last: int) -> None:
        """All readers that there are have got these."""
        while (first := next(iter(self._entries), None)) is not None and first <= last:
            self._entry_bytes -= len(self._entries.pop(first).payload)

    # --- hints ----------------------------------------------------------------------------------------------------

    def _note_hint(self, bookie_id: BookieId, lac: int | None) -> None:
        if lac is None or lac <= self._view.readable_end:
            self._ahead.pop(bookie_id, None)
            return
        self._ahead[bookie_id] = lac
        self._look_ahead_soon()

    def _look_ahead_soon(self) -> None:
        if self._behind is None and self._waiting:
            self._behind = self._loop.call_later(_BEHIND_SECONDS, self._ask_those_ahead)

    def _ask_those_ahead(self) -> None:
        self._behind = None
        if not self._waiting:
            return  # when a reader waits, they are looked at again
        ahead, self._ahead = self._ahead, {}
        for bookie_id, lac in ahead.items():
            if lac > self._view.readable_end and not self._view.closed:
                task = self._loop.create_task(self._ask(bookie_id), name="octavo LAC")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask(self, bookie_id: BookieId) -> None:
        """Ask for the evidence of a LAC that is ahead."""
        self.asker.heard_of_later_term = False
        try:
            await self.asker.ask(bookie_id)
        except OctavoError as error:
            self.nothing_heard(bookie_id, error)
            return
        if self.asker.heard_of_later_term:
            self.doubt()
