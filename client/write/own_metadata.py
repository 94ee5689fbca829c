"""A writer's view of the metadata of its ledger: what it learns about them, and the changes it makes.

Only the writer changes the last fragment of an open ledger, or closes it. Other clients may repair older fragments,
begin to recover the ledger, or delete it; the writer learns of that from the store's watch, or because a change of its
own is refused. A writer makes one change at a time (rule W5), which the caller ensures.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.refusals import fenced
from octavo.metadata.ledger.changes import ChangeEnsemble, CloseLedger, MetadataChange, who_fenced
from octavo.metadata.ledger.debts import Debt
from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned, Watch
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.update import update_ledger
from octavo.protocol.errors import (
    InternalError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
    TasksCancelledError,
)
from octavo.protocol.ids import EntryId


class OwnMetadata(Protocol):
    """The metadata of what a core writes: a ledger (:class:`OwnLedger`), or the current term of a stream
    (:class:`octavo.client.terms.own_term.OwnTerm`)."""

    @property
    def term(self) -> Term:
        """The term that is written, by the latest metadata seen or written."""

    @property
    def stored(self) -> EitherMetadata:
        """These metadata."""

    def begin_watching(self, on_lost: Callable[[OctavoError], None]) -> None:
        """Watch the metadata. Call ``on_lost`` with the reason, possibly repeatedly, when this writer may not write any
        more."""

    def heed_close_only(self) -> None:
        """Ignore what the watch reports from now on: only the outcome of :meth:`close` counts."""

    def stop_watching(self) -> None:
        """End the watch, if it has begun."""

    def mark_deleted(self) -> OctavoError | None:
        """Note that this client has deleted the ledger. Returns the error with which the writer fails; None while the
        writer is closing, because the close finds the ledger deleted."""

    async def change_ensemble(self, change: Commit, is_wanted: Callable[[], bool]) -> bool:
        """Write a new last fragment (rules W3, W5 and T9) and return True when the store has it. Tries again for as
        long as the store does not answer, because nothing can be acknowledged until the outcome is known. Returns False
        if ``is_wanted`` says meanwhile that the change is not wanted any more. Raises the error with which the store
        refused the change."""

    async def close(self, last_add_confirmed: EntryId | None, length: int, debt: Debt) -> None:
        """Write the end (rules W9 and T8) and what the last fragment owes (rule G4). Raises the error that prevented
        it."""


class OwnLedger:
    """:class:`OwnMetadata` of a ledger. ``ledger``: as just created."""

    def __init__(
        self,
        ledger: Versioned[LedgerMetadata],
        *,
        store: MetadataStore,
        retry_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._term = ledger.value.current_term
        self._store = store
        self._retry_seconds = retry_seconds
        self._closing = False
        self._watch: Watch[Versioned[LedgerMetadata] | None] | None = None
        self._fragment_in_doubt: Fragment | None = None
        """The fragment of a change whose outcome is unknown: the store may or may not have made it."""

    @property
    def term(self) -> Term:
        """All of the ledger."""
        return self._term

    @property
    def stored(self) -> LedgerMetadata:
        """The latest metadata seen or written."""
        return self._ledger.value

    # --- changes by other clients -----------------------------------------------------------------------------------

    def begin_watching(self, on_lost: Callable[[OctavoError], None]) -> None:
        """As :meth:`OwnMetadata.begin_watching`: the writer may not go on when the ledger is deleted or another client
        recovers it."""
        self._watch = watch_own(self._store.watch_ledger(self.stored.ledger_id), self._adopt, on_lost)

    def heed_close_only(self) -> None:
        """As :meth:`OwnMetadata.heed_close_only`."""
        self._closing = True

    def stop_watching(self) -> None:
        """As :meth:`OwnMetadata.stop_watching`."""
        if self._watch is not None:
            self._watch.stop()

    def mark_deleted(self) -> OctavoError | None:
        """As :meth:`OwnMetadata.mark_deleted`."""
        return self._adopt(None)

    def _adopt(self, ledger: Versioned[LedgerMetadata] | None) -> OctavoError | None:
        """Adopt metadata that were read. Returns why the writer may no longer write the ledger, or None."""
        if self._closing:
            return None
        if ledger is None:
            return NoSuchLedgerError(f"ledger {self.stored.ledger_id} has been deleted")
        if ledger.value.state is not LedgerState.OPEN:
            self._note(ledger)
            action = "recovered and closed it" if ledger.value.is_closed else "is recovering it"
            return fenced(self.stored.ledger_id, f"according to its metadata {who_fenced(ledger.value)} {action}")
        if ledger.value.last_fragment.holds_as(self.stored.last_fragment):
            # Older fragments may have been repaired. Only this writer changes the last fragment: if it differs, these
            # metadata are older than the latest change, or show a change whose answer is still to come.
            self._note(ledger)
        return None

    # --- changes ------------------------------------------------------------------------------------------------------

    async def change_ensemble(self, change: Commit, is_wanted: Callable[[], bool]) -> bool:
        """As :meth:`OwnMetadata.change_ensemble` (rules W3 and W5)."""
        wanted = ChangeEnsemble(
            self.stored.last_fragment, change.first_entry_id, change.ensemble, change.length_before, change.debt
        )
        self._fragment_in_doubt = Fragment(change.first_entry_id, change.ensemble, change.length_before)
        while is_wanted():
            try:
                await self._update(wanted)
            except MetadataUnavailableError:
                await asyncio.sleep(self._retry_seconds)
            else:
                self._fragment_in_doubt = None
                return True
        return False

    async def close(self, last_add_confirmed: EntryId | None, length: int, debt: Debt) -> None:
        """As :meth:`OwnMetadata.close` (rule W9)."""
        try:
            await self._update(CloseLedger(self.stored.last_fragment, last_add_confirmed, length, debt))
        except MetadataConflictError:
            # The store may have made a change of this writer whose answer was lost (rule M1).
            if self._fragment_in_doubt is None:
                raise
            await self._update(CloseLedger(self._fragment_in_doubt, last_add_confirmed, length, debt))

    async def _update(self, change: MetadataChange) -> None:
        value = self.stored
        changed = await update_ledger(
            self._store, value.ledger_id, change, writer_token=value.writer_token, known=self._ledger
        )
        self._note(changed)

    def _note(self, ledger: Versioned[LedgerMetadata]) -> None:
        self._ledger = ledger
        self._term = ledger.value.current_term


def watch_own[M](
    watch: Watch[M], adopt: Callable[[M], OctavoError | None], on_lost: Callable[[OctavoError], None]
) -> Watch[M]:
    """Begin to watch metadata of a writer's own. ``adopt`` takes them, and says why the writer may not go on."""

    def saw(found: M) -> None:
        reason = adopt(found)
        if reason is not None:
            on_lost(reason)

    def ended(error: OctavoError) -> None:
        # If the store is closed, or holds something that cannot be decoded, the next change of the metadata, at the
        # latest the one that closes the ledger, meets the same error and raises it to the caller.
        if isinstance(error, TasksCancelledError | InternalError):
            on_lost(error)

    return watch.begin(saw, ended)
