"""The checks that operators ask for with ``octavo repair check``.

The command adds ledgers to a document. The auditor gives every member a job to read its copies back and to pull what is
damaged or missing, and writes the result into the document, where the command finds and removes it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import structlog
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import MetadataConflictError, MetadataError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.documents import CHECKS, Check, decode_checks, encode_checks
from octavo.repair.base.read_metadata import read_ledgers
from octavo.repair.base.stream_parts import StreamParts
from octavo.repair.base.unreadable import log_unreadable

log = structlog.get_logger("octavo.repair")


class OperatorChecks:
    """The checks under way, for an auditor."""

    def __init__(self, store: MetadataStore, parts: StreamParts) -> None:
        self._store = store
        self._parts = parts
        self._members: dict[LedgerId, set[BookieId]] = {}
        """Members that have not finished, by ledger."""
        self._short: dict[LedgerId, bool] = {}

    @property
    def pending(self) -> bool:
        """Whether any check is under way."""
        return bool(self._members)

    async def new_ones(self, registered: Collection[BookieId]) -> list[tuple[LedgerId, list[BookieId]]]:
        """Ledgers whose check begins now, and the members that are to check themselves."""
        found = await self._store.read_document(CHECKS)
        try:
            checks = decode_checks(None if found is None else found.value)
        except MetadataError as error:
            log.warning("the checks that operators ask for cannot be understood", reason=error.message)
            return []
        new = [
            check.ledger_id for check in checks
            if check.short is None and check.ledger_id not in self._members and check.ledger_id not in self._short
        ]  # fmt: skip
        begun = []
        for ledger_id, metadata in (await read_ledgers(self._store, new, log_unreadable)).items():
            named = set() if metadata is None else {
                name for settled in metadata.settled_ranges() for name in settled.bookies
            }  # fmt: skip
            if metadata is not None and metadata.pages:
                named |= await self._parts.members(metadata)
            if metadata is not None and not metadata.has_end:
                named |= set(metadata.last_fragment.bookies)
            there = sorted(name for name in named if name in registered)
            self._members[ledger_id] = set(there)
            self._short[ledger_id] = len(there) < len(named)
            begun.append((ledger_id, there))
        return begun

    def ended(self, ledger_id: LedgerId, member: BookieId, *, short: bool) -> None:
        """A member has checked itself; ``short``: it lacks what it could not pull."""
        if ledger_id in self._members:
            self._members[ledger_id].discard(member)
            self._short[ledger_id] = self._short[ledger_id] or short

    async def store_results(self) -> None:
        """Write the results of the checks that have ended."""
        results = {one: self._short[one] for one, members in self._members.items() if not members}
        if not results:
            return
        found = await self._store.read_document(CHECKS)
        if found is not None:
            checks = [_with_result(check, results) for check in decode_checks(found.value)]
            try:
                await self._store.compare_and_set_document(CHECKS, encode_checks(checks), found.version)
            except MetadataConflictError:
                return  # an operator has added a check; the next turn writes the results
        for ledger_id in results:
            del self._members[ledger_id], self._short[ledger_id]


def _with_result(check: Check, results: Mapping[LedgerId, bool]) -> Check:
    if check.short is None and check.ledger_id in results:
        return replace(check, short=results[check.ledger_id])
    return check
