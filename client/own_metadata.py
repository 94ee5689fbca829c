"""The metadata of a ledger as its one writer has them: what it learns of them, and the changes it makes.

Nobody but the writer changes the last fragment of an open ledger, or closes it; others may mend older fragments,
begin to recover it, or delete it. News of these come by the store's watch, or with the refusal of a change. The writer
makes one change at a time (PROTOCOL W5); whoever calls sees to that.
"""

import asyncio
from collections.abc import Callable

from octavo.client.ensemble_changes import Commit
from octavo.metadata.changes import ChangeEnsemble, CloseLedger, MetadataChange
from octavo.metadata.model import LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataStore, Versioned
from octavo.metadata.update import update_ledger
from octavo.protocol.errors import LedgerFencedError, MetadataUnavailableError, NoSuchLedgerError, OctavoError
from octavo.protocol.ids import EntryId


class OwnMetadata:
    """See the module. ``ledger``: as just created. ``on_taken`` hears why the ledger is the writer's no more, also
    while nothing is added; maybe repeatedly.
    """

    def __init__(
        self,
        ledger: Versioned[LedgerMetadata],
        *,
        store: MetadataStore,
        retry_seconds: float,
        on_taken: Callable[[OctavoError], None],
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._retry_seconds = retry_seconds
        self._on_taken = on_taken
        self._closing = False

    @property
    def value(self) -> LedgerMetadata:
        """As far as is known."""
        return self._ledger.value

    # --- news ---------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Notice that the ledger is deleted or taken over. Ends with the watch, or when cancelled."""
        try:
            async with self._store.watch_ledger(self.value.ledger_id) as watch:
                async for ledger in watch:
                    self._changed(ledger)
        except OctavoError:
            # The store is closed, or holds something that cannot be understood: the next change of the metadata,
            # that of closing at the latest, meets the same and tells it to the caller.
            return

    def heed_no_more_news(self) -> None:
        """From now on only :meth:`close` says how things stand."""
        self._closing = True
        # Whoever heard them is not held any longer: no cycle is left for the garbage collector.
        self._on_taken = _nobody_hears

    def deleted(self) -> None:
        """The ledger has been deleted, as is known without a watch's news."""
        self._changed(None)

    def _changed(self, ledger: Versioned[LedgerMetadata] | None) -> None:
        if self._closing:
            return
        if ledger is None:
            self._on_taken(NoSuchLedgerError(f"ledger {self.value.ledger_id} has been deleted"))
        elif ledger.value.state is not LedgerState.OPEN:
            self._ledger = ledger
            done = "been recovered and closed" if ledger.value.is_closed else "begun to be recovered"
            self._on_taken(LedgerFencedError(f"ledger {self.value.ledger_id} has {done} by another client"))
        elif ledger.value.last_fragment == self.value.last_fragment:
            # Older fragments may have been repaired. The last one is ours: another one is news from before our latest
            # change, or of one whose answer is still to come.
            self._ledger = ledger

    # --- changes ------------------------------------------------------------------------------------------------------

    async def change_ensemble(self, change: Commit, is_wanted: Callable[[], bool]) -> bool:
        """Write a new last fragment (PROTOCOL W3, W5); whether it stands there. While the store does not answer this
        goes on: nothing can be acknowledged until it is known what stands there. False only once it is not wanted any
        more; raises what the change is refused with."""
        wanted = ChangeEnsemble(self.value.last_fragment, change.first_entry_id, change.ensemble, change.length_before)
        while is_wanted():
            try:
                await self._update(wanted)
            except MetadataUnavailableError:
                await asyncio.sleep(self._retry_seconds)
            else:
                return True
        return False

    async def close(self, last_add_confirmed: EntryId | None, length: int) -> None:
        """Write the end (PROTOCOL W9); raises why it cannot be written."""
        await self._update(CloseLedger(self.value.last_fragment, last_add_confirmed, length))

    async def _update(self, change: MetadataChange) -> None:
        value = self.value
        self._ledger = await update_ledger(
            self._store, value.ledger_id, change, writer_token=value.writer_token, known=self._ledger
        )


def _nobody_hears(_error: OctavoError) -> None:
    """There is no news any more."""
