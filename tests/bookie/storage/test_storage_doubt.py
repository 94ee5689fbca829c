"""A bookie whose journal was damaged may have lost what it acknowledged: it is in doubt from then on (rule B4)."""

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.server.answers import answer_read_lac
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER, EMPTY, decode_manifest, encode_manifest
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.errors import BookieInDoubtError, BookieStorageError, LedgerFencedError, TermOverError
from octavo.protocol.held_entries import Doubt
from octavo.protocol.messages import ReadFlag, ReadLac
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash
from support.disks.held_disk import syncs_below

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
)
DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
SCRIPT, LOST, LATER = LedgerScript(7), LedgerScript(8), LedgerScript(50)


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=lambda _error: None
    )


def add(storage: Storage, script: LedgerScript, *ids: int, recovery: bool = False) -> asyncio.Future[None]:
    return storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=recovery)


async def damaged_journal() -> MemoryFileSystem:
    """Entries 0, 1, 2 of ledger 7 were acknowledged, one after another, and ledger 8 was fenced; then the power was
    cut. The records of entry 1 and of the fence have rotted meanwhile."""
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 0)
    await add(storage, SCRIPT, 1)
    await storage.writer.fence(LOST.ledger_id, LOST.key)
    await add(storage, SCRIPT, 2)
    survivor = filesystem.after_crash(seed=1)
    for path in survivor.files(JOURNAL):
        content = survivor.content(path)
        at = content.find(SCRIPT.entry(1))
        if at >= 0:
            survivor.damage(path, at)
            fence = content.find((8).to_bytes(8, "big"), at + len(SCRIPT.entry(1)))
            survivor.damage(path, fence)
            return survivor
    raise AssertionError("the entry is not in the journal")


async def test_nothing_is_absent_after_the_journal_was_damaged() -> None:
    filesystem = await damaged_journal()
    for _ in range(2):  # it is kept over restarts
        storage = await open_storage(filesystem)
        result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
        assert (ids_of(result.entries), result.unknown, result.last_covered) == ([0, 2], [(1, 1), (3, 9)], 9)
        result = await storage.reader.read(LOST.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
        assert (result.entries, result.unknown, result.last_covered) == ([], [(0, 9)], 9)
        striped = await storage.reader.read(
            SCRIPT.ledger_id, 0, 5, stripe=(3, (0, 2)), entries_max=10, bytes_max=10_000
        )
        assert (ids_of(striped.entries), striped.unknown) == ([0, 2], [(3, 5)])
        with pytest.raises(BookieInDoubtError):
            await storage.reader.list_entries(SCRIPT.ledger_id)
        await storage.close()


async def test_a_limited_answer_speaks_only_of_what_it_covers_in_doubt_too() -> None:
    storage = await open_storage(await damaged_journal())
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=1, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown, result.last_covered) == ([0], [], 0)
    await storage.close()


async def test_bookie_in_doubt_refuses_plain_adds_and_takes_fences_and_recovery_adds() -> None:
    filesystem = await damaged_journal()
    for _ in range(2):
        storage = await open_storage(filesystem)
        # Ledger 8 was fenced, and the fence is lost: no key counts, known or not.
        for script in (SCRIPT, LOST, LATER):
            with pytest.raises(BookieInDoubtError) as refused:
                add(storage, script, 3)
            assert not refused.value.may_have_happened
        await storage.close()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 1, recovery=True)
    await storage.writer.fence(LOST.ledger_id, LOST.key)
    with pytest.raises(LedgerFencedError):
        add(storage, LOST, 0)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 3, entries_max=10, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown) == ([0, 1, 2], [(3, 3)])
    await storage.close()


async def test_lac_of_a_bookie_in_doubt_says_so() -> None:
    storage = await open_storage(await damaged_journal())
    request = ReadLac(SCRIPT.ledger_id, b"", ReadFlag.NONE, 0, None, 0, 0, 0)
    assert (await answer_read_lac(storage.reader, request, 1 << 20)).in_doubt
    await storage.limit_doubt(SCRIPT.ledger_id)
    assert not (await answer_read_lac(storage.reader, request, 1 << 20)).in_doubt
    await storage.close()


