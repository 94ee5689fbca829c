"""A handle's way to lead its log: the lock, then the takeover; the writers that the handle has made."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from octavo.client.log.documents.names import lock_name
from octavo.client.log.keys.known_keys import KnownKeys
from octavo.client.log.layout import LogLayout
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.own_writers import OwnWriters
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import LeaseLostError

if TYPE_CHECKING:
    from octavo.client.log.writer.writer import LogWriter

log = logging.getLogger("octavo.client")


class Leading:
    """Leads for one handle. ``on_writer`` is told of each writer made, ``on_writer_closed`` of each that has closed."""

    def __init__(
        self,
        store: MetadataStore,
        layout: LogLayout,
        *,
        on_writer: Callable[["LogWriter"], object],
        on_writer_closed: Callable[["LogWriter"], object],
        read_keys: Callable[[int], Awaitable[KnownKeys | None]],
    ) -> None:
        """``read_keys`` reads the keys of the log up to its end, which is given; None: it has none."""
        self._store = store
        self._layout = layout
        self._on_writer = on_writer
        self._on_writer_closed = on_writer_closed
        self._read_keys = read_keys
        self.own = OwnWriters(layout.view.name)

    async def lead(self, holder: str) -> "LogWriter":
        """Wait for the lock, and take the log over under it."""
        self._layout.get_ready()
        async with self.own.waiting():
            while True:
                lock = lock_name(self._layout.view.log_id)
                lease = LogLock(self._store, lock, holder, await self._store.lock(lock, holder))
                try:
                    return await self.take_over(lease)
                except LeaseLostError as error:
                    await lease.release()
                    log.warning("%s; this client waits for the lock again", error.message)
                except BaseException:
                    await lease.release()
                    raise

    async def take_over(self, lease: LogLock | None) -> "LogWriter":
        """Take the log over now, under the lock or without one."""

        def closed(writer: "LogWriter") -> None:
            self.own.closed(writer)
            self._on_writer_closed(writer)

        self._layout.view.check_open()
        writer = await self._layout.take_over(lease, closed)
        try:
            known = await self._read_keys(writer.end)
        except BaseException:
            await writer._abandon()
            raise
        if known is not None:
            writer._know_keys(known)
        self.own.made(writer)
        self._on_writer(writer)
        return writer
