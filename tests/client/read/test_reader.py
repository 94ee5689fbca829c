"""Readers against bookies that lose, damage, delay and refuse; no writer is needed for that."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from octavo.client.read.range_read import RANGE_BYTES_MAX
from octavo.protocol.entries import Digest, Entry, derive_secrets
from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieStorageError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OctavoTimeoutError,
    QuorumLostError,
)
from octavo.protocol.messages import Op, Read, ReadLac
from support.clusters.reading import QUICK, HandmadeLedger, TroubledStore, cluster_of
from support.forks import in_child
from support.waiting import WAIT_SECONDS


def payloads(entries: Sequence[Entry]) -> list[bytes]:
    return [entry.payload for entry in entries]


def reads(ledger: HandmadeLedger) -> dict[str, int]:
    """READ requests that each bookie got."""
    return {bookie.bookie_id: bookie.count(Op.READ) for bookie in ledger.cluster.bookies}


# --- the ordinary ways to read -----------------------------------------------------------------------------------


async def test_read_is_inclusive_and_entries_carry_what_was_sealed() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"zero", b"one", b"two", b"three")
        await ledger.close()
        reader = await cluster.open(ledger)
        assert await reader.read(1, 2) == [
            Entry(ledger.id, 1, b"one", 0, 7, 0),  # type: ignore[arg-type]
            Entry(ledger.id, 2, b"two", 1, 10, 0),  # type: ignore[arg-type]
        ]
        assert payloads(await reader.read(3, 3)) == [b"three"]


async def test_closed_ledger_is_opened_without_asking_a_bookie() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"bc")
        await ledger.close()
        reader = await cluster.open(ledger)
        assert (reader.ledger_closed, reader.last_add_confirmed, reader.length, reader.id) == (True, 1, 3, ledger.id)
        assert not any(bookie.connections_made for bookie in cluster.bookies)


async def test_ledger_closed_empty_has_nothing_to_read() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        await ledger.close()
        reader = await cluster.open(ledger)
        assert (reader.last_add_confirmed, reader.length) == (None, 0)
        assert [entry async for entry in reader] == []
        assert [entry async for entry in reader.follow()] == []
        with pytest.raises(NoSuchEntryError, match="closed and empty"):
            await reader.read(0, 0)


async def test_iterating_gives_everything_in_order_and_reading_ahead_is_bounded() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3000, size=2000)
        await ledger.close()
        reader = await cluster.open(ledger, options=replace(QUICK, read_ahead_requests=3))
        cluster.bookies[0].hold(Op.READ)
        collecting = asyncio.create_task(_collect(reader.entries()))
        await cluster.bookies[0].received(Op.READ, 3)
        await asyncio.sleep(0)
        assert cluster.bookies[0].count(Op.READ) == 3
        cluster.bookies[0].release(Op.READ)
        assert payloads(await collecting) == ledger.payloads


async def test_slices_of_a_ledger_can_be_iterated() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(20)
        await ledger.close()
        reader = await cluster.open(ledger)
        assert payloads([entry async for entry in reader.entries(5, 7)]) == ledger.payloads[5:8]
        assert payloads([entry async for entry in reader.entries(18)]) == ledger.payloads[18:]
        assert [entry async for entry in reader.entries(20)] == []
        with pytest.raises(NoSuchEntryError, match="its last entry is 19"):
            reader.entries(0, 20)


@pytest.mark.parametrize(("first", "last"), [(2, 1), (-1, 0), (0, True), ("0", 1)])
async def test_impossible_ranges_are_refused(first: int, last: int) -> None:
    async with cluster_of(1) as cluster:
        ledger = await cluster.ledger((1, 1, 1))
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger)
        with pytest.raises(InvalidArgumentError):
            await reader.read(first, last)
        with pytest.raises(InvalidArgumentError):
            reader.entries(first, last)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (3, 2, 2), (4, 2, 1), (5, 3, 2), (5, 5, 3)])
async def test_striped_ledgers_read_like_others_across_fragments(sizes: tuple[int, int, int]) -> None:
    async with cluster_of(sizes[0] + 1) as cluster:
        ledger = await cluster.ledger(sizes)
        ledger.add_numbered(37)
        await ledger.change_ensemble(*(bookie.bookie_id for bookie in cluster.bookies[1:]))
        ledger.add_numbered(44)
        await ledger.close()
        reader = await cluster.open(ledger)
        assert payloads([entry async for entry in reader]) == ledger.payloads
        assert payloads(await reader.read(35, 39)) == ledger.payloads[35:40]
        assert payloads(await reader.read(80, 80)) == ledger.payloads[80:]


async def test_unstriped_range_comes_from_one_replica() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5000)
        await ledger.close()
        reader = await cluster.open(ledger)
        assert len(await reader.read(0, 4999)) == 5000
        counts = reads(ledger)
        assert counts["b0"] >= 2
        assert (counts["b1"], counts["b2"]) == (0, 0)


async def test_readers_spread_over_replicas_by_lot() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        numbers = iter([0.9, 0.5, 0.1])
        reader = await cluster.open(ledger, draw=lambda: next(numbers))
        await reader.read(0, 4)
        assert reads(ledger) == {"b0": 0, "b1": 0, "b2": 1}


async def test_entries_of_very_different_sizes_are_read_in_bounded_pieces() -> None:
    async with cluster_of(1) as cluster:
        ledger = await cluster.ledger((1, 1, 1))
        ledger.add_numbered(300, size=1)
        ledger.add(*(bytes([i]) * 300_000 for i in range(20)))
        ledger.add(b"")
        await ledger.close()
        reader = await cluster.open(ledger)
        assert payloads([entry async for entry in reader]) == ledger.payloads
        asked = [request for request in cluster.bookies[0].requests if isinstance(request, Read)]
        assert max(request.bytes_max for request in asked) <= RANGE_BYTES_MAX


async def test_mac_of_the_password_is_verified() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger(password=b"secret", digest=Digest.HMAC_SHA256)
        ledger.add(b"a", b"b")
        await ledger.close()
        assert payloads(await (await cluster.open(ledger)).read(0, 1)) == [b"a", b"b"]
        ledger.secrets = derive_secrets(b"another", ledger.id)
        with pytest.raises(QuorumLostError, match="do not match their digest"):
            await (await cluster.open(ledger)).read(0, 1)


# --- replicas that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["forget", "unknown", "damage", "refuse", "stop", "overload"])
async def test_another_replica_gives_what_one_cannot(trouble: str) -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(50)
        await ledger.close()
        first = cluster.bookies[0]
        match trouble:
            case "forget":
                first.forget(ledger.id, 20)
            case "unknown":
                first.ledger(ledger.id).unknown.add(20)
            case "damage":
                first.damage(ledger.id, 20)
            case "refuse":
                first.refuse(Op.READ, BookieStorageError("disk on fire"))
            case "overload":
                first.refuse(Op.READ, BookieOverloadedError("busy"), times=1)
            case "stop":
                await first.stop()
        reader = await cluster.open(ledger)
        assert payloads([entry async for entry in reader]) == ledger.payloads
        before = reads(ledger)["b0"]
        assert payloads(await reader.read(20, 20)) == [ledger.payloads[20]]
        assert reads(ledger)["b0"] == before, "the failing replica is asked last for a while"


async def test_connection_lost_in_the_middle_of_a_read_is_survived() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(50)
        await ledger.close()
        reader = await cluster.open(ledger)
        cluster.bookies[0].drop(Op.READ)
        reading = asyncio.create_task(reader.read(0, 49))
        await cluster.bookies[0].received(Op.READ)
        cluster.bookies[0].disconnect()
        assert payloads(await reading) == ledger.payloads


async def test_lost_entry_is_an_error_that_names_each_bookie_and_its_answer() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(10)
        await ledger.close()
        cluster.bookies[0].damage(ledger.id, 4)
        cluster.bookies[1].forget(ledger.id, 4)
        cluster.bookies[2].refuse(Op.READ, BookieStorageError("disk on fire"))
        reader = await cluster.open(ledger)
        with pytest.raises(QuorumLostError) as caught:
            await reader.read(0, 9)
        text = str(caught.value)
        assert f"ledger {ledger.id} entry 4" in text
        assert "bookie b0: sent bytes that do not match their digest" in text
        assert "bookie b1: has no such entry" in text
        assert "bookie b2: disk on fire" in text
        assert not caught.value.may_have_happened


async def test_iterating_gives_what_lies_before_a_lost_entry() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(10)
        await ledger.close()
        for bookie in cluster.bookies:
            bookie.forget(ledger.id, 4)
        reader = await cluster.open(ledger)
        seen: list[Entry] = []

        async def read_on() -> None:
            async for entry in reader:
                seen.append(entry)  # noqa: PERF401 - what was seen before the error matters

        with pytest.raises(QuorumLostError):
            await read_on()
        assert payloads(seen) == ledger.payloads[:4]


async def test_bookies_that_come_back_in_time_are_waited_for() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(10)
        await ledger.close()
        reader = await cluster.open(ledger, options=replace(QUICK, read_quorum_timeout_seconds=30.0))
        for bookie in cluster.bookies:
            bookie.refuse(Op.READ, BookieOverloadedError("starting"), times=2)
        assert payloads(await reader.read(0, 9)) == ledger.payloads


async def test_metadata_are_read_again_before_an_entry_is_reported_missing() -> None:
    """Rule R5: entries have moved to an ensemble that this reader has not heard of."""
    async with cluster_of(6) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(10)
        ledger.say_lac()
        reader = await cluster.open(ledger, store=TroubledStore(cluster.store))  # it learns of changes by reading only
        metadata = ledger.versioned.value
        moved = metadata.with_ensemble_change(0, ("b3", "b4", "b5"), 0)  # type: ignore[arg-type]
        await ledger.change(moved)
        for old, new in zip(cluster.bookies[:3], cluster.bookies[3:], strict=True):
            new.put(ledger.id, ledger.sealed)
            old.ledgers.pop(ledger.id)
        assert payloads(await reader.read(0, 9)) == ledger.payloads


@pytest.mark.parametrize("number", [10, 3000])
async def test_iterating_leaves_nothing_out_when_new_fragments_begin_in_what_was_asked_for(number: int) -> None:
    """Rule I4: the rest of a read belongs to several fragments by the metadata as they are when it is asked again."""
    async with cluster_of(6) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(number, size=2000)
        ledger.say_lac()
        reader = await cluster.open(ledger, store=TroubledStore(cluster.store))  # it learns of changes by reading only
        changed = ledger.versioned.value
        for first, bookies in ((0, ("b3", "b4", "b5")), (7, ("b4", "b5", "b3")), (9, ("b5", "b3", "b4"))):
            changed = changed.with_ensemble_change(first, bookies, 2000 * first)  # type: ignore[arg-type]
        await ledger.change(changed)
        for old, new in zip(cluster.bookies[:3], cluster.bookies[3:], strict=True):
            new.put(ledger.id, ledger.sealed)
            for entry_id in range(4, number):
                old.forget(ledger.id, entry_id)
        entries = await _collect(reader.entries())
        assert [entry.entry_id for entry in entries] == list(range(number))
        assert payloads(entries) == ledger.payloads


async def test_an_unconfirmed_entry_is_not_called_absent_before_its_new_bookies_were_asked() -> None:
    """Rule R5: the bookies that deny it are no longer those of the ledger."""
    async with cluster_of(6) as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        reader = await cluster.open(ledger, store=TroubledStore(cluster.store))  # it learns of changes by reading only
        metadata = ledger.versioned.value
        await ledger.change(metadata.with_ensemble_change(1, ("b3", "b4", "b5"), 1))  # type: ignore[arg-type]
        for old, new in zip(cluster.bookies[:3], cluster.bookies[3:], strict=True):
            new.put(ledger.id, ledger.sealed[1:])
            del old.ledgers[ledger.id].entries[1]
        assert payloads(await reader.read_unconfirmed(0, 1)) == [b"a", b"b"]


async def test_entries_that_an_iteration_has_buffered_are_not_given_in_a_forked_child() -> None:
    """Rule H1: the next entry takes no step of an event loop, and nothing that has to be sent."""
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(10)
        await ledger.close()
        entries = (await cluster.open(ledger)).entries()
        assert (await anext(entries)).entry_id == 0

        def go_on() -> str:
            try:
                aiter(entries).__anext__().__await__().__next__()
            except StopIteration as given:
                return f"entry {given.value.entry_id}"
            return "waits"

        assert in_child(go_on).startswith("ForkedError: ")
        assert [entry.entry_id async for entry in entries] == list(range(1, 10))


async def test_reading_a_deleted_ledger_says_that_it_is_gone() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger)
        await cluster.store.delete_ledger(ledger.id)
        for bookie in cluster.bookies:
            bookie.ledgers.clear()
        with pytest.raises(NoSuchLedgerError):
            await reader.read(0, 4)


# --- the last add confirmed --------------------------------------------------------------------------------------


async def test_open_ledger_is_read_up_to_what_its_entries_confirm() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b", b"c")
        reader = await cluster.open(ledger)
        assert (reader.ledger_closed, reader.last_add_confirmed, reader.length) == (False, 1, 2)
        assert payloads([entry async for entry in reader]) == [b"a", b"b"]
        with pytest.raises(NoSuchEntryError, match="last add confirmed known here is 1"):
            await reader.read(0, 2)


async def test_explicit_lac_is_believed_with_its_length() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"bc")
        ledger.say_lac("b1")
        reader = await cluster.open(ledger)
        await _until_all_answered(cluster.bookies[1], reader)
        assert (reader.last_add_confirmed, reader.length) == (1, 3)


async def _until_all_answered(bookie: object, reader: object) -> None:
    """Coverage may leave one bookie out: ask until the one that knows was among those heard."""
    for _ in range(50):
        if await reader.refresh_last_add_confirmed() == 1:  # type: ignore[attr-defined]
            return


async def test_last_add_confirmed_is_at_least_that_of_the_last_fragment() -> None:
    """Rule R3: the bookies of the new ensemble need not have heard of the ledger."""
    async with cluster_of(6) as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"ab", b"cd")
        await ledger.change_ensemble("b3", "b4", "b5")
        reader = await cluster.open(ledger)
        assert (reader.last_add_confirmed, reader.length) == (1, 4)
        assert payloads(await reader.read(0, 1)) == [b"ab", b"cd"]


async def test_metadata_of_a_closed_ledger_tell_the_end_whatever_bookies_say() -> None:
    """Rule R4."""
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        reader = await cluster.open(ledger)
        await ledger.close()
        ledger.add(b"never", b"happened")
        ledger.say_lac()
        assert await reader.refresh_last_add_confirmed() == 1
        assert reader.ledger_closed
        assert payloads([entry async for entry in reader.follow()]) == [b"a", b"b"]


async def test_damaged_or_forged_confirmations_are_not_believed() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b", b"c")
        stranger = await cluster.ledger()
        stranger.add_numbered(9)
        stranger.say_lac()
        for bookie in cluster.bookies:
            bookie.ledger(ledger.id).explicit = bookie.ledgers[stranger.id].explicit
        reader = await cluster.open(ledger)
        assert (reader.last_add_confirmed or -1) <= 1
        for bookie in cluster.bookies:
            bookie.ledger(ledger.id).explicit = None
            bookie.damage(ledger.id, 2)
        fresh = await cluster.open(ledger)
        assert fresh.last_add_confirmed is None


async def test_open_ledger_with_one_bookie_left_can_still_be_opened() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        await cluster.bookies[0].stop()
        await cluster.bookies[1].stop()
        reader = await cluster.open(ledger)
        assert reader.last_add_confirmed == 0


async def test_open_ledger_without_a_bookie_left_names_them() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        for bookie in cluster.bookies:
            bookie.refuse(Op.READ_LAC, BookieStorageError(f"{bookie.bookie_id} burns"))
        with pytest.raises(QuorumLostError, match="bookie b0: b0 burns; bookie b1: b1 burns; bookie b2: b2 burns"):
            await cluster.open(ledger)


async def test_refresh_does_not_wait_for_a_hung_bookie_and_never_fences() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        cluster.bookies[0].drop(Op.READ_LAC)
        async with asyncio.timeout(WAIT_SECONDS):
            reader = await cluster.open(ledger)
            ledger.add(b"c")
            assert await reader.refresh_last_add_confirmed() == 1
        assert not any(bookie.ledger(ledger.id).fenced for bookie in cluster.bookies)
        asked = [request for bookie in cluster.bookies for request in bookie.requests if isinstance(request, ReadLac)]
        assert all(not request.flags for request in asked)


async def test_confirmed_entries_move_the_lac_of_the_reader_that_reads_them() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        reader = await cluster.open(ledger)
        assert reader.last_add_confirmed == 0
        ledger.add(b"c", b"d")
        assert payloads(await reader.read_unconfirmed(0, 3)) == [b"a", b"b", b"c", b"d"]
        assert (reader.last_add_confirmed, reader.length) == (2, 3)


async def test_unconfirmed_read_above_the_last_entry_is_no_such_entry() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        reader = await cluster.open(ledger)
        with pytest.raises(NoSuchEntryError, match="no entry 2 yet"):
            await reader.read_unconfirmed(0, 2)
        for bookie in cluster.bookies[:2]:
            bookie.in_doubt = True
        with pytest.raises(QuorumLostError, match="cannot tell"):
            await reader.read_unconfirmed(2, 2)


async def test_waiting_for_an_entry_ends_when_it_is_confirmed() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        reader = await cluster.open(ledger)
        assert await reader.wait_last_add_confirmed(0) == 0
        waiting = asyncio.create_task(reader.wait_last_add_confirmed(2))
        await cluster.bookies[0].until(lambda: cluster.bookies[0].long_polls == 1)
        ledger.add(b"c")
        ledger.say_lac()
        assert await waiting == 2


async def test_waiting_for_an_entry_that_never_comes_ends() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b")
        reader = await cluster.open(ledger)
        with pytest.raises(OctavoTimeoutError, match=r"entry 5 was not confirmed within 0\.01 s"):
            await reader.wait_last_add_confirmed(5, timeout=0.01)
        waiting = asyncio.create_task(reader.wait_last_add_confirmed(5))
        await asyncio.sleep(0)
        await ledger.close()
        with pytest.raises(NoSuchEntryError, match="its last entry is 1"):
            await waiting


async def _collect(entries: object) -> list[Entry]:
    return [entry async for entry in entries]  # type: ignore[attr-defined]