async def test_ledgers_made_after_doubt_began_are_not_in_doubt() -> None:
    filesystem = await damaged_journal()
    storage = await open_storage(filesystem)
    assert storage.doubts_every_ledger
    await storage.limit_doubt(LATER.ledger_id)
    for _ in range(2):
        assert storage.doubted_ids_stop == LATER.ledger_id
        assert not storage.doubts_every_ledger
        with pytest.raises(BookieInDoubtError):
            add(storage, LOST, 0)
        await add(storage, LATER, 0)
        result = await storage.reader.read(LATER.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
        assert (ids_of(result.entries), result.unknown) == ([0], [])
        await storage.checkpoint()  # keeps it, too
        await storage.close()
        storage = await open_storage(filesystem)
    await storage.close()


async def test_doubt_is_durable_before_the_damaged_journal_goes() -> None:
    crashed, crash_at = True, 0
    while crashed:
        crash_at += 1
        filesystem = await damaged_journal()
        filesystem.crash_at = crash_at

        async def start_and_stop(filesystem: MemoryFileSystem = filesystem) -> None:
            await (await open_storage(filesystem)).close()

        crashed = await run_until_crash(filesystem, start_and_stop)
        storage = await open_storage(filesystem.after_crash(seed=crash_at))
        assert storage.doubts_every_ledger, crash_at
        result = await storage.reader.read(SCRIPT.ledger_id, 0, 2, entries_max=10, bytes_max=10_000)
        assert (ids_of(result.entries), result.unknown) == ([0, 2], [(1, 1)])
        await storage.close()
    assert crash_at > 20, "the start was cut at every operation"


async def test_torn_tail_is_no_doubt() -> None:
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 0)
    unsynced = add(storage, SCRIPT, 1)
    await asyncio.sleep(0)
    storage = await open_storage(filesystem.after_crash(seed=3))
    assert not unsynced.done()
    assert storage.doubted_ids_stop is None
    await storage.close()


async def test_a_wiped_bookie_doubts_ledgers_that_it_does_not_know_any_more() -> None:
    """What it held is lost, and with it every trace of the ledger: that must not look like absence."""
    filesystem = MemoryFileSystem()
    filesystem.set_content(DATA / "manifest", encode_manifest(EMPTY._replace(doubt=DOUBT_OF_EVERY_LEDGER)))
    storage = await open_storage(filesystem)
    await storage.limit_doubt(LATER.ledger_id)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert (result.entries, result.unknown) == ([], [(0, 9)])
    assert storage.reader.last_add_confirmed(SCRIPT.ledger_id).in_doubt
    with pytest.raises(BookieInDoubtError):
        add(storage, SCRIPT, 0)
    with pytest.raises(BookieInDoubtError):
        await storage.reader.list_entries(SCRIPT.ledger_id)
    await add(storage, SCRIPT, 0, recovery=True)
    await add(storage, LATER, 0)
    result = await storage.reader.read(LATER.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown) == ([0], [])
    await storage.close()


async def test_bookie_becomes_sure_of_one_ledger_after_another_and_the_floor_stays() -> None:
    """Rules D1 and D2; kept over restarts and checkpoints."""
    filesystem = await damaged_journal()
    storage = await open_storage(filesystem)
    await storage.limit_doubt(LATER.ledger_id)
    narrowings: list[tuple[int, dict[int, int], tuple[int | None, int | None]]] = [
        (8, {7: 0}, (0, 0)),
        (9, {7: 3}, (3, None)),  # ledger 7 is open: the ids below its last fragment are sure
        (50, {7: 3}, (3, None)),
        (50, {}, (None, None)),
    ]
    for sure_below, exceptions, expected in narrowings:
        await storage.narrow_doubt(sure_below, exceptions)
        for restart in (storage.checkpoint, storage.close):
            await restart()
            if restart == storage.close:
                storage = await open_storage(filesystem)
            for script, unsure_from in zip((SCRIPT, LOST), expected, strict=True):
                result = await storage.reader.read(script.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
                denied = set(range(10)) - set(ids_of(result.entries)) - _ids(result.unknown)
                assert denied == {i for i in (1, *range(3, 10)) if unsure_from is None or i < unsure_from} | (
                    {0, 2} & {i for i in (0, 2) if script is LOST and unsure_from is None}
                )
                missing = await storage.reader.missing(script.ledger_id, 0, 9)
                assert (_ids(missing.missing), _ids(missing.unknown)) == (denied, _ids(result.unknown))
                view = storage.reader.last_add_confirmed(script.ledger_id)
                assert view.in_doubt == (unsure_from is not None)
                with pytest.raises(BookieInDoubtError):
                    add(storage, script, 3)
                if unsure_from is None:
                    await storage.reader.list_entries(script.ledger_id)
                else:
                    with pytest.raises(BookieInDoubtError):
                        await storage.reader.list_entries(script.ledger_id)
            assert storage.doubted_ids_stop == LATER.ledger_id
            assert (storage.doubt is None) == (expected == (None, None))
    await storage.close()


def _ids(runs: Sequence[tuple[int, int]]) -> set[int]:
    return {entry_id for low, high in runs for entry_id in range(low, high + 1)}


async def test_what_is_sure_stays_sure_and_a_wrong_narrowing_changes_nothing() -> None:
    storage = await open_storage(await damaged_journal())
    await storage.limit_doubt(LATER.ledger_id)
    await storage.narrow_doubt(8, {7: 2})
    for sure_below, exceptions in ((7, {}), (51, {}), (8, {7: 1}), (8, {6: 0})):
        with pytest.raises(ValueError, match=r"unsure|between"):
            await storage.narrow_doubt(sure_below, exceptions)
    assert storage.doubt == Doubt(50, 8, {7: 2})
    await storage.close()
    healthy = await open_storage(MemoryFileSystem())
    with pytest.raises(ValueError, match="not in doubt"):
        await healthy.narrow_doubt(0, {})
    await healthy.close()


@pytest.mark.parametrize("operation", ["sync", "sync_directory", "rename"])
async def test_failed_write_of_a_narrowed_doubt_ends_the_bookie(operation: str) -> None:
    """Rule B1: the agent that asked for it would be run again, and the bookie go on as if nothing had failed."""
    filesystem = await damaged_journal()
    failures: list[BaseException] = []
    storage = await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=failures.append
    )
    await storage.limit_doubt(LATER.ledger_id)
    assert not failures

    def fault(name: str, path: Path) -> OSError | None:
        return OSError(5, "Input/output error", str(path)) if name == operation and path.is_relative_to(DATA) else None

    filesystem.fault = fault
    with pytest.raises(OSError, match="Input/output error"):
        await storage.narrow_doubt(9, {7: 3})
    assert len(failures) == 1
    with pytest.raises(BookieStorageError):
        add(storage, LATER, 0)
    filesystem.fault = None
    await storage.close()


