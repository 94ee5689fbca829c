"""Shared by the parts of an open store: the driver's records, the watches, and the lease."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable

from octavo.metadata.store.driver import LIST_PAGE_RECORDS, Kind, RecordStore
from octavo.metadata.store.leases import LeaseKeeper
from octavo.metadata.store.watch import WatchHub
from octavo.protocol.errors import ClientClosedError
from octavo.security import forks


class Handle:
    """A driver's records while the store is open. ``clock`` gives seconds for leases; ``new_token`` gives names of
    sessions and places in lines."""

    def __init__(
        self, records: RecordStore, *, lease_seconds: float, clock: Callable[[], float], new_token: Callable[[], str]
    ) -> None:
        self._records = records
        self._loop = asyncio.get_running_loop()
        forks.note_loop(self._loop)
        forks.hold(self)
        self.closed = False
        self.new_token = new_token
        self.list_page_records = LIST_PAGE_RECORDS
        """Keys that lists of this handle read at a time."""
        self.hub = WatchHub(records.watching, self._on_topic)
        self.keeper = LeaseKeeper(records, lease_seconds, clock, new_token)
        records.start(self._on_change)
        records.report_ended_sessions(self.keeper.renew_soon)

    @property
    def uri(self) -> str:
        """The URI that opens the store."""
        return self._records.uri

    def records(self) -> RecordStore:
        """The driver. Raises :class:`ClientClosedError` once the store is closed, and in a forked child
        :class:`ForkedError`."""
        if self.closed:
            forks.check_process(self._loop)
            raise ClientClosedError("the metadata store has been closed")
        return self._records

    async def keys(self, kind: Kind, prefix: str, after: str = "") -> AsyncIterator[str]:
        """The keys of a kind that start with ``prefix`` and sort after ``after``, in order, page by page."""
        while True:
            limit = self.list_page_records
            keys = await self.records().list_keys(kind, prefix=prefix, after=after, limit=limit)
            for key in keys:
                yield key
            if len(keys) < limit:
                return
            after = keys[-1]

    def on_forked(self) -> None:
        """In a forked child (rule H1): the leases are the parent's."""
        self.closed = True
        self.keeper.on_forked()

    def stop(self) -> bool:
        """Refuse everything from now on. Whether anything was answered until now."""
        forks.check_process(self._loop)
        was_open = not self.closed
        self.closed = True
        if was_open:
            forks.let_go(self)
        return was_open

    async def close(self) -> None:
        """After :meth:`stop`: end watches and the lease, and close the driver."""
        await self.hub.close()
        await self.keeper.close()
        await self._records.close()

    def _on_topic(self, topic: Hashable, active: bool) -> None:
        assert isinstance(topic, tuple)
        kind, key = topic
        self._records.watch_record(kind, key, active=active)

    def _on_change(self, kind: Kind | None, key: str | None) -> None:
        if kind is not None and key is not None:
            self.hub.changed_one((kind, key))
            self.hub.changed_one((kind, None))
        else:
            self.hub.changed(lambda watched: kind is None or _kind_of(watched) is kind)


def _kind_of(key: Hashable) -> Kind:
    assert isinstance(key, tuple)
    kind = key[0]
    assert isinstance(kind, Kind)
    return kind
