"""What every metadata driver must do: identity, ledgers, documents, and the end of a handle.

A driver joins with an entry in ``support.metadata.metadata_clusters.DRIVERS``.
"""

import asyncio
import time
from dataclasses import replace

import pytest
from octavo.metadata import (
    BeginRecovery,
    BookieState,
    ChangeEnsemble,
    CloseLedger,
    FinishRecovery,
    Fragment,
    MetadataStore,
    Version,
    update_ledger,
)
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.inside import handle_of
from support.metadata.ledger_metadata import bookie_ids, open_ledger
from support.metadata.metadata_clusters import Cluster, cookie, new_ledger, registration, soon

# --- identity ------------------------------------------------------------------------------------------------------


async def test_cluster_has_one_identity(cluster: Cluster) -> None:
    handles = await asyncio.gather(*(cluster.open() for _ in range(4)))
    identities = {await handle.cluster_id() for handle in handles}
    assert len(identities) == 1
    assert len(identities.pop()) == 32


# --- ledgers -------------------------------------------------------------------------------------------------------


async def test_created_ledger_is_read_as_written(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    found = await other.read_ledger(ledger_id)
    assert found == (open_ledger(ledger_id), version)


async def test_ledger_is_created_once(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, _ = await new_ledger(store, token="first")
    with pytest.raises(LedgerExistsError, match=f"ledger {ledger_id}"):
        await other.create_ledger(open_ledger(ledger_id, writer_token="second"))
    assert (await store.read_ledger(ledger_id)).value.writer_token == "first"


async def test_ledger_id_that_was_never_allocated_is_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgumentError, match="ledger id 3 was never allocated"):
        await store.create_ledger(open_ledger(3))


async def test_id_allocated_by_another_handle_may_be_used(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id = await store.allocate_ledger_id()
    await other.create_ledger(open_ledger(ledger_id))


async def test_fields_of_a_newer_version_outlast_every_change(store: MetadataStore, other: MetadataStore) -> None:
    newer = {"retention": {"seconds": 3600}, "pinned": True}
    marked = Fragment(EntryId(0), bookie_ids("a", "b", "c"), unknown_fields={"tier": "cold"})
    ledger_id = await store.allocate_ledger_id()
    await store.create_ledger(replace(open_ledger(ledger_id, marked), unknown_fields=newer))
    (base,) = open_ledger(ledger_id).fragments
    wider = ChangeEnsemble(base, EntryId(5), bookie_ids("a", "b", "d"), 50)
    await update_ledger(other, ledger_id, wider, writer_token="w")
    known = await store.read_ledger(ledger_id)
    await update_ledger(other, ledger_id, BeginRecovery(), writer_token="r")
    # An update that starts from outdated metadata tries again on those that are stored.
    finish = FinishRecovery(known.value.last_fragment, (), EntryId(9), 90)
    await update_ledger(store, ledger_id, finish, writer_token="s", known=known)
    closed = (await other.read_ledger(ledger_id)).value
    assert closed.is_closed
    assert closed.unknown_fields == newer
    assert [fragment.unknown_fields for fragment in closed.fragments] == [{"tier": "cold"}, {}]
    version = await store.create_cookie(replace(cookie("b1"), unknown_fields={"tls": "off"}))
    found = await other.read_cookie(BookieId("b1"))
    assert found is not None
    await other.compare_and_set_cookie(replace(found.value, generation=2), version)
    assert [known.value.unknown_fields for known in await store.list_cookies()] == [{"tls": "off"}]
    lease = await store.register_bookie(replace(registration("b1"), unknown_fields={"zone": "a"}))
    await lease.update(replace((await other.list_bookies())[BookieId("b1")], state=BookieState.READ_ONLY))
    assert (await other.list_bookies())[BookieId("b1")].unknown_fields == {"zone": "a"}


async def test_ids_that_were_never_allocated_are_told_from_others(store: MetadataStore, other: MetadataStore) -> None:
    assert await store.ledger_ids_stop() == 0
    for handle in (other, store, other, other):
        ledger_id = await handle.allocate_ledger_id()
        # Read again each time: what this handle knew before does not count.
        assert await store.ledger_ids_stop() > ledger_id
    stop = await store.ledger_ids_stop()
    with pytest.raises(InvalidArgumentError, match="never allocated"):
        await other.create_ledger(open_ledger(stop))


async def test_absence_of_ledgers_is_confirmed(store: MetadataStore, other: MetadataStore) -> None:
    kept, deleted = [(await new_ledger(store))[0] for _ in range(2)]
    unused = await other.allocate_ledger_id()
    never = LedgerId(10**6)
    assert await store.confirm_absent([kept, deleted]) == []
    await other.delete_ledger(deleted)
    assert await store.confirm_absent([never, deleted, kept, unused]) == [never, deleted, unused]
    await other.create_ledger(open_ledger(unused))
    assert await store.confirm_absent([unused, deleted]) == [deleted]
    assert await store.confirm_absent([]) == []
    with pytest.raises(InvalidArgumentError, match="not -1"):
        await store.confirm_absent([kept, LedgerId(-1)])


async def test_absence_of_many_ledgers_is_confirmed_page_by_page(store: MetadataStore) -> None:
    present = {(await new_ledger(store))[0] for _ in range(3)}
    asked = [LedgerId(number) for number in (*range(1000, 1450), *present, *range(2000, 2300))]
    assert await store.confirm_absent(asked) == [ledger_id for ledger_id in asked if ledger_id not in present]


async def test_missing_ledger_is_named(store: MetadataStore) -> None:
    for missing in (0, 99, -1, 2**63, 10**30):
        with pytest.raises(NoSuchLedgerError, match=f"ledger {missing} "):
            await store.read_ledger(LedgerId(missing))
    with pytest.raises(NoSuchLedgerError):
        await store.delete_ledger(LedgerId(99))
    with pytest.raises(NoSuchLedgerError):
        await store.compare_and_set_ledger(open_ledger(99), Version(1))


async def test_compare_and_set_needs_the_present_version(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, first = await new_ledger(store)
    second = await store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="a"), first)
    assert second != first
    with pytest.raises(MetadataConflictError, match=f"ledger {ledger_id}"):
        await other.compare_and_set_ledger(open_ledger(ledger_id, writer_token="b"), first)
    assert await other.read_ledger(ledger_id) == (open_ledger(ledger_id, writer_token="a"), second)


async def test_deleted_ledger_is_gone_and_its_id_is_not_used_again(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    with pytest.raises(MetadataConflictError):
        await store.delete_ledger(ledger_id, Version(version + 1))
    await other.delete_ledger(ledger_id, version)
    with pytest.raises(NoSuchLedgerError):
        await store.read_ledger(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await store.compare_and_set_ledger(open_ledger(ledger_id), version)
    assert await store.allocate_ledger_id() > ledger_id
    assert await other.allocate_ledger_id() > ledger_id + 1


async def test_ids_allocated_at_once_by_many_never_collide(cluster: Cluster) -> None:
    handles = [await cluster.open() for _ in range(3)]
    ids = await asyncio.gather(*(handle.allocate_ledger_id() for _ in range(20) for handle in handles))
    assert len(set(ids)) == 60
    assert min(ids) >= 0


async def test_one_of_many_writers_wins_each_version(cluster: Cluster) -> None:
    handles = [await cluster.open() for _ in range(2)]
    ledger_id, version = await new_ledger(handles[0])

    async def attempt(handle: MetadataStore, token: str, expected: Version) -> Version | None:
        try:
            return await handle.compare_and_set_ledger(open_ledger(ledger_id, writer_token=token), expected)
        except MetadataConflictError:
            return None

    for _ in range(5):
        outcomes = await asyncio.gather(*(attempt(handles[n % 2], f"writer {n}", version) for n in range(8)))
        (winner,) = [n for n, outcome in enumerate(outcomes) if outcome is not None]
        found = await handles[0].read_ledger(ledger_id)
        assert found.value.writer_token == f"writer {winner}"
        assert found.version == outcomes[winner]
        version = found.version


async def test_updates_by_many_handles_all_take_effect(cluster: Cluster) -> None:
    """Every round is an update from what was read: not one may be lost."""
    handles = [await cluster.open() for _ in range(2)]
    name = "counter"
    await handles[0].create_document(name, b"0")

    async def count(handle: MetadataStore) -> None:
        for _ in range(10):
            while True:
                found = await handle.read_document(name)
                assert found is not None
                try:
                    await handle.compare_and_set_document(name, b"%d" % (int(found.value) + 1), found.version)
                    break
                except MetadataConflictError:
                    continue

    await asyncio.gather(*(count(handles[n % 2]) for n in range(4)))
    final = await handles[0].read_document(name)
    assert final is not None
    assert final.value == b"40"


async def test_writer_and_recoverer_agree_on_one_end(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, _ = await new_ledger(store)
    base = open_ledger(ledger_id).last_fragment
    changes = [
        update_ledger(store, ledger_id, CloseLedger(base, EntryId(4), 40), writer_token="a"),
        update_ledger(other, ledger_id, CloseLedger(base, EntryId(5), 50), writer_token="b"),
        update_ledger(
            other, ledger_id, ChangeEnsemble(base, EntryId(6), bookie_ids("a", "b", "d"), 60), writer_token="c"
        ),
    ]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1


async def test_ledgers_are_listed_in_order_of_their_ids(store: MetadataStore, other: MetadataStore) -> None:
    ids = [await store.allocate_ledger_id() for _ in range(12)]
    for ledger_id in reversed(ids):
        await store.create_ledger(open_ledger(ledger_id))
    await store.delete_ledger(ids[5])
    assert [ledger_id async for ledger_id in other.list_ledgers()] == [*ids[:5], *ids[6:]]


async def test_list_begins_above_an_id(store: MetadataStore, other: MetadataStore) -> None:
    ids = [(await new_ledger(store))[0] for _ in range(5)]
    await store.delete_ledger(ids[2])
    for after, listed in ((ids[0], [ids[1], *ids[3:]]), (ids[2], ids[3:]), (ids[4], []), (LedgerId(10**6), [])):
        assert [ledger_id async for ledger_id in other.list_ledgers(after=after)] == listed
    assert [ledger_id async for ledger_id in other.list_ledgers(after=None)] == [*ids[:2], *ids[3:]]


async def test_many_ledgers_change_together_each_for_itself(store: MetadataStore, other: MetadataStore) -> None:
    made = [await new_ledger(store, token=f"first {number}") for number in range(40)]
    changed, deleted = made[3], made[35]
    theirs = await other.compare_and_set_ledger(open_ledger(changed[0], writer_token="theirs"), changed[1])
    await other.delete_ledger(deleted[0])
    wanted = [open_ledger(ledger_id, writer_token=f"mine {ledger_id}") for ledger_id, _ in made]
    versions = await store.compare_and_set_ledgers([(one, made[at][1]) for at, one in enumerate(wanted)])
    assert [at for at, version in enumerate(versions) if version is None] == [3, 35]
    for one, version in zip(wanted, versions, strict=True):
        if version is not None:
            assert await other.read_ledger(one.ledger_id) == (one, version)
    assert await store.read_ledger(changed[0]) == (open_ledger(changed[0], writer_token="theirs"), theirs)
    with pytest.raises(NoSuchLedgerError):
        await store.read_ledger(deleted[0])
    again = [(one, version) for one, version in zip(wanted, versions, strict=True) if version is not None]
    assert None not in await other.compare_and_set_ledgers(again), "the versions given are those that are stored"
    assert await store.compare_and_set_ledgers([]) == []


async def test_of_two_changes_of_one_ledger_in_one_call_the_first_is_made(store: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    first, second = (open_ledger(ledger_id, writer_token=token) for token in ("one", "two"))
    versions = await store.compare_and_set_ledgers([(first, version), (second, version)])
    assert versions[1] is None
    assert await store.read_ledger(ledger_id) == (first, versions[0])


async def test_change_of_many_is_seen_by_watches(store: MetadataStore, other: MetadataStore) -> None:
    made = [await new_ledger(store) for _ in range(3)]
    async with other.watch_ledger(made[1][0]) as watch:
        assert (await soon(anext(watch))) is not None
        wanted = [open_ledger(ledger_id, writer_token="repaired") for ledger_id, _ in made]
        await store.compare_and_set_ledgers([(one, made[at][1]) for at, one in enumerate(wanted)])
        seen = await soon(anext(watch))
        assert seen is not None
        assert seen.value.writer_token == "repaired"


async def test_long_list_comes_page_by_page_while_ledgers_come_and_go(store: MetadataStore) -> None:
    handle_of(store).list_page_records = 4
    ids = [(await new_ledger(store))[0] for _ in range(13)]
    seen = []
    async for ledger_id in store.list_ledgers():
        seen.append(ledger_id)
        if ledger_id == ids[3]:
            await store.delete_ledger(ids[0])
            await store.delete_ledger(ids[4])
            late, _ = await new_ledger(store)
    assert seen == [*ids[:4], *ids[5:], late]


async def test_empty_store_lists_nothing(store: MetadataStore) -> None:
    assert [ledger_id async for ledger_id in store.list_ledgers()] == []
    assert [name async for name in store.list_documents()] == []
    assert await store.list_known_bookies() == []
    assert await store.list_cookies() == []


# --- documents -----------------------------------------------------------------------------------------------------


async def test_document_changes_by_compare_and_set(store: MetadataStore, other: MetadataStore) -> None:
    assert await store.read_document("logs/orders") is None
    first = await store.create_document("logs/orders", b"\x00\xff")
    with pytest.raises(MetadataConflictError, match="logs/orders"):
        await other.create_document("logs/orders", b"")
    second = await other.compare_and_set_document("logs/orders", b"", first)
    assert await store.read_document("logs/orders") == (b"", second)
    with pytest.raises(MetadataConflictError):
        await store.compare_and_set_document("logs/orders", b"x", first)
    with pytest.raises(MetadataConflictError):
        await store.delete_document("logs/orders", first)
    await store.delete_document("logs/orders", second)
    await store.delete_document("logs/orders")
    with pytest.raises(MetadataConflictError):
        await store.delete_document("logs/orders", second)
    with pytest.raises(MetadataConflictError):
        await store.compare_and_set_document("logs/orders", b"x", second)


async def test_a_document_that_is_replaced_by_the_same_has_another_version(
    store: MetadataStore, other: MetadataStore
) -> None:
    """So that a client which changes nothing can still refuse what another one has decided by the version before."""
    first = await store.create_document("a/b", b"one")
    second = await store.compare_and_set_document("a/b", b"one", first)
    assert second != first
    with pytest.raises(MetadataConflictError):
        await other.compare_and_set_document("a/b", b"two", first)
    assert await other.read_document("a/b") == (b"one", second)


async def test_documents_are_listed_by_prefix(store: MetadataStore, other: MetadataStore) -> None:
    for name in ("logs/b", "logs/a", "log", "logs-x", "logs/a/deep", "sets/a"):
        await store.create_document(name, b"")
    assert [name async for name in other.list_documents("logs/")] == ["logs/a", "logs/a/deep", "logs/b"]
    assert [name async for name in other.list_documents("log")] == [
        "log", "logs-x", "logs/a", "logs/a/deep", "logs/b",
    ]  # fmt: skip
    assert [name async for name in other.list_documents("nothing")] == []
    assert len([name async for name in other.list_documents()]) == 6


async def test_many_documents_are_read_in_the_order_of_their_names(store: MetadataStore, other: MetadataStore) -> None:
    count = 450  # more than drivers read at a time
    versions = [await store.create_document(f"many/{at}", b"%d" % at) for at in range(count)]
    names = [f"many/{at}" for at in reversed(range(count))]
    found = await other.read_documents(["missing", *names, "many/1"])
    assert found[0] is None
    assert found[1:-1] == [(b"%d" % at, versions[at]) for at in reversed(range(count))]
    assert found[-1] == (b"1", versions[1])
    await store.delete_document("many/1")
    assert await other.read_documents(["many/1", "many/2"]) == [None, (b"2", versions[2])]
    assert await other.read_documents([]) == []
    with pytest.raises(InvalidArgumentError, match="not a valid name"):
        await other.read_documents(["many/2", "a//b"])


async def test_reading_many_documents_leaves_their_watches_alone(store: MetadataStore, other: MetadataStore) -> None:
    version = await store.create_document("watched", b"one")
    async with other.watch_document("watched") as watch:
        assert await soon(anext(watch)) == (b"one", version)
        assert await other.read_documents(["watched"]) == [(b"one", version)]
        later = await store.compare_and_set_document("watched", b"two", version)
        assert await soon(anext(watch)) == (b"two", later)


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a//b", "../a", "a b", "ä", "a\n", "x" * 513, "a/./b", "-a"])
async def test_bad_name_is_refused(store: MetadataStore, name: str) -> None:
    for attempt in (
        store.create_document(name, b""),
        store.read_document(name),
        store.read_documents([name]),
        store.read_locks([name]),
        store.delete_document(name),
        store.try_lock(name, "me"),
    ):
        with pytest.raises(InvalidArgumentError, match="not a valid name"):
            await attempt


async def test_document_has_a_largest_size(store: MetadataStore) -> None:
    version = await store.create_document("big", bytes(DOCUMENT_BYTES_MAX))
    with pytest.raises(InvalidArgumentError, match="exceed the limit"):
        await store.compare_and_set_document("big", bytes(DOCUMENT_BYTES_MAX + 1), version)
    found = await store.read_document("big")
    assert found is not None
    assert len(found.value) == DOCUMENT_BYTES_MAX


# --- closing -------------------------------------------------------------------------------------------------------


async def test_closed_store_refuses_everything(store: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    await store.close()
    await store.close()
    for attempt in (
        store.cluster_id(),
        store.allocate_ledger_id(),
        store.create_ledger(open_ledger(ledger_id)),
        store.read_ledger(ledger_id),
        store.compare_and_set_ledger(open_ledger(ledger_id), version),
        store.delete_ledger(ledger_id),
        anext(store.list_ledgers()),
        store.register_bookie(registration("b1")),
        store.list_bookies(),
        store.list_known_bookies(),
        store.create_cookie(cookie("b1")),
        store.read_cookie(BookieId("b1")),
        store.compare_and_set_cookie(cookie("b1"), version),
        store.delete_cookie(BookieId("b1"), version),
        store.list_cookies(),
        store.create_document("d", b""),
        store.read_document("d"),
        store.read_documents(["d"]),
        store.read_locks(["l"]),
        store.glance_streams([ledger_id]),
        store.compare_and_set_document("d", b"", version),
        store.delete_document("d"),
        anext(store.list_documents()),
        store.try_lock("l", "me"),
        store.lock("l", "me"),
        store.read_lock("l"),
    ):
        with pytest.raises(ClientClosedError):
            await attempt
    for watch in (
        lambda: store.watch_ledger(ledger_id),
        lambda: store.watch_document("d"),
        lambda: store.watch_lock("l"),
        store.watch_bookies,
    ):
        with pytest.raises(ClientClosedError):
            watch()


async def test_closing_ends_waiting_watches_and_locks(store: MetadataStore, other: MetadataStore) -> None:
    assert await other.try_lock("leader", "other") is not None
    async with store.watch_document("doc") as watch:
        await soon(anext(watch))
        waiting = [asyncio.create_task(anext(watch)), asyncio.create_task(store.lock("leader", "me"))]
        for _ in range(5):
            await asyncio.sleep(0)
        await store.close()
        for outcome in await soon(asyncio.gather(*waiting, return_exceptions=True)):
            assert isinstance(outcome, ClientClosedError)


async def test_closing_gives_up_leases_at_once_and_tells_their_holders(
    store: MetadataStore, other: MetadataStore
) -> None:
    bookie = await store.register_bookie(registration("b1"))
    lock = await store.lock("leader", "me")
    await store.close()
    await soon(bookie.wait_lost())
    await soon(lock.wait_lost())
    assert await other.list_bookies() == {}
    assert await other.read_lock("leader") is None


async def test_closing_leaves_other_handles_alone_and_no_task_behind(cluster: Cluster) -> None:
    before = asyncio.all_tasks()
    first, second = await cluster.open(), await cluster.open()
    await first.register_bookie(registration("b1"))
    await second.register_bookie(registration("b2"))
    await first.close()
    assert list(await second.list_bookies()) == ["b2"]
    await second.close()
    assert asyncio.all_tasks() == before


async def test_what_was_stored_is_there_for_the_next(cluster: Cluster) -> None:
    keeper = await cluster.open()  # memory:// lives as long as a handle is open
    first = await cluster.open()
    ledger_id, version = await new_ledger(first)
    identity = await first.cluster_id()
    await first.close()
    second = await cluster.open()
    assert await second.read_ledger(ledger_id) == (open_ledger(ledger_id), version)
    assert await second.cluster_id() == identity
    assert await second.allocate_ledger_id() == ledger_id + 1
    await keeper.close()


async def test_the_store_tells_the_time_of_day(cluster: Cluster) -> None:
    store = await cluster.open()
    before = time.time_ns() // 1_000_000
    told = await soon(store.time_ms())
    assert before - 1 <= told <= time.time_ns() // 1_000_000 + 1, "all clocks of this machine are one"
    await store.close()
    with pytest.raises(ClientClosedError):
        await store.time_ms()