async def test_narrowed_doubt_is_durable_at_every_crash_after_it_returned() -> None:
    for crash_at in range(1, 40):
        filesystem = await damaged_journal()
        storage = await open_storage(filesystem)
        await storage.limit_doubt(LATER.ledger_id)
        filesystem.crash_at = filesystem.operations + crash_at
        returned: list[bool] = []

        async def narrow(storage: Storage = storage, returned: list[bool] = returned) -> None:
            await storage.narrow_doubt(9, {7: 3})
            returned.append(True)
            await storage.checkpoint()

        crashed = await run_until_crash(filesystem, narrow)
        for seed in range(3):
            again = await open_storage(filesystem.after_crash(seed=seed))
            assert again.doubt in ([Doubt(50, 9, {7: 3})] if returned else [Doubt(50), Doubt(50, 9, {7: 3})])
            await again.close()
        if not crashed:
            return
    raise AssertionError("the workload never got to its end")


async def test_doubt_that_begins_again_covers_what_had_become_sure() -> None:
    filesystem = await damaged_journal()
    storage = await open_storage(filesystem)
    await storage.limit_doubt(8)
    await storage.narrow_doubt(8, {})
    assert storage.doubt is None
    await storage.close()
    path = DATA / "manifest"
    manifest = decode_manifest(filesystem.content(path))
    filesystem.set_content(path, encode_manifest(manifest._replace(doubt=DOUBT_OF_EVERY_LEDGER)))
    storage = await open_storage(filesystem)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 2, entries_max=10, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown) == ([0, 2], [(1, 1)])
    await storage.limit_doubt(60)
    assert storage.doubt == Doubt(60)
    await storage.close()


async def test_a_second_fence_is_answered_only_once_the_first_is_durable() -> None:
    """Rule F2: what the second recovering client reads may be answered only by a bookie that stays fenced."""
    filesystem = syncs_below(JOURNAL)
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 0)
    filesystem.hold()
    first = storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    await filesystem.held.wait()
    second = storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    filesystem.release()
    await first
    await second
    await storage.close()


# --- streams (rule T12) ----------------------------------------------------------------------------------------------

STREAM = LedgerScript(9)


def add_of_term(storage: Storage, term: int, *offsets: int, recovery: bool = False) -> asyncio.Future[None]:
    entries = STREAM.entries([place(term, offset) for offset in offsets])
    return storage.writer.add(STREAM.ledger_id, STREAM.key, entries, recovery=recovery, term=term)


async def wiped(filesystem: MemoryFileSystem) -> Storage:
    filesystem.set_content(DATA / "manifest", encode_manifest(EMPTY._replace(doubt=DOUBT_OF_EVERY_LEDGER)))
    storage = await open_storage(filesystem)
    await storage.limit_doubt(LATER.ledger_id)
    return storage


