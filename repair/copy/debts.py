"""Pays the debts of ledgers and streams: clears them once every member says that it lacks nothing of them (rule G6).

A member that has completed its own copies asks the others, and itself, what they lack of what is owed. A member that
does not answer, cannot tell, or is too old to know the question leaves the debt as it is; the next round of the auditor
finds it again.

Of a stream the debts of the tail come first, then those of its pages, the newest first: a page whose debts are paid is
made anew, and named by one change of the root (rule U2).
"""

import contextlib

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.changes import PayDebt
from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata, as_stream
from octavo.metadata.stream.changes import ReplacePages
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import page_document, repaired_page
from octavo.metadata.updates.page_out import store_page
from octavo.metadata.updates.paging import StreamPages
from octavo.metadata.updates.update import repair_metadata, update_stream
from octavo.protocol.errors import ClientClosedError, MetadataConflictError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import CAPABILITY_REPAIR, Missing, MissingAnswer
from octavo.protocol.quorums import Quorums
from octavo.repair.base.local_bookie import LocalBookie

log = structlog.get_logger("octavo.repair")


class DebtPayer:
    """See the module. For one bookie."""

    def __init__(self, bookie: LocalBookie, pool: ConnectionPool, *, timeout_seconds: float, token: str) -> None:
        self._me: BookieId = bookie.bookie_id
        self._copies = bookie.copies
        self._store: MetadataStore = bookie.store
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self._token = token

    async def pay(self, current: Versioned[EitherMetadata]) -> EitherMetadata:
        """Clear what is paid; the metadata then. Raises the errors of the metadata store, and :class:`PageMissingError`
        if the metadata of a stream are out of date."""
        root = metadata = current.value
        if metadata.full_copies is None:
            return metadata
        tail = metadata.tail
        for fragment, debt in tail.debts:
            if await self._is_paid(tail, fragment.bookies, debt):
                change = PayDebt(fragment.first_entry_id, fragment.bookies, debt)
                # After a conflict the debt is another one, or of other members: a later round looks at it.
                with contextlib.suppress(MetadataConflictError):
                    root = (await repair_metadata(self._store, root, change, writer_token=self._token)).value
                    _note_paid(metadata, debt)
        return await self._pay_pages(as_stream(metadata), as_stream(root)) if metadata.pages else root

    async def _pay_pages(self, stream: StreamMetadata, root: StreamMetadata) -> StreamMetadata:
        """``stream``: as it was read at first. ``root``: as it is stored since."""
        pages = StreamPages(self._store, pages_max=1)
        for page in reversed(stream.pages):
            # Those that another change has replaced, or truncation has removed, are left to a later round.
            if page in root.pages:
                root = await self._pay_page(root, page, await pages.whole_part(root, page))
        return root

    async def _pay_page(self, root: StreamMetadata, page: PageReference, whole: StreamMetadata) -> StreamMetadata:
        paid: list[Debt] = []
        wanted, kept = whole, whole.truncated(root.start)
        for fragment, recorded in kept.debts:
            # The stream may begin within the last fragment of the page.
            debt = recorded.within(root.start_place, recorded.last)
            if debt.is_empty or await self._is_paid(kept, fragment.bookies, debt):
                wanted = wanted.with_debt(fragment.first_entry_id, NO_DEBT)
                paid.append(debt)
        if not paid:
            return root
        made = repaired_page(root, page, wanted)
        await store_page(self._store, root.ledger_id, made)
        change = ReplacePages(((page, made.reference),))
        try:
            root = (await update_stream(self._store, root.ledger_id, change, writer_token=self._token)).value
        except MetadataConflictError:
            return root  # the page that was made is swept (rule U2)
        await self._store.delete_document(page_document(root.ledger_id, page))
        for debt in paid:
            _note_paid(root, debt)
        return root

    async def _is_paid(self, metadata: StoredLedger, bookies: tuple[BookieId, ...], debt: Debt) -> bool:
        quorums = metadata.quorums_at(debt.first)
        for position, name in enumerate(bookies):
            if not await self._has_all(metadata, name, debt, quorums, position):
                return False
        return True

    async def _has_all(
        self, metadata: StoredLedger, name: BookieId, debt: Debt, quorums: Quorums, position: int
    ) -> bool:
        stripe = (quorums.ensemble_size, quorums.residues_at(position))
        first = debt.first
        while first <= debt.last:
            try:
                if name == self._me:
                    held = await self._copies.missing(metadata.ledger_id, first, debt.last, stripe=stripe)
                    lacks, covered = bool(held.missing or held.unknown), held.last_covered
                else:
                    connection = self._pool.get(name)
                    await connection.wait_writable(timeout_seconds=self._timeout_seconds)
                    if CAPABILITY_REPAIR not in connection.capabilities:
                        return False
                    request = Missing(metadata.ledger_id, first, debt.last, *stripe)
                    answer = await connection.request(request, timeout_seconds=self._timeout_seconds)
                    if not isinstance(answer, MissingAnswer):
                        return False
                    lacks, covered = bool(answer.missing or answer.unknown), answer.last_covered
            except ClientClosedError:
                raise
            except OctavoError:
                return False
            if lacks or covered < first:
                return False
            first = covered + 1
        return True


def _note_paid(metadata: StoredLedger, debt: Debt) -> None:
    log.info("a debt is paid", ledger=int(metadata.ledger_id), first=debt.first, last=debt.last)
