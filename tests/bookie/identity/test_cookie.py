"""A bookie's identity: the table of starts, the file, and crashes between its steps."""

import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import google_crc32c
import pytest
import structlog
from octavo.bookie.identity.cookie import (
    COOKIE_NAME,
    DECISIONS,
    DirectoryCookie,
    DirectoryState,
    Disks,
    Identity,
    IdentityRefusedError,
    MetadataComparison,
    MetadataState,
    Verdict,
    claim_identity,
    decide,
    decode_cookie,
    encode_cookie,
    note_served,
)
from octavo.bookie.identity.errors import BookieStartError
from octavo.metadata import MetadataStore
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.updates.garbage_hold import DOCUMENT, read_hold
from octavo.protocol.ids import BookieId, LedgerId
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash
from support.metadata.metadata_clusters import registration

DATA, JOURNAL = Path("/disk1/data"), Path("/disk2/journal")
ROLES = ("data", "journal")
CLUSTER = "cluster"
LINEAGE = "lineage-1"


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    store = open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2))
    async with store:
        yield store


def cookie(role: str = "data", **fields: object) -> DirectoryCookie:
    values: dict[str, object] = {
        "bookie_id": BookieId("bookie-1"),
        "cluster_id": CLUSTER,
        "generation": 5,
        "token": "token-5",
        "role": role,
        "roles": ROLES,
        "lineage": LINEAGE,
    }
    return DirectoryCookie(**(values | fields))  # type: ignore[arg-type]


def directories(
    first: DirectoryCookie | None, second: DirectoryCookie | None, *, used: bool = True, damaged: bool = False
) -> list[DirectoryState]:
    return [
        DirectoryState("data", first, damaged=damaged, used=used),
        DirectoryState("journal", second, damaged=False, used=used),
    ]


# --- the table -----------------------------------------------------------------------------------------------------

DISKS: dict[Disks, list[DirectoryState]] = {
    Disks.DAMAGED: directories(None, cookie("journal"), damaged=True),
    Disks.EMPTY: directories(None, None, used=False),
    Disks.NO_COOKIE: directories(None, None),
    Disks.FOREIGN: directories(cookie(cluster_id="other"), cookie("journal", cluster_id="other")),
    Disks.MIXED: directories(cookie("journal"), cookie("data")),
    Disks.SOME_MISSING: directories(cookie(), None),
    Disks.BEGUN: directories(cookie(), None, used=False),
    Disks.WHOLE: directories(cookie(), cookie("journal")),
}

METADATA: dict[MetadataComparison, MetadataState | None] = {
    MetadataComparison.ABSENT: None,
    MetadataComparison.BEHIND: MetadataState(4, "token-4", LINEAGE),
    MetadataComparison.SAME: MetadataState(5, "token-5", LINEAGE),
    MetadataComparison.OTHER_TOKEN: MetadataState(5, "another", LINEAGE),
    MetadataComparison.AHEAD: MetadataState(6, "token-6", LINEAGE),
    # Rule B10: the disks have counted more starts, and are another's nevertheless.
    MetadataComparison.OTHER_LINEAGE: MetadataState(2, "token-2", "lineage-2"),
}


def test_the_table_has_a_row_for_every_combination() -> None:
    assert set(DECISIONS) == set(product(Disks, MetadataComparison))


@pytest.mark.parametrize(("disks", "known"), list(product(Disks, MetadataComparison)))
def test_every_combination_is_decided_as_it_should_be(disks: Disks, known: MetadataComparison) -> None:
    decision = decide(DISKS[disks], CLUSTER, METADATA[known])
    # Said a second time, in other words than the table's.
    if disks is Disks.EMPTY:
        assert decision.verdict is Verdict.FIRST_START
        assert decision.bookie_id is None
    elif disks in {Disks.WHOLE, Disks.BEGUN} and known in {MetadataComparison.SAME, MetadataComparison.BEHIND}:
        assert (decision.verdict, decision.bookie_id) == (Verdict.START, "bookie-1")
        assert decision.generation == 6
    elif disks is Disks.BEGUN and known is MetadataComparison.ABSENT:
        assert decision.verdict is Verdict.CONTINUE_FIRST_START
        assert decision.bookie_id == "bookie-1"
    else:
        assert decision.verdict in {Verdict.REFUSE_DISKS, Verdict.REFUSE_METADATA}
        assert "; " in decision.reason, "a refusal has a remedy"
        assert "{" not in decision.reason


