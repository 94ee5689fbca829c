"""What jobs look at: closed ledgers, and of streams all that has an end; the rest is named (rule X1)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.client.client import Client
from octavo.metadata.updates.page_out import page_out
from octavo.pipeline.base.planning import EntryRange
from octavo.pipeline.base.selection import parse_selection
from octavo.pipeline.jobs.coverage import Coverage, NotCovered, Why, coverage_of, kept_of
from octavo.pipeline.jobs.replicas import Problem
from octavo.pipeline.jobs.verify_read import ReplicaReport, _ReplicaReader, _verify_range, _verify_wanted
from octavo.protocol.ids import LedgerId
from support.clusters.log_cluster import LogCluster, open_log_cluster
from support.metadata.metadata_clusters import MemoryCluster

import octavo


@pytest.fixture
async def streams() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


@pytest.fixture
async def chains() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "chain") as made:
        yield made


async def covered_in(cluster: LogCluster, client: octavo.Client, which: str = "all") -> Coverage:
    selection = parse_selection(which)
    return await coverage_of(client, sorted(await cluster.ledgers()), selection, selection.required)


def positions(coverage: Coverage) -> list[int]:
    """All that are looked at, in order."""
    ranges = [piece.range for piece in coverage.pieces]
    return [at + one.base for one in ranges for at in range(one.first, one.last + 1)]


async def verified(client: Client, coverage: Coverage) -> list[ReplicaReport]:
    """The reports of what a task of ``verify`` does with each piece."""
    reports: list[ReplicaReport] = []
    for piece in coverage.pieces:
        reports += await _verify_wanted(_ReplicaReader(client), piece.range, b"")
    return reports


async def test_ended_terms_of_a_stream_are_looked_at_and_the_running_one_is_named(streams: LogCluster) -> None:
    log = await streams.log()
    async with log.lead() as writer:
        await writer.add_many([b"%d" % number for number in range(10)])
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 5)
        (ledger_id,) = await streams.ledgers()
        client = await streams.client()
        running = await covered_in(streams, client)
        assert positions(running) == list(range(10))
        assert running.not_covered == [NotCovered(ledger_id, 10, Why.RUNNING_TERM)]
        reports = await verified(client, running)
        assert sum(report.entries for report in reports) == 3 * 10
        assert all(report.is_stream and not report.findings for report in reports)
    ended = await covered_in(streams, client)
    assert (positions(ended), ended.not_covered) == (list(range(15)), [])


async def test_a_stream_with_pages_is_looked_at_as_far_as_it_is_kept(streams: LogCluster) -> None:
    log = await streams.log()
    for _ in range(6):
        async with log.lead() as writer:
            await writer.add_many([b"x"] * 3)
    (ledger_id,) = await streams.ledgers()
    client = await streams.client()
    before = await covered_in(streams, client)
    await page_out(streams.store, LedgerId(ledger_id), writer_token="w")
    assert (await streams.root()).pages
    paged = await covered_in(streams, client)
    assert positions(paged) == positions(before) == list(range(18))
    assert sum(report.entries for report in await verified(client, paged)) == 3 * 18
    await log.truncate(4)
    kept = await covered_in(streams, client)
    assert positions(kept) == list(range(4, 18))
    assert sum(report.entries for report in await verified(client, kept)) == 3 * 14
    assert await kept_of(client, ledger_id, before.pieces[0].range.first) is None, "truncated since it was planned"
    part = before.pieces[1].range  # positions 3 to 5
    assert await kept_of(client, ledger_id, part.first) is None, "truncated within its fragment"
    still = await kept_of(client, ledger_id, part.last)
    assert still is not None
    assert still.first_kept == part.first + 1


async def test_of_what_is_truncated_between_the_plan_and_the_end_of_its_reading_nothing_is_a_finding(
    streams: LogCluster,
) -> None:
    log = await streams.log()
    for _ in range(2):
        async with log.lead() as writer:
            await writer.add_many([b"x"] * 4)
    client = await streams.client()
    planned = (await covered_in(streams, client)).pieces[0].range
    whole = await kept_of(client, planned.ledger_id, planned.last)
    assert whole is not None
    await log.truncate(2)
    for bookie in streams.bookies:
        for place in (0, 1):
            del bookie.ledgers[planned.ledger_id].entries[planned.first + place]

    later = await _verify_wanted(_ReplicaReader(client), planned, b"")
    assert [(report.entries, report.findings) for report in later] == [(2, [])] * 3, "planned before the truncation"
    begun = await _verify_range(_ReplicaReader(client), whole.term, planned, b"")
    assert [report.findings for report in begun] == [[]] * 3, "begun before the truncation"
    del streams.bookies[0].ledgers[planned.ledger_id].entries[planned.first + 3]
    found = [report.findings for report in await _verify_range(_ReplicaReader(client), whole.term, planned, b"")]
    assert sorted(found) == [[], [], [(3, 3, Problem.MISSING)]]


async def test_entries_of_a_bookie_that_does_not_answer_are_not_said_to_be_missing(streams: LogCluster) -> None:
    log = await streams.log()
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 4)
    client = await streams.client()
    away = streams.bookies[0]
    await away.stop()
    for report in await verified(client, await covered_in(streams, client)):
        if report.bookie == away.bookie_id:
            assert report.findings == [(0, 3, Problem.UNREACHABLE)]
        else:
            assert (report.entries, report.findings) == (4, [])


async def test_findings_in_a_stream_are_positions(streams: LogCluster) -> None:
    log = await streams.log()
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 4)
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 4)
    client = await streams.client()
    coverage = await covered_in(streams, client)
    ranges: list[EntryRange] = [piece.range for piece in coverage.pieces]
    assert len(ranges) == 2
    ledger = streams.bookies[0].ledgers[ranges[1].ledger_id]
    del ledger.entries[ranges[1].first + 1]
    found = [
        (report.bookie, report.fragment, report.findings)
        for report in await verified(client, coverage)
        if report.findings
    ]
    assert found == [(streams.bookies[0].bookie_id, 4, [(5, 5, Problem.MISSING)])]


async def test_the_open_segment_of_a_chain_and_what_does_not_exist_are_named(chains: LogCluster) -> None:
    log = await chains.log()
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 4)
    async with log.lead() as writer:
        await writer.add(b"y")
        closed, last = sorted(await chains.ledgers())
        client = await chains.client()
        coverage = await covered_in(chains, client)
        assert [piece.range.ledger_id for piece in coverage.pieces] == [closed]
        assert coverage.not_covered == [NotCovered(last, 0, Why.OPEN_LEDGER)]
        missing = await covered_in(chains, client, f"{closed},{last + 5}")
        assert missing.not_covered == [NotCovered(last + 5, 0, Why.GONE)]
        assert not (await covered_in(chains, client, "app=other")).not_covered
