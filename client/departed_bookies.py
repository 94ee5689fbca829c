"""Tells the writers of a client which bookies have departed (rule O2).

The cluster says in one document which bookies are lost, drained or in doubt. A client that writes watches it: nothing
new is placed on those bookies, and every open ledger of this client that has one of them in its last fragment gets
another one at LAC + 1, also a ledger that is idle or was never written. What lies before is settled then, and repair
can copy it. Readers do not watch.
"""

import asyncio
import contextlib
import logging
from typing import Final
from weakref import WeakValueDictionary

from octavo.client.supervisor import Supervisor
from octavo.client.write.core import Core
from octavo.metadata.cluster.repair_states import DOCUMENT, decode_states
from octavo.metadata.store.follow import follow
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import OctavoError, TasksCancelledError
from octavo.protocol.ids import BookieId, LedgerId

log = logging.getLogger("octavo.client")

LEDGERS_PER_SECOND: Final = 200
"""Idle ledgers changed per second: a client with thousands of them must not flood the metadata store."""

AGAIN_SECONDS: Final = 10.0
"""How often writers are told again while any bookie is departed: of ledgers created meanwhile, and of spares that were
not there before."""

RETRY_SECONDS: Final = 1.0
"""Pause before a document that cannot be read is read again."""


class Departures:
    """See the module. Begins to watch with the first writer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._supervisor = Supervisor("octavo departures", self._failed)
        self._writers: WeakValueDictionary[LedgerId, Core] = WeakValueDictionary()
        self._watching = False
        self._changed = asyncio.Event()
        self.departed: frozenset[BookieId] = frozenset()
        """Bookies on which nothing new is to be placed."""

    def tell(self, writer: Core) -> None:
        """Tell this writer from now on, as long as it exists."""
        self._writers[writer.id] = writer
        if not self._watching:
            self._watching = True
            self._supervisor.start(self._watch())
            self._supervisor.start(self._replace())

    async def close(self) -> None:
        """Tell nothing any more. May be called any number of times."""
        await self._supervisor.close()

    async def _watch(self) -> None:
        async def take(found: Versioned[bytes] | None) -> None:
            departed = decode_states(None if found is None else found.value).departed
            if departed != self.departed:
                self.departed = departed
                self._changed.set()

        def on_error(error: OctavoError) -> None:
            log.warning("which bookies have departed is not known: %s", error.message)

        await follow(lambda: self._store.watch_document(DOCUMENT), take, on_error=on_error, retry_seconds=RETRY_SECONDS)

    async def _replace(self) -> None:
        before: frozenset[BookieId] = frozenset()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS if self.departed else None):
                    await self._changed.wait()
            self._changed.clear()
            departed = self.departed
            concerned = departed | before
            for ledger_id in list(self._writers.keys()):
                writer = self._writers.get(ledger_id)
                if writer is None or concerned.isdisjoint(writer.term.bookies):
                    continue
                writer.replace_departed(departed)
                del writer
                await asyncio.sleep(1 / LEDGERS_PER_SECOND)
            before = departed

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, TasksCancelledError):
            return  # no caller depends on it, and each of the others is told
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a client does not learn of departed bookies any more", "exception": error}
        )