@pytest.mark.parametrize(
    ("lineages", "metadata", "known"),
    [
        # No version has noted a lineage yet: generations decide, as they did before.
        (("", ""), MetadataState(5, "token-5"), MetadataComparison.SAME),
        (("", ""), MetadataState(4, "token-4"), MetadataComparison.BEHIND),
        # The first start of this version was interrupted, or the metadata are an older copy.
        ((LINEAGE, ""), MetadataState(5, "token-5"), MetadataComparison.SAME),
        ((LINEAGE, LINEAGE), MetadataState(4, "token-4"), MetadataComparison.BEHIND),
        # A version without lineages has started the bookie since, and has dropped it from the directories.
        (("", ""), MetadataState(5, "token-5", LINEAGE), MetadataComparison.SAME),
        ((LINEAGE, ""), MetadataState(5, "token-5", LINEAGE), MetadataComparison.SAME),
        # Directories of before, of which nothing shows that they belong to what the metadata name.
        (("", ""), MetadataState(4, "token-4", LINEAGE), MetadataComparison.OTHER_LINEAGE),
        (("", ""), MetadataState(5, "another", LINEAGE), MetadataComparison.OTHER_TOKEN),
        (("", ""), MetadataState(6, "token-6", LINEAGE), MetadataComparison.AHEAD),
        # Directories of two lineages: a reset was interrupted.
        ((LINEAGE, "lineage-2"), MetadataState(5, "token-5", LINEAGE), MetadataComparison.OTHER_LINEAGE),
        ((LINEAGE, "lineage-2"), MetadataState(5, "token-5"), MetadataComparison.OTHER_LINEAGE),
    ],
)
def test_lineages_are_compared_for_equality_where_both_sides_have_one(
    lineages: tuple[str, str], metadata: MetadataState, known: MetadataComparison
) -> None:
    states = directories(cookie(lineage=lineages[0]), cookie("journal", lineage=lineages[1]))
    decision = decide(states, CLUSTER, metadata)
    assert decision.verdict is DECISIONS[Disks.WHOLE, known]
    if decision.verdict is Verdict.REFUSE_METADATA:
        assert known.value in decision.reason


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (cookie("journal", bookie_id=BookieId("bookie-2")), Disks.MIXED),
        (cookie("journal", roles=("data", "journal", "more")), Disks.MIXED),
        (cookie("journal", cluster_id="other"), Disks.FOREIGN),
    ],
)
def test_one_foreign_directory_is_enough_to_refuse(second: DirectoryCookie, expected: Disks) -> None:
    decision = decide(directories(cookie(), second), CLUSTER, METADATA[MetadataComparison.SAME])
    assert decision.verdict is Verdict.REFUSE_DISKS
    assert expected.value.split("(")[0].strip() in decision.reason


def test_one_restored_directory_is_enough_to_refuse() -> None:
    states = directories(cookie(), cookie("journal", generation=4, token="token-4"))
    decision = decide(states, CLUSTER, METADATA[MetadataComparison.SAME])
    assert decision.verdict is Verdict.REFUSE_METADATA
    assert "restored from an old copy" in decision.reason


# --- the file ------------------------------------------------------------------------------------------------------


def test_a_cookie_reads_back_and_can_be_read_by_people() -> None:
    content = encode_cookie(cookie())
    assert decode_cookie(content) == cookie()
    assert json.loads(content.splitlines()[0])["bookie_id"] == "bookie-1"


