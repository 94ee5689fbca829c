"""Counts the ages of a log's entries: reads, advances and stores what :mod:`octavo.client.log.ages.ages` decides."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from octavo.client.log.ages.ages import LogAges, LogFacts, decode_ages, first_look
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.names import ages_document
from octavo.client.log.documents.reading import read_document
from octavo.client.log.seam.access import LedgerAccess
from octavo.metadata.clocks.handed_over import HandedOver
from octavo.metadata.clocks.proven_time import Moment
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataConflictError, MetadataError, NoSuchLogError

_TELL_AGAIN_MS: Final = 3_600_000
"""Between two lines that say that clocks disagree."""

log = logging.getLogger("octavo.client")


class AgeKeeper:
    """See the module. Of one log and one client."""

    def __init__(self, access: LedgerAccess, name: str, log_id: str) -> None:
        self._access = access
        self._store = access.store
        self._name = name
        self._log_id = log_id
        self._document = ages_document(log_id)
        self._version: Version | None = None
        """Of the document that :attr:`_stored` was read from."""
        self._stored: LogAges | None = None
        self._latest: LogAges | None = None
        """What this client has counted since, which is more than the document says."""
        self._handed_over = HandedOver()
        self._told_at_ms: int | None = None
        """When people were told last that clocks disagree, by the clock of this host."""

    @property
    def latest(self) -> LogAges | None:
        """The ages at the latest look; None before the first."""
        return self._latest

    def elapsed_ms(self) -> int:
        """The time since the latest look by the clock of this host; 0 before the first."""
        return 0 if self._latest is None else self._access.boot_clock().ms - self._latest.time.at.boot.ms

    async def clocks(self) -> str:
        """How clocks disagree, as the client that stored the ages has found; empty where they do not."""
        await self._read()
        return "" if self._stored is None else self._stored.time.trouble

    async def look(self, facts: LogFacts, cursors: Mapping[str, CursorState]) -> LogAges:
        """The ages now. Stores nothing."""
        await self._read()
        now = Moment(self._access.clock_ms(), await self._store.time_ms(), self._access.boot_clock())
        before = self._latest
        if before is None:
            ages = first_look(now, facts, cursors)
        else:
            at_most_ms = self._handed_over.at_most_ms(before.time.ms, now.boot.ms)
            ages = before.looked_at(now, facts, cursors, at_most_ms=at_most_ms)
        self._handed_over.counted(ages.time.ms, now.boot.ms)
        self._latest = ages
        return ages

    async def note(self, facts: LogFacts, cursors: Mapping[str, CursorState], waited: Sequence[float]) -> LogAges:
        """The ages now, stored if that is worth a write. ``waited``: the seconds of each thing that is waited for."""
        ages = await self.look(facts, cursors)
        self._tell(ages)
        if self._stored is None or ages.is_worth_writing(self._stored, waited):
            await self._write(ages)
        return ages

    async def _write(self, ages: LogAges) -> None:
        is_new = self._version is None
        try:
            self._version = await self._store.put_document(self._document, ages.encode(), self._version)
        except MetadataConflictError:
            # Another client counts, too. What it has stored is what counts, from the next look on.
            self._stored = self._latest = None
            return
        self._stored = ages
        if is_new:
            try:
                await read_document(self._store, self._name, log_id=self._log_id)
            except NoSuchLogError:
                # Made after the log was deleted: no other client would delete it. A deletion that begins after this
                # look finds it.
                await self.delete()
                raise

    async def delete(self) -> None:
        """Leave nothing of the document."""
        await self._store.delete_document(self._document)

    async def _read(self) -> None:
        read_before_ms = self._handed_over.reads(self._access.boot_clock().ms)
        found = await self._store.read_document(self._document)
        version = None if found is None else found.version
        if self._stored is not None and version == self._version:
            return
        self._version = version
        self._handed_over.found(read_before_ms)
        try:
            self._stored = self._latest = None if found is None else decode_ages(found.value, f"log {self._name}, ages")
        except MetadataError as error:
            # A client that counts from nothing keeps too much, and loses nothing.
            log.warning("log %s: its ages are counted anew: %s", self._name, error.message)
            self._stored = None
            self._latest = LogAges.begun(Moment(0, 0, self._access.boot_clock()))

    def _tell(self, ages: LogAges) -> None:
        """Say that clocks disagree, or that one was set: at once, and again now and then."""
        time = ages.time
        self._access.counts.clocks_read(time.at.ahead_ms)
        now_ms = time.at.boot.ms
        if time.trouble and (self._told_at_ms is None or now_ms - self._told_at_ms >= _TELL_AGAIN_MS):
            self._told_at_ms = now_ms
            log.warning(
                "log %s: %s; nothing is dropped that is young by any of them (docs/runbooks/clocks-disagree.md)",
                self._name,
                time.trouble,
            )


async def told_idle(
    access: LedgerAccess, cursors: Mapping[str, CursorState], seconds: float, stop: int
) -> frozenset[str]:
    """The cursors below ``stop`` that were not touched for longer than this, as they tell. Nothing depends on it."""
    now_ms = access.clock_ms()
    if any(now_ms - cursor.touched_at_ms > seconds * 1000 for cursor in cursors.values()):
        now_ms = min(now_ms, await access.store.time_ms())
    return frozenset(
        name
        for name, cursor in cursors.items()
        if cursor.position < stop and now_ms - cursor.touched_at_ms > seconds * 1000
    )
