"""Pays the debts of a ledger: clears them once every member says that it lacks nothing of them (rule G6).

A member that has completed its own copies asks the others, and itself, what they lack of what is owed. A member that
does not answer, cannot tell, or is too old to know the question leaves the debt as it is; the next round of the auditor
finds it again.
"""

import contextlib

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.changes import PayDebt
from octavo.metadata.debts import Debt
from octavo.metadata.either import EitherMetadata
from octavo.metadata.model import Fragment, LedgerMetadata
from octavo.metadata.store import MetadataStore, Versioned
from octavo.metadata.update import update_ledger
from octavo.protocol.errors import ClientClosedError, MetadataConflictError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import CAPABILITY_REPAIR, Missing, MissingAnswer
from octavo.protocol.quorums import Quorums
from octavo.repair.local import LocalBookie
from octavo.repair.settled import quorums_at

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
        """Clear what is paid; the metadata then. Raises the errors of the metadata store."""
        metadata = current.value
        if not isinstance(metadata, LedgerMetadata):
            return metadata
        for fragment, debt in metadata.debts:
            if await self._is_paid(metadata, fragment, debt):
                change = PayDebt(fragment.first_entry_id, fragment.bookies, debt)
                # After a conflict the debt is another one, or of other members: a later round looks at it.
                with contextlib.suppress(MetadataConflictError):
                    metadata = (
                        await update_ledger(self._store, metadata.ledger_id, change, writer_token=self._token)
                    ).value
                    log.info("a debt is paid", ledger=int(metadata.ledger_id), first=debt.first, last=debt.last)
        return metadata

    async def _is_paid(self, metadata: LedgerMetadata, fragment: Fragment, debt: Debt) -> bool:
        quorums = quorums_at(metadata, fragment.first_entry_id)
        for position, name in enumerate(fragment.bookies):
            if not await self._has_all(metadata, name, debt, quorums, position):
                return False
        return True

    async def _has_all(
        self, metadata: LedgerMetadata, name: BookieId, debt: Debt, quorums: Quorums, position: int
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