def test_any_other_byte_and_any_shortened_or_lengthened_file_is_damage() -> None:
    content = encode_cookie(cookie())
    for offset in range(len(content)):
        assert decode_cookie(content[:offset]) is None, offset
        for byte in set(range(256)) - {content[offset]}:
            assert decode_cookie(content[:offset] + bytes([byte]) + content[offset + 1 :]) is None, (offset, byte)
    assert decode_cookie(content + b"\n") is None
    assert decode_cookie(content + content) is None


async def test_a_start_on_any_damaged_cookie_is_refused_and_changes_nothing(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    identity = await start(filesystem, store, 1)
    content = filesystem.content(DATA / COOKIE_NAME)
    for offset in range(len(content)):
        flipped = content[:offset] + bytes([content[offset] ^ 1 << offset % 8]) + content[offset + 1 :]
        for damaged in (flipped, content[:offset]):
            filesystem.set_content(DATA / COOKIE_NAME, damaged)
            with pytest.raises(IdentityRefusedError, match=r"the cookie in data is damaged; .*reset-identity"):
                await start(filesystem, store, 2)
            assert filesystem.content(DATA / COOKIE_NAME) == damaged
    known = await store.read_cookie(identity.bookie_id)
    assert known is not None
    assert known.value.generation == 1


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"format": 1}', b"7", b"null", b"\xff"])
def test_a_verified_file_that_is_no_cookie_is_damage(text: bytes) -> None:
    assert decode_cookie(text + b"\ncrc32c %08x\n" % google_crc32c.value(text)) is None


def test_a_cookie_of_a_later_format_is_refused_with_a_remedy() -> None:
    text = encode_cookie(cookie()).splitlines()[0].replace(b'"format": 1', b'"format": 2')
    with pytest.raises(IdentityRefusedError, match="start the version that wrote it"):
        decode_cookie(text + b"\ncrc32c %08x\n" % google_crc32c.value(text))


# --- starts --------------------------------------------------------------------------------------------------------


async def start(filesystem: MemoryFileSystem, store: MetadataStore, seed: int = 0) -> Identity:
    """One start; leaves a file in each directory, as a bookie that runs does."""
    identity = await claim_identity(
        filesystem,
        {"data": DATA, "journal": JOURNAL},
        store,
        address="127.0.0.1:3181",
        rng=random.Random(seed),
    )
    filesystem.set_content(DATA / "manifest", b"x")
    filesystem.set_content(JOURNAL / "segment", b"x")
    return identity


def copy_of(filesystem: MemoryFileSystem) -> MemoryFileSystem:
    copy = MemoryFileSystem()
    for path in filesystem.files():
        copy.set_content(path, filesystem.content(path))
    return copy