ADDS = """
                  1      4      5      6      7
no floor          doubt  doubt  doubt  doubt  doubt
no floor, fence 4 over   over   doubt  doubt  doubt
floor 5           doubt  doubt  doubt  taken  taken
floor 5, fence 4  over   over   doubt  taken  taken
floor 5, fence 6  over   over   over   over   taken
"""


@pytest.mark.parametrize("line", ADDS.strip("\n").split("\n")[1:])
async def test_which_terms_a_bookie_in_doubt_takes(line: str) -> None:
    filesystem = MemoryFileSystem()
    storage = await wiped(filesystem)
    known, expected = line[:18].strip(), line[18:].split()
    if "fence" in known:
        await storage.writer.fence(STREAM.ledger_id, STREAM.key, int(known[-1]))
    if known.startswith("floor"):
        await storage.narrow_doubt(0, {}, {9: 5})
    found = []
    for restart in (False, True):
        if restart:
            await storage.close()
            storage = await open_storage(filesystem)
        outcomes = []
        for term in (1, 4, 5, 6, 7):
            for force in (False, True):
                try:
                    if force:
                        await storage.writer.force(STREAM.ledger_id, STREAM.key, term)
                    else:
                        await add_of_term(storage, term, int(restart))
                    outcomes.append("taken")
                except TermOverError:
                    outcomes.append("over")
                except BookieInDoubtError:
                    outcomes.append("doubt")
        assert outcomes[::2] == outcomes[1::2], "a force is admitted as an add is"
        found.append(outcomes[::2])
        await add_of_term(storage, 1, 7, recovery=True)
    assert found == [expected, expected]
    with pytest.raises(BookieInDoubtError):
        add(storage, SCRIPT, 0)
    await storage.close()


async def test_denials_of_a_stream_are_of_terms_above_its_floor_only() -> None:
    filesystem = MemoryFileSystem()
    storage = await wiped(filesystem)
    await storage.narrow_doubt(0, {}, {9: 5})
    await add_of_term(storage, 5, 3, recovery=True)
    await add_of_term(storage, 6, 0)
    for _ in range(2):
        for term, unknown in ((4, True), (5, True), (6, False), (7, False)):
            first, last = place(term, 0), place(term, 9)
            result = await storage.reader.read(STREAM.ledger_id, first, last, entries_max=10, bytes_max=10_000)
            held = {place(5, 3), place(6, 0)} & set(range(first, last + 1))
            assert set(ids_of(result.entries)) == held
            assert _ids(result.unknown) == (set(range(first, last + 1)) - held if unknown else set())
            assert result.last_covered == last
            assert unknown or result.unknown == []
            missing = await storage.reader.missing(STREAM.ledger_id, first, last)
            assert _ids(missing.unknown) == _ids(result.unknown)
            assert storage.reader.last_add_confirmed(STREAM.ledger_id, term).in_doubt == unknown
        across = await storage.reader.read(
            STREAM.ledger_id, place(6, 0) - 3, place(6, 0) + 3, entries_max=10, bytes_max=10_000
        )
        assert (ids_of(across.entries), across.unknown) == ([place(6, 0)], [(place(6, 0) - 3, place(6, 0) - 1)])
        assert storage.reader.last_add_confirmed(STREAM.ledger_id).in_doubt
        await storage.checkpoint()
        await storage.close()
        storage = await open_storage(filesystem)
    for first in (place(5, 4), place(5, 5)):
        blank = await storage.reader.read(LOST.ledger_id, first, place(6, 3), entries_max=9, bytes_max=9_999)
        assert blank.unknown == [(first, place(6, 3))], "it is no stream with a floor"
    await storage.narrow_doubt(0, {}, {8: 5})
    blank = await storage.reader.read(LOST.ledger_id, place(5, 4), place(6, 3), entries_max=9, bytes_max=9_999)
    assert blank.unknown == [(place(5, 4), place(6, 0) - 1)]
    blank = await storage.reader.read(LOST.ledger_id, place(6, 0), place(6, 3), entries_max=9, bytes_max=9_999)
    assert blank.unknown == []
    await storage.narrow_doubt(50, {9: place(5, 0)})
    assert not storage.reader.last_add_confirmed(STREAM.ledger_id, 6).in_doubt
    settled = await storage.reader.read(STREAM.ledger_id, place(4, 0), place(4, 9), entries_max=9, bytes_max=9_999)
    assert settled.unknown == []
    with pytest.raises(BookieInDoubtError):
        add_of_term(storage, 5, 8)
    await storage.narrow_doubt(50, {9: place(6, 0)})
    assert not storage.reader.last_add_confirmed(STREAM.ledger_id).in_doubt, "it is unsure above the floor only"
    assert await storage.reader.list_entries(STREAM.ledger_id) == [(place(5, 3),) * 2, (place(6, 0),) * 2]
    await storage.close()


