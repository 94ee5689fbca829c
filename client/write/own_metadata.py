"""The metadata of a ledger as its one writer has them: what it learns of them, and the changes it makes.

Nobody but the writer changes the last fragment of an open ledger, or closes it; others may mend older fragments,
begin to recover it, or delete it. News of these come by the store's watch, or with the refusal of a change. The writer
makes one change at a time (rule W5); whoever calls sees to that.
"""

import asyncio
from collections.abc import Callable

from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.changes import ChangeEnsemble, CloseLedger, MetadataChange
from octavo.metadata.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataStore, Versioned
from octavo.metadata.update import update_ledger
from octavo.protocol.errors import (
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
)
from octavo.protocol.ids import EntryId


class OwnMetadata:
    """See the module. ``ledger``: as just created."""

    def __init__(
        self,
        ledger: Versioned[LedgerMetadata],
        *,
        store: MetadataStore,
        retry_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._retry_seconds = retry_seconds
        self._closing = False
        self._in_doubt: Fragment | None = None
        """The last fragment that was to be written, while nobody knows whether it stands there."""

    @property
    def value(self) -> LedgerMetadata:
        """As far as is known."""
        return self._ledger.value

    # --- news ---------------------------------------------------------------------------------------------------------

    async def watch(self, on_taken: Callable[[OctavoError], None]) -> None:
        """Notice that the ledger is deleted or taken over: ``on_taken`` hears why it is the writer's no more, maybe
        repeatedly. Ends with the watch, or when cancelled."""
        try:
            async with self._store.watch_ledger(self.value.ledger_id) as watch:
                async for ledger in watch:
                    reason = self._changed(ledger)
                    if reason is not None:
                        on_taken(reason)
        except OctavoError:
            # The store is closed, or holds something that cannot be understood: the next change of the metadata,
            # that of closing at the latest, meets the same and tells it to the caller.
            return

    def stop_watching(self) -> None:
        """From now on only :meth:`close` says how things stand."""
        self._closing = True

    def deleted(self) -> OctavoError | None:
        """The ledger has been deleted, as is known without a watch's news: what that is for the writer, or None when it
        is closing and will see."""
        return self._changed(None)

    def _changed(self, ledger: Versioned[LedgerMetadata] | None) -> OctavoError | None:
        """Take note; why the ledger is the writer's no more, if so."""
        if self._closing:
            return None
        if ledger is None:
            return NoSuchLedgerError(f"ledger {self.value.ledger_id} has been deleted")
        if ledger.value.state is not LedgerState.OPEN:
            self._ledger = ledger
            done = "been recovered and closed" if ledger.value.is_closed else "begun to be recovered"
            return LedgerFencedError(f"ledger {self.value.ledger_id} has {done} by another client")
        if ledger.value.last_fragment == self.value.last_fragment:
            # Older fragments may have been repaired. The last one is ours: another one is news from before our latest
            # change, or of one whose answer is still to come.
            self._ledger = ledger
        return None

    # --- changes ------------------------------------------------------------------------------------------------------

    async def change_ensemble(self, change: Commit, is_wanted: Callable[[], bool]) -> bool:
        """Write a new last fragment (rules W3 and W5); whether it stands there. While the store does not answer this
        goes on: nothing can be acknowledged until it is known what stands there. False only once it is not wanted any
        more; raises what the change is refused with."""
        wanted = ChangeEnsemble(self.value.last_fragment, change.first_entry_id, change.ensemble, change.length_before)
        self._in_doubt = Fragment(change.first_entry_id, change.ensemble, change.length_before)
        while is_wanted():
            try:
                await self._update(wanted)
            except MetadataUnavailableError:
                await asyncio.sleep(self._retry_seconds)
            else:
                self._in_doubt = None
                return True
        return False

    async def close(self, last_add_confirmed: EntryId | None, length: int) -> None:
        """Write the end (rule W9); raises why it cannot be written."""
        try:
            await self._update(CloseLedger(self.value.last_fragment, last_add_confirmed, length))
        except MetadataConflictError:
            # It may be our own change that stands there, given up before its answer came (rule M1).
            if self._in_doubt is None:
                raise
            await self._update(CloseLedger(self._in_doubt, last_add_confirmed, length))

    async def _update(self, change: MetadataChange) -> None:
        value = self.value
        self._ledger = await update_ledger(
            self._store, value.ledger_id, change, writer_token=value.writer_token, known=self._ledger
        )