async def test_an_id_is_made_once_and_every_start_raises_the_generation_everywhere(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    first = await start(filesystem, store, 1)
    second = await start(filesystem, store, 2)
    assert first.first_start
    assert not second.first_start
    assert first.bookie_id == second.bookie_id
    assert (first.generation, second.generation) == (1, 2)
    known = await store.read_cookie(first.bookie_id)
    assert known is not None
    assert known.value.generation == 2
    for directory in (DATA, JOURNAL):
        found = decode_cookie(filesystem.content(directory / COOKIE_NAME))
        assert found is not None
        assert (found.generation, found.bookie_id) == (2, first.bookie_id)


async def test_a_restored_copy_is_refused_and_changes_nothing(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    identity = await start(filesystem, store, 1)
    old = copy_of(filesystem)
    before = {path: old.content(path) for path in old.files()}
    await start(filesystem, store, 2)
    with pytest.raises(IdentityRefusedError, match="restored from an old copy"):
        await start(old, store, 3)
    assert {path: old.content(path) for path in old.files()} == before
    known = await store.read_cookie(identity.bookie_id)
    assert known is not None
    assert known.value.generation == 2


async def test_of_two_processes_on_copies_of_one_disk_only_one_goes_on(store: MetadataStore) -> None:
    original = MemoryFileSystem()
    identity = await start(original, store, 1)
    clone = copy_of(original)
    known = await store.read_cookie(identity.bookie_id)
    assert known is not None
    await start(original, store, 2)
    # The clone had read the same metadata, and raised its disks before it lost the race.
    for role, directory in (("data", DATA), ("journal", JOURNAL)):
        mine = cookie(
            role,
            bookie_id=identity.bookie_id,
            cluster_id=identity.cluster_id,
            generation=2,
            token="of the clone",
            lineage=identity.lineage,
        )
        clone.set_content(directory / COOKIE_NAME, encode_cookie(mine))
    with pytest.raises(IdentityRefusedError, match="copy of these disks"):
        await start(clone, store, 3)


async def test_an_emptied_directory_is_refused_by_name(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    await start(filesystem, store)
    await filesystem.remove(JOURNAL / COOKIE_NAME)
    await filesystem.remove(JOURNAL / "segment")
    with pytest.raises(IdentityRefusedError, match="journal has no cookie"):
        await start(filesystem, store)


async def test_another_cluster_is_refused(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    await start(filesystem, store)
    other = open_memory_store(MemoryServer(rng=random.Random(9)), rng=random.Random(9))
    async with other:
        with pytest.raises(IdentityRefusedError, match="another cluster"):
            await start(filesystem, other)


async def test_directories_may_lie_inside_one_another_or_be_one(store: MetadataStore) -> None:
    for places in ({"data": DATA, "journal": DATA / "journal"}, {"data": DATA, "journal": DATA}):
        filesystem = MemoryFileSystem()
        first = await claim_identity(filesystem, places, store, address="h:1", rng=random.Random(1))
        await filesystem.make_directory(DATA / "entries")
        again = await claim_identity(filesystem, places, store, address="h:1", rng=random.Random(2))
        assert first.bookie_id == again.bookie_id
        await store.delete_cookie(first.bookie_id, (await store.read_cookie(first.bookie_id)).version)  # type: ignore[union-attr]


@pytest.mark.parametrize("lives_before", [0, 1])
async def test_a_crash_at_any_operation_of_a_start_never_makes_an_honest_bookie_refuse(lives_before: int) -> None:
    for crash_at in range(1, 20):
        for seed in range(6):
            server = MemoryServer(rng=random.Random(1))
            async with open_memory_store(server, rng=random.Random(2)) as store:
                filesystem = MemoryFileSystem(seed=seed)
                identity = await start(filesystem, store, 100) if lives_before else None
                filesystem.crash_at = filesystem.operations + crash_at

                async def attempt(disk: MemoryFileSystem = filesystem, metadata: MetadataStore = store) -> None:
                    await claim_identity(
                        disk,
                        {"data": DATA, "journal": JOURNAL},
                        metadata,
                        address="127.0.0.1:3181",
                        rng=random.Random(7),
                    )

                await run_until_crash(filesystem, attempt)
                again = await start(filesystem.after_crash(seed), store, 8)
                if identity is not None:
                    assert again.bookie_id == identity.bookie_id
                known = await store.read_cookie(again.bookie_id)
                assert known is not None
                assert known.value.generation == again.generation


async def test_start_keeps_what_a_newer_version_noted_in_the_cookie() -> None:
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        identity = await start(filesystem, store, 1)
        known = await store.read_cookie(identity.bookie_id)
        assert known is not None
        await store.compare_and_set_cookie(replace(known.value, unknown_fields={"tls": "required"}), known.version)
        again = await start(filesystem, store, 2)
        known = await store.read_cookie(identity.bookie_id)
        assert known is not None
        assert known.value.generation == again.generation > identity.generation
        assert known.value.unknown_fields == {"tls": "required"}


async def test_a_late_change_of_an_earlier_process_is_not_taken_for_an_impostor() -> None:
    server = MemoryServer(rng=random.Random(1))
    async with open_memory_store(server, rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        identity = await start(filesystem, store, 1)
        known = await store.read_cookie(identity.bookie_id)
        assert known is not None
        before = known

        # The earlier process raised its disks, sent its change, and died; the change arrives while the next one starts.
        class LateChange:
            def __init__(self) -> None:
                self.arrived = False

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

            async def compare_and_set_cookie(self, wanted: object, version: object) -> object:
                if not self.arrived:
                    self.arrived = True
                    earlier = replace(before.value, generation=2, body=b"earlier")
                    await store.compare_and_set_cookie(earlier, before.version)
                return await store.compare_and_set_cookie(wanted, version)  # type: ignore[arg-type]

        for role, directory in (("data", DATA), ("journal", JOURNAL)):
            mine = cookie(
                role,
                bookie_id=identity.bookie_id,
                cluster_id=identity.cluster_id,
                generation=2,
                token="earlier",
                lineage=identity.lineage,
            )
            filesystem.set_content(directory / COOKIE_NAME, encode_cookie(mine))
        again = await start(filesystem, LateChange(), 3)  # type: ignore[arg-type]
        assert again.bookie_id == identity.bookie_id
        assert again.generation > 2


async def served(filesystem: MemoryFileSystem, store: MetadataStore, seed: int) -> Identity:
    identity = await start(filesystem, store, seed)
    await note_served(filesystem, {"data": DATA, "journal": JOURNAL}, identity)
    return identity


async def put_back(store: MetadataStore, older: Identity) -> None:
    """Give the bookie's cookie the generation that it had before: an older copy of the metadata."""
    known = await store.read_cookie(older.bookie_id)
    assert known is not None
    await store.compare_and_set_cookie(
        replace(known.value, generation=older.generation, body=older.token.encode()), known.version
    )


async def test_a_start_on_an_older_copy_of_the_metadata_holds_garbage_collection_until_an_operator_ends_it(
    store: MetadataStore,
) -> None:
    filesystem = MemoryFileSystem()
    copied = await served(filesystem, store, 1)
    await served(filesystem, store, 2)
    assert await read_hold(store) is None
    await put_back(store, copied)
    await served(filesystem, store, 3)
    hold = await read_hold(store)
    assert hold is not None
    assert "generation 1, its directories 2" in hold.reason
    # The start before has made both sides equal: only the hold tells later starts, and other bookies.
    await served(filesystem, store, 4)
    assert await read_hold(store) == hold
    await store.delete_document(DOCUMENT)
    await served(filesystem, store, 5)
    assert await read_hold(store) is None


async def test_a_start_on_metadata_that_have_allocated_fewer_ids_holds_garbage_collection(store: MetadataStore) -> None:
    """The copy was made after the bookie's last start, so the generations are equal."""
    filesystem = MemoryFileSystem()
    directories = {"data": DATA, "journal": JOURNAL}
    for _ in range(3):
        await store.allocate_ledger_id()
    identity = await served(filesystem, store, 1)
    await note_served(filesystem, directories, replace(identity, ledger_ids_stop=LedgerId(7)))
    again = await served(filesystem, store, 2)
    hold = await read_hold(store)
    assert hold is not None
    assert "ledger ids below 3, its directories know of ids below 7" in hold.reason
    # The operator has ended the hold: what the directories know is now what these metadata say.
    assert again.ledger_ids_stop == 3
    await store.delete_document(DOCUMENT)
    await served(filesystem, store, 3)
    assert await read_hold(store) is None


@pytest.mark.parametrize("ids", [0, 7])
async def test_garbage_collection_is_on_hold_before_the_generation_is_raised(store: MetadataStore, ids: int) -> None:
    """A start that is interrupted in between must not be the only one that knew."""
    filesystem = MemoryFileSystem()
    copied = await served(filesystem, store, 1)
    identity = await served(filesystem, store, 2)
    if ids:
        noted = replace(identity, ledger_ids_stop=LedgerId(ids))
        await note_served(filesystem, {"data": DATA, "journal": JOURNAL}, noted)
    else:
        await put_back(store, copied)
    known = await store.read_cookie(identity.bookie_id)

    class Interrupted:
        """The process ends when it is about to raise the generation, or to set the hold."""

        def __init__(self, operation: str) -> None:
            self._operation = operation

        def __getattr__(self, name: str) -> object:
            if name == self._operation:
                raise RuntimeError("interrupted")
            return getattr(store, name)

    with pytest.raises(RuntimeError, match="interrupted"):
        await start(filesystem, Interrupted("create_document"), 3)  # type: ignore[arg-type]
    assert await store.read_cookie(identity.bookie_id) == known
    with pytest.raises(RuntimeError, match="interrupted"):
        await start(filesystem, Interrupted("compare_and_set_cookie"), 4)  # type: ignore[arg-type]
    assert await read_hold(store) is not None


async def test_an_interrupted_start_does_not_forget_what_the_directories_knew(store: MetadataStore) -> None:
    """The interrupted start writes the cookies anew; the metadata are replaced by an older copy only after it."""
    filesystem = MemoryFileSystem()
    copied = await served(filesystem, store, 1)
    identity = await served(filesystem, store, 2)
    noted = replace(identity, ledger_ids_stop=LedgerId(7))
    await note_served(filesystem, {"data": DATA, "journal": JOURNAL}, noted)
    for _ in range(7):
        await store.allocate_ledger_id()
    await start(filesystem, store, 3)
    found = decode_cookie(filesystem.content(DATA / COOKIE_NAME))
    assert found is not None
    assert (found.confirmed_generation, found.ledger_ids_stop) == (2, 7)
    await put_back(store, copied)
    await start(filesystem, store, 4)
    assert await read_hold(store) is not None


async def test_interrupted_starts_do_not_make_the_metadata_look_older(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    await served(filesystem, store, 1)
    for seed in (2, 3):
        # The directories have the new generation, the metadata do not.
        before = await store.list_cookies()
        interrupted = await start(filesystem, store, seed)
        (now,) = await store.list_cookies()
        assert interrupted.generation == now.value.generation
        await store.compare_and_set_cookie(before[0].value, now.version)
    await served(filesystem, store, 4)
    assert await read_hold(store) is None


# --- emptied directories ---------------------------------------------------------------------------------------------


async def start_pinned(filesystem: MemoryFileSystem, store: MetadataStore, pinned_id: str | None) -> Identity:
    return await claim_identity(
        filesystem,
        {"data": DATA},
        store,
        address="127.0.0.1:3181",
        rng=random.Random(5),
        pinned_id=BookieId(pinned_id) if pinned_id is not None else None,
    )


async def test_a_pinned_bookie_that_finds_its_directory_empty_is_refused(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    assert (await start_pinned(filesystem, store, "one")).bookie_id == "one"
    assert (await start_pinned(filesystem, store, "one")).generation == 2
    emptied = MemoryFileSystem()
    with pytest.raises(IdentityRefusedError, match="the cluster knows bookie one"):
        await start_pinned(emptied, store, "one")
    assert not emptied.files()
    with pytest.raises(IdentityRefusedError, match="belong to bookie one, but bookie_id pins two"):
        await start_pinned(filesystem, store, "two")
    assert (await start_pinned(emptied, store, "two")).bookie_id == "two"


async def test_new_disks_wait_for_a_process_that_is_registered_under_their_id(store: MetadataStore) -> None:
    """Rule B10: its cookie was forgotten, so nothing else tells it that the id is not its own any more."""
    filesystem = MemoryFileSystem()

    async def claim() -> Identity:
        return await claim_identity(
            filesystem,
            {"data": DATA},
            store,
            address="127.0.0.1:3181",
            rng=random.Random(5),
            pinned_id=BookieId("one"),
            lease_seconds=0.01,
        )

    lease = await store.register_bookie(registration("one"))
    with pytest.raises(BookieStartError, match="keeps itself registered as bookie one"):
        await claim()
    assert not filesystem.files()
    await lease.release()
    assert (await claim()).bookie_id == "one"


async def test_a_new_bookie_at_the_address_of_a_known_one_is_reported(store: MetadataStore) -> None:
    known = await start_pinned(MemoryFileSystem(), store, None)
    with structlog.testing.capture_logs() as events:
        await start_pinned(MemoryFileSystem(), store, "another")
    (event,) = events
    assert event["log_level"] == "error"
    assert "directories are empty" in event["event"]
    assert event["known"] == [known.bookie_id]
