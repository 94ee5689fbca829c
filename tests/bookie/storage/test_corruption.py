"""Whatever is done to a stopped bookie's files: nothing wrong is served, nothing held is called absent (rules R2,
B3, B4). Damage is reported with file and offset; the bookie goes on, is in doubt, or refuses to start with a
remedy."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.offline.check import OfflineCheck
from octavo.bookie.offline.inspect_file import inspect_file
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.storage.manifest import EMPTY, encode_manifest
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import BookieInDoubtError, BookieStorageError, InvalidArgumentError, LedgerFencedError
from octavo.protocol.ids import EntryId, LedgerId
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    cache_bytes_max=6_000,
    entry_log_bytes=8_000,
    checkpoint_journal_bytes=1 << 40,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=40 * 1024, first_fill_bytes=0),
)
DATA, JOURNAL = Path("/b"), Path("/b/journal")
LAYOUT = Layout.of(DATA)
SCRIPTS = [LedgerScript(ledger_id, payload_bytes=60) for ledger_id in (1, 2, 3)]
PRIVATE = SCRIPTS[1]
FENCED, NEVER = LedgerScript(4), LedgerScript(9)
COUNT = 60


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=lambda _error: None
    )


_disks: dict[bool, dict[Path, bytes]] = {}


async def used_disk(*, journal_matters: bool) -> MemoryFileSystem:
    """Three ledgers of 60 entries in several logs and parts, one fenced; with ``journal_matters`` the last third stands
    in the journal only, after a power cut."""
    if journal_matters not in _disks:
        filesystem = MemoryFileSystem()
        storage = await open_storage(filesystem)
        await storage.writer.fence(FENCED.ledger_id, FENCED.key)
        storage.writer.make_private(PRIVATE.ledger_id, PRIVATE.key)
        for first in range(0, COUNT, 10):
            for script in SCRIPTS:
                await storage.writer.add(
                    script.ledger_id, script.key, script.entries(range(first, first + 10)), recovery=False
                )
            if first < COUNT * 2 // 3 or not journal_matters:
                await storage.checkpoint()
        if not journal_matters:
            await storage.close()
        filesystem = filesystem.after_crash(seed=1)
        _disks[journal_matters] = {path: filesystem.content(path) for path in filesystem.files()}
    filesystem = MemoryFileSystem()
    for path, content in _disks[journal_matters].items():
        filesystem.set_content(path, content)
    return filesystem


def copy_of(source: MemoryFileSystem, target: MemoryFileSystem) -> MemoryFileSystem:
    for path in source.files():
        target.set_content(path, source.content(path))
    return target


async def hold_to_its_word(filesystem: MemoryFileSystem) -> str:
    """What became of the bookie; raises AssertionError if anything that was acknowledged is wrong, absent, or
    forgotten."""
    try:
        storage = await open_storage(filesystem)
    except (IndexDamagedError, BookieStorageError) as error:
        return "refused" if "/b/" in error.message else f"refused without a place: {error}"
    reader = storage.reader
    known_private, _ = reader.private_key(PRIVATE.ledger_id)
    assert known_private or reader.privacy_is_lost(PRIVATE.ledger_id), "a private ledger is taken for a public one"
    lost = 0
    for script in SCRIPTS:
        found: dict[int, bytes] = {}
        unknown: set[int] = set()
        first = 0
        while first < COUNT:
            result = await storage.reader.read(script.ledger_id, first, COUNT - 1, entries_max=100, bytes_max=10**6)
            found |= zip(ids_of(result.entries), result.entries, strict=True)
            unknown |= {entry_id for low, high in result.unknown for entry_id in range(low, high + 1)}
            first = result.last_covered + 1
        assert found.keys() | unknown >= set(range(COUNT)), "absent"
        assert all(sealed == script.entry(entry_id) for entry_id, sealed in found.items()), "wrong data"
        lost += len(unknown - found.keys())
    with pytest.raises((LedgerFencedError, BookieInDoubtError)):
        storage.writer.add(FENCED.ledger_id, FENCED.key, [FENCED.entry(0)], recovery=False)
    in_doubt = storage.doubted_ids_stop is not None
    if not in_doubt:
        never = await storage.reader.read(NEVER.ledger_id, 0, 5, entries_max=5, bytes_max=100)
        assert (never.entries, never.unknown) == ([], [])
    await storage.close()
    return "in doubt" if in_doubt else "goes on, some unknown" if lost else "goes on"


def flip(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def truncate(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def zero_a_page(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content)) // 512 * 512
    return content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :]


def garbage(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content))
    return content[:start] + chance.randbytes(min(64, len(content) - start)) + content[start + 64 :]


FILES: dict[str, Callable[[Path], bool]] = {
    "entry log": lambda path: path.suffix == ".log",
    "totals": lambda path: path.suffix == ".totals",
    "index": lambda path: path.suffix == ".runs",
    "manifest": lambda path: path.name == "manifest",
    "journal": lambda path: path.name.startswith("journal-"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("damage", [flip, truncate, zero_a_page, garbage])
async def test_damaged_file_never_makes_a_bookie_lie(
    kind: str, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    chance = random.Random(f"{kind}{damage.__name__}")
    outcomes = set()
    for round_number in range(25):
        filesystem = await used_disk(journal_matters=kind == "journal")
        paths = [path for path in filesystem.files() if FILES[kind](path) and filesystem.content(path)]
        if kind == "journal":
            # Only what a later record proves to have been synced can be told from a torn tail.
            path = min(paths)
            content = filesystem.content(path)
            used = content.rindex(SCRIPTS[0].entry(COUNT - 11))
            filesystem.set_content(path, damage(content[:used], chance) + content[used:])
            if damage is truncate:
                filesystem.set_content(path, truncate(content, chance))
        else:
            path = chance.choice(paths)
            filesystem.set_content(path, damage(filesystem.content(path), chance))
        try:
            outcomes.add(await hold_to_its_word(filesystem))
        except AssertionError as error:
            error.add_note(f"{path}, round {round_number}")
            raise
    assert (
        outcomes
        <= {
            "entry log": {"goes on", "goes on, some unknown"},
            "totals": {"goes on"},
            "index": {"goes on", "goes on, some unknown", "refused"},
            "manifest": {"refused"},
            "journal": {"in doubt", "goes on"},
        }[kind]
    )


@pytest.mark.parametrize("kind", ["entry log", "index"])
@pytest.mark.parametrize("exchange", ["swapped", "duplicated", "missing"])
async def test_files_in_the_places_of_others_never_make_a_bookie_lie(kind: str, exchange: str) -> None:
    outcomes = set()
    for at in range(3):
        filesystem = await used_disk(journal_matters=False)
        paths = [path for path in filesystem.files() if FILES[kind](path)]
        one, other = paths[at % len(paths)], paths[(at + 1) % len(paths)]
        assert one != other
        first, second = filesystem.content(one), filesystem.content(other)
        if exchange == "missing":
            await filesystem.remove(one)
            await filesystem.sync_directory(one.parent)
        else:
            filesystem.set_content(one, second)
            filesystem.set_content(other, first if exchange == "swapped" else second)
        outcomes.add(await hold_to_its_word(filesystem))
    assert outcomes == ({"refused"} if kind == "index" else {"goes on, some unknown"})


async def test_stale_copy_of_the_manifest_is_no_way_back() -> None:
    """Every manifest the bookie ever had, put back: what it does not know has gone, and that is noticed."""
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await storage.writer.fence(FENCED.ledger_id, FENCED.key)
    storage.writer.make_private(PRIVATE.ledger_id, PRIVATE.key)
    copies = [encode_manifest(EMPTY), filesystem.content(DATA / "manifest")]
    for first in range(0, COUNT, 10):
        for script in SCRIPTS:
            await storage.writer.add(
                script.ledger_id, script.key, script.entries(range(first, first + 10)), recovery=False
            )
        await storage.checkpoint()
        copies.append(filesystem.content(DATA / "manifest"))
    await storage.close()
    disk = {path: filesystem.content(path) for path in filesystem.files()}
    outcomes = []
    for stale in copies:
        restored = MemoryFileSystem()
        for path, content in disk.items():
            restored.set_content(path, stale if path.name == "manifest" else content)
        outcomes.append(await hold_to_its_word(restored))
        assert (outcomes[-1] == "refused") == any("old copy" in line for line in (await findings(restored))[0])
        if outcomes[-1] == "refused":
            # Nothing that it does not know has been removed.
            assert any("old copy" in reason for reason in await rebuild(restored))
            assert await hold_to_its_word(restored) == "in doubt"
            await hold_everything(restored)
    assert outcomes[:2] == ["refused"] * 2
    assert set(outcomes) == {"refused", "goes on"}


async def hold_everything(filesystem: MemoryFileSystem) -> None:
    storage = await open_storage(filesystem)
    for script in SCRIPTS:
        found: list[bytes] = []
        while len(found) < COUNT:
            result = await storage.reader.read(
                script.ledger_id, len(found), COUNT - 1, entries_max=100, bytes_max=10**6
            )
            assert result.entries
            found += result.entries
        assert found == script.entries(range(COUNT))
    await storage.close()


@pytest.mark.parametrize("also_lost", ["the journal and more", "its first segment", "nothing newer"])
async def test_manifest_that_the_journal_does_not_go_back_to_is_never_gone_by_where_files_are_newer(
    also_lost: str,
) -> None:
    """A crash leaves files that no manifest names, too: then nothing says which it was, and nothing is removed."""
    filesystem = await used_disk(journal_matters=also_lost != "nothing newer")
    segments = [path for path in filesystem.files() if FILES["journal"](path)]
    for path in segments[:1] if also_lost == "its first segment" else segments:
        await filesystem.remove(path)
    await filesystem.sync_directory(JOURNAL)
    newer = DATA / "entries" / "00000000000000ff.log"
    if also_lost != "nothing newer":
        filesystem.set_content(newer, b"")
        assert await hold_to_its_word(filesystem) == "refused"
        assert newer in filesystem.files()
        await rebuild(filesystem)
    assert await hold_to_its_word(filesystem) == "in doubt"


async def findings(filesystem: MemoryFileSystem) -> tuple[list[str], dict[str, int]]:
    checking = OfflineCheck(filesystem, LAYOUT)
    found = [str(finding) async for finding in checking.findings() if finding.path.name != "cookie"]
    return found, dict(checking.counts)


async def test_check_finds_nothing_wrong_with_a_sound_bookie_and_says_what_it_has_verified() -> None:
    for journal_matters in (False, True):
        filesystem = await used_disk(journal_matters=journal_matters)
        before = {path: filesystem.content(path) for path in filesystem.files()}
        found, counts = await findings(filesystem)
        assert found == []
        on_logs = len(SCRIPTS) * COUNT * (2 if journal_matters else 3) // 3
        assert counts["entries"] == counts["indexed entries"] == on_logs
        assert (counts.get("journal records", 0) > 0) == journal_matters
        assert {path: filesystem.content(path) for path in filesystem.files()} == before, "it changes nothing"


@pytest.mark.parametrize("kind", ["entry log", "totals", "index", "manifest"])
async def test_check_finds_every_flipped_bit(kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(40):
        filesystem = await used_disk(journal_matters=False)
        path = chance.choice([path for path in filesystem.files() if FILES[kind](path)])
        filesystem.set_content(path, flip(filesystem.content(path), chance))
        found, _ = await findings(filesystem)
        assert any(str(path) in line for line in found), path


async def test_check_finds_swapped_logs_and_a_log_cut_off() -> None:
    filesystem = await used_disk(journal_matters=False)
    one, other, third = [path for path in filesystem.files() if path.suffix == ".log"][:3]
    first, second = filesystem.content(one), filesystem.content(other)
    filesystem.set_content(one, second)
    filesystem.set_content(other, first)
    filesystem.set_content(third, filesystem.content(third)[:-10])
    found, _ = await findings(filesystem)
    assert any(f"{one}, offset 0: the header does not verify" in line for line in found)
    assert any(str(third) in line and "early" in line for line in found)


async def test_check_says_once_that_a_log_is_gone_or_short_and_how_many_entries_with_it() -> None:
    filesystem = await used_disk(journal_matters=False)
    one, other = [path for path in filesystem.files() if path.suffix == ".log"][:2]
    await filesystem.remove(one)
    filesystem.set_content(other, filesystem.content(other)[:100])
    found, _ = await findings(filesystem)
    assert [line.partition(":")[0] for line in found if str(one) in line] == [str(one)] * 2
    assert any(str(one) in line and "entries that the index places here are missing" in line for line in found)
    assert any(str(other) in line and "entries that the index places here are missing" in line for line in found)
    assert len([line for line in found if str(other) in line]) <= 3


async def test_check_goes_on_behind_a_file_that_cannot_be_read() -> None:
    filesystem = await used_disk(journal_matters=False)
    one, other = [path for path in filesystem.files() if path.suffix == ".log"][:2]
    filesystem.damage(other, 100)

    part = min(filesystem.files(DATA / "index"))

    class Unreadable(MemoryFileSystem):
        async def step(self, name: str, path: Path) -> None:
            if name in {"read", "open"} and path in {one, part}:
                raise OSError(errno.EIO, "Input/output error")
            await super().step(name, path)

    filesystem = copy_of(filesystem, Unreadable())
    found, _ = await findings(filesystem)
    assert any(str(part) in line and "cannot be read" in line for line in found)
    assert any(str(one) in line and "cannot be read: Input/output error" in line for line in found)
    assert any(str(other) in line and "no intact entry" in line for line in found)


# --- rebuilding -----------------------------------------------------------------------------------------------------


async def rebuild(filesystem: MemoryFileSystem) -> tuple[str, ...]:
    return (await IndexRebuild(filesystem, LAYOUT).run()).in_doubt_because


async def test_rebuilt_index_has_everything_again_and_is_in_no_doubt_when_nothing_else_is_lost() -> None:
    for journal_matters in (False, True):
        filesystem = await used_disk(journal_matters=journal_matters)
        assert await rebuild(filesystem) == ()
        assert (await findings(filesystem))[0] == []
        assert await hold_to_its_word(filesystem) == "goes on"


async def test_a_bookie_in_doubt_is_in_doubt_after_a_rebuild_that_loses_nothing() -> None:
    filesystem = await used_disk(journal_matters=False)
    await filesystem.remove(max(filesystem.files(DATA / "index")))
    assert await rebuild(filesystem) != ()
    assert await rebuild(filesystem) == ()
    assert await hold_to_its_word(filesystem) == "in doubt"


async def test_a_rebuilt_part_never_gets_the_number_of_one_that_was_lost() -> None:
    """The number seeds a part's checksums: a copy of the lost file, put back later, would verify in its place."""
    filesystem = await used_disk(journal_matters=False)
    lost = max(filesystem.files(DATA / "index"))
    await filesystem.remove(lost)
    assert await rebuild(filesystem) != ()
    assert max(filesystem.files(DATA / "index")) > lost