async def test_a_revived_stream_is_in_doubt_for_all_its_terms() -> None:
    """Rule B5: what was removed here says nothing about terms."""
    storage = await wiped(MemoryFileSystem())
    await storage.narrow_doubt(0, {}, {9: 5})
    await add_of_term(storage, 6, 0)
    await storage.writer.delete(STREAM.ledger_id)
    await storage.writer.revive(STREAM.ledger_id)
    with pytest.raises(BookieInDoubtError):
        add_of_term(storage, 7, 0)
    assert storage.reader.last_add_confirmed(STREAM.ledger_id, 7).in_doubt
    await storage.close()


async def test_a_floor_is_durable_before_an_add_above_it_is_taken() -> None:
    for crash_at in range(1, 40):
        filesystem = MemoryFileSystem()
        storage = await wiped(filesystem)
        filesystem.crash_at = filesystem.operations + crash_at
        acknowledged: list[int] = []

        async def work(storage: Storage = storage, acknowledged: list[int] = acknowledged) -> None:
            noting = asyncio.ensure_future(storage.narrow_doubt(0, {}, {9: 5}))
            for offset in range(3):
                try:
                    await add_of_term(storage, 6, offset)
                    acknowledged.append(place(6, offset))
                except BookieInDoubtError:
                    await asyncio.sleep(0)
            await noting
            await add_of_term(storage, 6, 3)
            acknowledged.append(place(6, 3))

        crashed = await run_until_crash(filesystem, work)
        for seed in range(3):
            again = await open_storage(filesystem.after_crash(seed=seed))
            assert again.doubt in ([Doubt(50), Doubt(50, term_floors={9: 5})][bool(acknowledged) :])
            if acknowledged:
                result = await again.reader.read(
                    STREAM.ledger_id, place(6, 0), place(6, 9), entries_max=10, bytes_max=10_000
                )
                assert (set(acknowledged) <= set(ids_of(result.entries)), result.unknown) == (True, [])
            await again.close()
        if not crashed:
            return
    raise AssertionError("the workload never got to its end")


async def test_doubt_that_begins_again_forgets_the_floors() -> None:
    """A fence of a term above the old floor may be among what was lost this time."""
    filesystem = MemoryFileSystem()
    storage = await wiped(filesystem)
    await storage.narrow_doubt(50, {9: 0}, {9: 5})
    await add_of_term(storage, 6, 0)
    await add_of_term(storage, 6, 1)
    await storage.writer.fence(STREAM.ledger_id, STREAM.key, 6)
    await add_of_term(storage, 6, 2, recovery=True)
    survivor = filesystem.after_crash(seed=1)
    for path in survivor.files(JOURNAL):
        at = survivor.content(path).find(STREAM.entry(place(6, 1)))
        if at >= 0:
            survivor.damage(path, at)
    storage = await open_storage(survivor)
    assert storage.doubts_every_ledger
    await storage.limit_doubt(60)
    assert storage.doubt == Doubt(60)
    with pytest.raises((BookieInDoubtError, TermOverError)):
        add_of_term(storage, 6, 3)
    with pytest.raises(BookieInDoubtError):
        add_of_term(storage, 7, 0)
    await storage.close()


@pytest.mark.parametrize("doubt", [Doubt(50), Doubt(50, 8, {7: 2}), Doubt(50, 50), Doubt(50, 9, {7: 2, 8: 0})])
@pytest.mark.parametrize("floors", [{}, {9: 5}, {3: 2**28 - 1, 9: 5, 49: 1}])
def test_manifest_keeps_the_floors_behind_what_older_versions_read(doubt: Doubt, floors: dict[int, int]) -> None:
    known = EMPTY._replace(doubt=doubt.with_term_floors(floors), logs=((1, 77),), part_ids=(4, 2))
    encoded = encode_manifest(known)
    assert decode_manifest(encoded) == known
    plain = encode_manifest(known._replace(doubt=doubt))
    flags_at = struct.calcsize(">8sI")
    assert encoded[flags_at] == plain[flags_at] | (8 if floors else 0)
    same = slice(flags_at + 1, len(plain) - 4)
    assert encoded[same] == plain[same]
