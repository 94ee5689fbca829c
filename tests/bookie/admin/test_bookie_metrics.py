"""What a bookie counts: every metric of the table, each moved by what it is about."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.bookie.admin.collect import samples, state_of
from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.metadata import BookieState, MetadataStore
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metrics import table
from octavo.metrics.exposition import expose
from octavo.metrics.table import BOOKIE_METRICS
from octavo.protocol.errors import BookieReadOnlyError
from octavo.protocol.held_entries import Doubt
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.messages import REQUESTS, Added, Op, Ping, Pong, ReadFlag, ReadLac, Subscribe, Subscribed
from octavo.protocol.pushes import are_pushes
from octavo.repair.audit.auditor import figures
from octavo.repair.base.planning import BlockedClass
from prometheus_client.parser import text_string_to_metric_families
from support.raw_client import RawClient, add, key_of, read, seal
from support.waiting import WAIT_SECONDS

type Values = dict[str, dict[tuple[str, ...], float]]


def scrape(bookie: Bookie) -> Values:
    """What Prometheus would see: sample name -> values of the labels -> value."""
    found: Values = {}
    text = expose(samples(bookie.subject, ProcessStatistics())).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.fixture
async def bookie(tmp_path: Path, store: MetadataStore) -> AsyncIterator[Bookie]:
    config = load_config(None, {}, {"data_dir": tmp_path, "port": 0, "journal_segment_bytes": 16 << 20})
    filesystem = RealFileSystem()
    running = await Bookie.start(
        config, filesystem=filesystem, store=store, rng=random.Random(1), software="0-test",
        wall_clock=time.time, clock=time.perf_counter,
    )  # fmt: skip
    try:
        yield running
    finally:
        await running.stop()
        await filesystem.close()


@pytest.fixture
async def client(bookie: Bookie) -> AsyncIterator[RawClient]:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as connected:
        await connected.greet()
        yield connected


async def test_a_bookie_exposes_every_metric_of_the_table_and_no_other(bookie: Bookie) -> None:
    exposed = {sample.metric for sample in samples(bookie.subject, ProcessStatistics())}
    assert exposed == {metric for metrics in BOOKIE_METRICS.values() for metric in metrics}


async def test_adds_and_reads_are_counted_with_their_entries_bytes_and_times(bookie: Bookie, client: RawClient) -> None:
    entries = seal(7, 0, [b"a" * 10, b"b" * 20, b"c" * 30])
    assert await client.ask(add(7, entries)) == Added()
    await client.ask(read(7, 0, 2))
    assert await client.ask(Ping()) == Pong()
    found = scrape(bookie)
    size = sum(map(len, entries))
    requests = found["octavo_bookie_requests_total"]
    assert (requests["add", "ok"], requests["read", "ok"], requests["ping", "ok"]) == (1, 1, 1)
    assert requests["info", "ok"] == 0, "an operation that was never asked for is there with 0"
    assert found["octavo_bookie_entries_added_total"][()] == found["octavo_bookie_entries_read_total"][()] == 3
    assert found["octavo_bookie_added_bytes_total"][()] == found["octavo_bookie_read_bytes_total"][()] == size
    assert found["octavo_bookie_request_seconds_count"]["add",] == 1
    assert 0 < found["octavo_bookie_request_seconds_sum"]["add",] < 60
    assert found["octavo_bookie_journal_groups_total"][()] >= 1
    assert found["octavo_bookie_journal_bytes_total"][()] >= size
    assert found["octavo_bookie_journal_sync_seconds_count"][()] == found["octavo_bookie_journal_groups_total"][()]
    assert found["octavo_bookie_journal_queue_seconds_count"][()] == found["octavo_bookie_journal_groups_total"][()]
    assert found["octavo_bookie_journal_replay_bytes"][()] >= size
    assert found["octavo_bookie_cache_bytes"][()] >= size
    assert found["octavo_bookie_connections"]["no", "no"] == 1


async def test_every_operation_of_the_protocol_has_its_counters_and_its_row(bookie: Bookie) -> None:
    # An operation without a counter would be served and never answered.
    served = {Op(number).name.lower() for number in REQUESTS}
    assert {op for op, code in scrape(bookie)["octavo_bookie_requests_total"] if code == "ok"} == served
    assert {request.op for request in REQUESTS.values()} == bookie.service.requests.seconds.keys()
    assert table.REQUESTS.values == {"op": ", ".join(op.name.lower() for op in bookie.service.requests.seconds)}


async def test_an_add_takes_as_long_in_the_metrics_as_its_sync(bookie: Bookie, client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"a"])))
    found = scrape(bookie)
    assert (
        found["octavo_bookie_request_seconds_sum"]["add",] >= found["octavo_bookie_journal_sync_seconds_sum"][()] * 0.5
    ), "the only group was that of the add"


async def test_refusals_are_counted_by_their_error_and_have_no_time(bookie: Bookie, client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"a"])))
    await client.ask(read(7, 0, 0, fence=True))
    await client.ask(add(7, seal(7, 1, [b"b"])))
    found = scrape(bookie)
    assert found["octavo_bookie_requests_total"]["add", "LedgerFenced"] == 1
    assert found["octavo_bookie_requests_total"]["add", "ok"] == 1
    assert found["octavo_bookie_request_seconds_count"]["add",] == 1
    assert found["octavo_bookie_fences_total"][()] == 1


async def test_other_bytes_under_the_same_id_are_counted(bookie: Bookie, client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"a"])))
    await client.ask(add(7, seal(7, 0, [b"b"])))
    assert scrape(bookie)["octavo_bookie_duplicates_refused_total"][()] == 1


async def test_subscriptions_and_what_they_push_are_counted(bookie: Bookie, client: RawClient) -> None:
    entries = seal(7, 0, [b"a"])
    await client.ask(add(7, entries))
    assert await client.ask(Subscribe(1, 7, b"", 0, 0, 1 << 20)) == Subscribed()
    assert are_pushes(await client.receive())
    found = scrape(bookie)
    assert found["octavo_bookie_subscriptions"][()] == 1
    assert found["octavo_bookie_entries_read_total"][()] == 1
    assert found["octavo_bookie_read_bytes_total"][()] == len(entries[0])
    await client.ask(Subscribe(1, 7, b"", 0, 0, None))
    found = scrape(bookie)
    assert found["octavo_bookie_subscriptions"][()] == 0
    assert found["octavo_bookie_requests_total"]["subscribe", "ok"] == 2


async def test_a_long_poll_counts_while_it_waits_and_its_time_does_not(bookie: Bookie, client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"a"])))
    asked = asyncio.ensure_future(client.ask(ReadLac(7, b"", ReadFlag.NONE, 0, 0, 30_000, 0, 0)))
    async with asyncio.timeout(WAIT_SECONDS):
        while scrape(bookie)["octavo_bookie_long_polls"][()] == 0:  # noqa: ASYNC110 - the bookie says when
            await asyncio.sleep(0)
    found = scrape(bookie)
    assert found["octavo_bookie_requests_outstanding"][()] == 0
    await bookie.service.storage.writer.fence(LedgerId(7), key_of(7))  # which ends the poll
    await asked
    found = scrape(bookie)
    assert found["octavo_bookie_requests_total"]["read_lac", "ok"] == 1
    assert found["octavo_bookie_request_seconds_count"]["read_lac",] == 0
    assert found["octavo_bookie_long_polls"][()] == 0


async def test_checkpoints_garbage_rounds_and_scrubs_move_their_metrics(bookie: Bookie, client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"a" * 1000])))
    before = scrape(bookie)
    ready = bookie.subject.ready
    assert ready is not None
    await ready.upkeep.checkpoint()
    await ready.upkeep.collect_garbage()
    await ready.upkeep.compact(major=True)
    await ready.upkeep.scrub(1 << 30)
    after = scrape(bookie)

    def moved(name: str, *labels: str) -> float:
        return after[name][labels] - before[name][labels]

    assert moved("octavo_bookie_checkpoint_seconds_count") == 1
    assert moved("octavo_bookie_journal_replay_bytes") < 0
    assert moved("octavo_bookie_entry_log_bytes") >= 1000
    assert moved("octavo_bookie_index_parts") == 1
    assert moved("octavo_bookie_garbage_rounds_total", "ok") == 1
    assert moved("octavo_bookie_scrub_rounds_total") == 1
    assert moved("octavo_bookie_scrub_bytes_total") >= 1000
    assert after["octavo_bookie_ledgers"][()] == 1
    assert after["octavo_bookie_checkpoint_age_seconds"][()] < 60


async def test_every_directory_has_its_disk(bookie: Bookie, tmp_path: Path) -> None:
    found = scrape(bookie)
    free, total = found["octavo_bookie_disk_free_bytes"], found["octavo_bookie_disk_total_bytes"]
    assert free.keys() == total.keys() == {(str(tmp_path), "data"), (str(tmp_path / "journal"), "journal")}
    assert all(0 < free[labels] <= total[labels] for labels in free)


async def test_the_state_follows_the_operators_switch_and_the_disks(
    bookie: Bookie, client: RawClient, store: MetadataStore
) -> None:
    ready = bookie.subject.ready
    assert ready is not None

    def states() -> list[str]:
        return [state for (state,), value in scrape(bookie)[table.STATE.name].items() if value]

    assert states() == [state_of(bookie.subject)] == ["writable"]
    await ready.switch_read_only("new disks")
    assert states() == ["read-only"]
    assert scrape(bookie)["octavo_bookie_read_only_reason"] == {("disk",): 0, ("operator",): 1}
    assert (await store.list_bookies())[bookie.bookie_id].state is BookieState.READ_ONLY
    assert isinstance(await client.ask(add(7, seal(7, 0, [b"a"]))), BookieReadOnlyError)
    bookie.service.note_disks(low=True, read_only=True, out_of_space=False)
    bookie.service.note_disks(low=False, read_only=False, out_of_space=False)
    assert states() == ["read-only"], "the disks never undo what an operator has done"
    await ready.switch_read_only(None)
    assert states() == ["writable"]
    assert await client.ask(add(7, seal(7, 0, [b"a"]))) == Added()


async def test_doubt_is_shown_until_it_is_over_although_its_floor_stays(bookie: Bookie) -> None:
    storage = bookie.service.storage
    storage.ledgers.doubt = Doubt(100)
    found = scrape(bookie)
    assert (found["octavo_bookie_in_doubt"][()], found["octavo_bookie_unsure_ledgers"][()]) == (1, 100)
    await storage.narrow_doubt(100, {7: 3})
    assert scrape(bookie)["octavo_bookie_unsure_ledgers"][()] == 1
    await storage.narrow_doubt(100, {})
    found = scrape(bookie)
    assert (found["octavo_bookie_in_doubt"][()], found["octavo_bookie_unsure_ledgers"][()]) == (0, 0)
    assert (await bookie.service.info())["doubt_floor"] == 100


async def test_the_figures_that_repair_publishes_are_exposed(bookie: Bookie) -> None:
    found = scrape(bookie)
    assert found["octavo_bookie_repair_auditor"][()] == 0
    assert set(found["octavo_bookie_repair_ledgers"].values()) == {0}
    states = RepairStates({BookieId("b"): BookieCondition(Condition.LOST, 0)}, paused=True)
    bookie.service.companion_facts = {
        "repair_auditor": True, "repair_entries_copied": 5, "repair_bytes_copied": 500, "repair_ledgers_named": 4,
        "repair_conflicts": 3, "repair_entries_short": 2,
        **figures(states, {"queued": 7, "short": 1}, owing=6, waiting_since_ms=1_500),
    }  # fmt: skip
    found = scrape(bookie)
    assert found["octavo_bookie_repair_auditor"][()] == 1
    assert found["octavo_bookie_repair_ledgers_owing"][()] == 6
    assert found["octavo_bookie_repair_entries_copied_total"][()] == 5
    assert found["octavo_bookie_repair_copied_bytes_total"][()] == 500
    assert found["octavo_bookie_repair_ledgers_named_total"][()] == 4
    assert found["octavo_bookie_repair_conflicts_total"][()] == 3
    assert found["octavo_bookie_repair_entries_short_total"][()] == 2
    ledgers = {state: number for (state,), number in found["octavo_bookie_repair_ledgers"].items() if number}
    assert ledgers == {"queued": 7, "short": 1}
    assert {one: number for (one,), number in found["octavo_bookie_repair_bookies"].items() if number} == {"lost": 1}
    assert {one for (one,) in found["octavo_bookie_repair_bookies"]} == {one.value for one in Condition}
    classes = {one.value for one in BlockedClass}
    assert {one for (one,) in found["octavo_bookie_repair_ledgers"]} == {"queued", "copying"} | classes
    assert found["octavo_bookie_repair_suspended"] == {("brake",): 0, ("paused",): 1}
    assert found["octavo_bookie_repair_waiting_since_seconds"][()] == 1.5