async def test_damaged_run_blocks_are_mended_without_doubt() -> None:
    filesystem = await used_disk(journal_matters=False)
    for path in filesystem.files(DATA / "index"):
        filesystem.damage(path, 40)
    assert await hold_to_its_word(filesystem) == "goes on, some unknown"
    assert await rebuild(filesystem) == ()
    assert await hold_to_its_word(filesystem) == "goes on"


@pytest.mark.parametrize("lost", ["manifest", "states", "an entry", "a log", "a footer"])
async def test_rebuilding_where_something_was_lost_puts_the_bookie_in_doubt(lost: str) -> None:
    filesystem = await used_disk(journal_matters=False)
    logs = [path for path in filesystem.files() if path.suffix == ".log"]
    parts = filesystem.files(DATA / "index")
    if lost == "manifest":
        filesystem.damage(DATA / "manifest", 20)
    elif lost == "states":
        filesystem.damage(parts[0], filesystem.content(parts[0]).rindex(SCRIPTS[0].key))
    elif lost == "an entry":
        filesystem.damage(logs[1], 100)
    elif lost == "a log":
        await filesystem.remove(logs[1])
    else:
        filesystem.damage(parts[0], len(filesystem.content(parts[0])) - 5)
    assert await rebuild(filesystem) != ()
    assert await hold_to_its_word(filesystem) == "in doubt"
    assert await hold_to_its_word(filesystem) == "in doubt", "and stays so"


