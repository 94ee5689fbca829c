"""What repair needs of a bookie's storage: both implementations agree (octavo.repair.base.local_bookie)."""

from collections.abc import AsyncIterator

import pytest
from octavo.metadata import open_metadata_store
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import DigestMismatchError, DuplicateEntryError, ProtocolError
from octavo.protocol.held_entries import Holdings
from octavo.protocol.ids import EntryId, LedgerId
from octavo.repair.base.local_bookie import LocalCopies
from support.clusters.local_bookie import MemoryCopies
from support.disks.copies import StorageHost
from support.disks.faulty_filesystem import MemoryFileSystem

LEDGER = LedgerId(7)


def sealed(*ids: int, payload: bytes = b"payload", ledger_id: LedgerId = LEDGER) -> list[bytes]:
    sealer = Sealer(ledger_id, Digest.CRC32C, derive_secrets(b"", ledger_id))
    entries = []
    for entry_id in ids:
        lac = None if entry_id == 0 else EntryId(entry_id - 1)
        entries += sealer.seal(EntryId(entry_id), [payload], last_add_confirmed=lac, length=0, sealed_at_ms=0)
    return entries


@pytest.fixture(params=["memory", "storage"])
async def copies(request: pytest.FixtureRequest) -> AsyncIterator[LocalCopies]:
    if request.param == "memory":
        yield MemoryCopies()
        return
    async with await open_metadata_store("memory://", create=True) as store:
        host = await StorageHost(MemoryFileSystem(), store).start()
        yield host.copies
        await host.storage.close()


async def lacking(
    copies: LocalCopies, first: int, last: int, *, modulus: int = 1, residues: tuple[int, ...] = (0,)
) -> list[int]:
    """The ids of an interval that are not held, by as many questions as that takes."""
    found: list[int] = []
    while first <= last:
        held: Holdings = await copies.verified(LEDGER, first, last, stripe=(modulus, residues))
        index = await copies.missing(LEDGER, first, last, stripe=(modulus, residues))
        assert held.last_covered >= first
        for low, high in sorted((*held.missing, *held.unknown)):
            found += [
                one for one in range(max(low, first), min(high, held.last_covered) + 1) if one % modulus in residues
            ]
        assert index.last_covered >= first
        first = held.last_covered + 1
    return found


async def test_copies_are_held_verbatim_and_what_is_missing_is_told(copies: LocalCopies) -> None:
    assert await lacking(copies, 0, 5) == [0, 1, 2, 3, 4, 5]
    entries = sealed(0, 1, 4)
    await copies.copy_in(LEDGER, entries)
    assert await lacking(copies, 0, 5) == [2, 3, 5]
    assert await lacking(copies, 0, 5, modulus=3, residues=(0, 2)) == [2, 3, 5]
    assert [await copies.read_entry(LEDGER, one) for one in (0, 1, 2, 4)] == [entries[0], entries[1], None, entries[2]]
    assert copies.last_add_confirmed(LEDGER) == 3
    await copies.copy_in(LEDGER, entries)  # the same bytes again
    assert copies.doubt is None


async def test_many_ids_are_told_in_pieces(copies: LocalCopies) -> None:
    await copies.copy_in(LEDGER, sealed(*range(0, 300, 2)))
    assert await lacking(copies, 0, 299) == list(range(1, 300, 2))


async def test_other_bytes_damaged_bytes_and_other_ledgers_are_refused(copies: LocalCopies) -> None:
    await copies.copy_in(LEDGER, sealed(0))
    with pytest.raises(DuplicateEntryError):
        await copies.copy_in(LEDGER, sealed(0, payload=b"another"))
    (entry,) = sealed(1)
    with pytest.raises(DigestMismatchError):
        await copies.copy_in(LEDGER, [entry[:-1] + bytes([entry[-1] ^ 1])])
    with pytest.raises(ProtocolError):
        await copies.copy_in(LEDGER, sealed(1, ledger_id=LedgerId(8)))
    assert await lacking(copies, 0, 1) == [1]


async def test_a_lock_excludes_and_other_ledgers_are_free(copies: LocalCopies) -> None:
    order: list[str] = []
    async with copies.lock(LEDGER), copies.lock(LedgerId(8)):
        order.append("held")
    async with copies.lock(LEDGER):
        order.append("again")
    assert order == ["held", "again"]