@pytest.mark.parametrize("harm", ["damaged", "cut off"])
async def test_rebuilt_index_has_no_entry_that_lies_in_the_payload_of_a_damaged_one(harm: str) -> None:
    """A client has stored entries of other bytes, of a ledger of which it has no key, in a payload."""
    filesystem = await used_disk(journal_matters=False)
    forged = SCRIPTS[1].entries(range(COUNT + 5), version=1)
    secrets = derive_secrets(b"", LedgerId(5))
    (carrier,) = Sealer(LedgerId(5), Digest.CRC32C, secrets).seal(
        EntryId(0), [b"".join(forged)], last_add_confirmed=None, length=0, sealed_at_ms=0
    )
    storage = await open_storage(filesystem)
    await storage.writer.add(LedgerId(5), secrets.ledger_key, [carrier], recovery=False)
    await storage.checkpoint()
    await storage.close()
    path = next(path for path in filesystem.files() if path.suffix == ".log" and carrier in filesystem.content(path))
    start = filesystem.content(path).index(carrier)
    if harm == "damaged":
        filesystem.damage(path, start + 5)
    else:  # where the last entry in the payload ends
        file = await filesystem.open(path)
        await file.truncate(start + carrier.index(forged[-1]) + len(forged[-1]))
        await file.sync()
        await file.close()
    reasons = await rebuild(filesystem)
    assert any(f"{len(forged)} entries after damage are left out" in reason for reason in reasons)
    assert await hold_to_its_word(filesystem) == "in doubt"
    storage = await open_storage(filesystem)
    assert storage.ledgers.get(SCRIPTS[1].ledger_id).highest_plus_one == COUNT
    await storage.close()


async def test_deleted_ledgers_stay_deleted_when_the_index_is_rebuilt() -> None:
    filesystem = await used_disk(journal_matters=False)
    storage = await open_storage(filesystem)
    await storage.writer.delete(SCRIPTS[0].ledger_id)
    await storage.checkpoint()
    await storage.close()
    assert await rebuild(filesystem) == ()
    storage = await open_storage(filesystem)
    assert storage.ledgers.live_ids() == [2, 3, 4]
    await storage.compact(0.9, RateLimiter(1e12))
    assert len(await storage.reader.list_entries(SCRIPTS[1].ledger_id)) == 1
    await storage.close()


async def test_a_power_cut_at_any_moment_of_a_rebuild_leaves_the_old_index_or_the_new() -> None:
    total = 0
    for crash_at in range(1, 40):
        filesystem = await used_disk(journal_matters=False)
        filesystem.crash_at = crash_at

        async def rebuild_it(disk: MemoryFileSystem = filesystem) -> None:
            await rebuild(disk)

        if not await run_until_crash(filesystem, rebuild_it):
            break
        total += 1
        assert await hold_to_its_word(filesystem.after_crash(seed=crash_at)) == "goes on"
    assert total >= 5


# --- looking --------------------------------------------------------------------------------------------------------


async def test_inspect_shows_every_kind_of_file() -> None:
    filesystem = await used_disk(journal_matters=True)
    shown: dict[str, list[str]] = {}
    for path in filesystem.files():
        if path.name.startswith("spare") or path.name == "lock":
            with pytest.raises(InvalidArgumentError, match="no file of a bookie"):
                [line async for line in inspect_file(filesystem, path)]
            continue
        kind = next(kind for kind, fits in FILES.items() if fits(path))
        shown.setdefault(kind, []).extend([line async for line in inspect_file(filesystem, path)])
    assert shown.keys() == FILES.keys()
    assert any("ADD ledger 1, entries 50-59" in line for line in shown["journal"])
    assert any("the log ends at" in line for line in shown["journal"])
    assert any(line.startswith("32: ledger 1 entry 0, ") for line in shown["entry log"])
    assert any(line.startswith("ledger 2: entries 0-9") for line in shown["index"])
    assert any(line.startswith("ledger 4: fenced, no key") for line in shown["index"])
    assert any(line.startswith("mark: segment ") for line in shown["manifest"])
    assert any(line.startswith("ledger 1: ") for line in shown["totals"])


async def test_inspect_shows_a_log_whose_header_is_damaged() -> None:
    filesystem = await used_disk(journal_matters=False)
    path = next(path for path in filesystem.files() if path.suffix == ".log")
    sound = [line async for line in inspect_file(filesystem, path)]
    filesystem.damage(path, 2)
    shown = [line async for line in inspect_file(filesystem, path)]
    assert shown == [f"{sound[0]}, with a damaged header", *sound[1:]]


async def test_inspect_shows_damage_where_it_stands() -> None:
    filesystem = await used_disk(journal_matters=False)
    path = next(path for path in filesystem.files() if path.suffix == ".log")
    filesystem.damage(path, 32 + 60)
    lines = [line async for line in inspect_file(filesystem, path)]
    assert lines[1] == f"32: {len(SCRIPTS[0].entry(0))} bytes without an intact entry"
    assert "entry 1," in lines[2]
