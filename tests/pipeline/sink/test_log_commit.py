"""Commits into a log without Spark: each row once and in order, wherever the commit before has died (rule X2)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import override

import pytest
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.pipeline.base.datasets import Tags
from octavo.pipeline.base.errors import DataLossError
from octavo.pipeline.base.log_write_store import LogWrites, clean_log_writes, tag_of
from octavo.pipeline.base.log_writes import LogWrite, State, staged
from octavo.pipeline.base.manifest import PublishedLedger
from octavo.pipeline.base.options import SinkOptions, parse_sink_options
from octavo.pipeline.sink.log_commit import PIECE_ROWS_MAX, PIECES_IN_FLIGHT_MAX, LogCommit, StagedRows, log_commit
from octavo.protocol.errors import InternalError, InvalidArgumentError, OctavoTimeoutError
from support.clusters.reading import Cluster, cluster_of
from support.waiting import WAIT_SECONDS

import octavo

QUERY = "5f0c"
ROWS = [b"row %d" % n for n in range(10)]
WINDOW = octavo.KeyWindow(entries=3)
"""Smaller than any write here: what is in the log is found all the same."""


@dataclass
class World:
    """A cluster with a log, and what Spark does around a commit."""

    cluster: Cluster
    client: octavo.Client
    log: octavo.Log
    options: SinkOptions

    @property
    def store(self) -> MetadataStore:
        return self.cluster.store

    @property
    def writes(self) -> LogWrites:
        return LogWrites(self.client, self.store, self.log.log_id)

    async def stage(
        self, *tasks: Sequence[bytes], batch: int | None = 0, job: str = QUERY, may_repeat: bool = True
    ) -> StagedRows:
        """What an attempt writes: one ledger for each task."""
        ledgers = []
        for rows in tasks:
            tags = {Tags.FOR_LOG: b"orders", Tags.JOB: tag_of(job, batch).encode()}
            async with self.client.create_ledger(custom_metadata=tags) as ledger:
                await ledger.add_many(rows)
            ledgers.append(PublishedLedger(ledger.id, len(rows), ledger.length))
        return StagedRows(job, batch, tuple(ledgers), may_repeat)

    async def commit(self, rows: StagedRows, writes: LogWrites | None = None) -> None:
        """In a client of its own, as each commit is in a process of its own."""
        async with octavo.connect(self.cluster.uri) as client, client.open_log("orders") as log:
            found = LogWrites(client, self.store, log.log_id) if writes is None else writes
            await LogCommit(self.options, client, log, found).commit(rows)

    async def entries(self) -> list[bytes]:
        await self.log.refresh()
        return [entry.payload async for entry in self.log]

    async def staged_ledgers(self) -> set[int]:
        """The ledgers that hold rows for the log."""
        found = set()
        async for ledger_id in self.client.list_ledgers():
            try:
                metadata = await self.client.ledger_metadata(ledger_id)
            except octavo.LedgerKindError:
                continue
            if Tags.FOR_LOG in metadata.custom_metadata:
                found.add(int(ledger_id))
        return found

    async def state(self, job: str = QUERY) -> State | None:
        write, _ = await self.writes.read(job)
        return None if write is None else write.state


@asynccontextmanager
async def world_of(*, window: octavo.KeyWindow | None = WINDOW, **options: str) -> AsyncIterator[World]:
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri) as client,
        client.create_log("orders", keys=window) as log,
    ):
        parsed = parse_sink_options({"metadata": cluster.uri, "log": "orders", **options})
        yield World(cluster, client, log, parsed)


class DiedError(Exception):
    """The driver was killed there."""


class Dying(LogWrites):
    """Dies before or after what it stores for the n-th time, or instead of deleting ledgers."""

    left: list[int]
    after: bool

    @classmethod
    def at(cls, world: World, steps: int, *, after: bool) -> "Dying":
        made = cls(world.client, world.store, world.log.log_id)
        made.left, made.after = [steps], after
        return made

    def _step(self) -> bool:
        self.left[0] -= 1
        return self.left[0] < 0

    @override
    async def store_write(self, write: LogWrite, expected: Version | None) -> bool:
        dies = self._step()
        if dies and not self.after:
            raise DiedError
        done = await super().store_write(write, expected)
        if dies:
            raise DiedError
        return done

    @override
    async def delete(self, ledger_ids: object) -> None:
        if self._step():
            raise DiedError
        await super().delete(ledger_ids)  # type: ignore[arg-type]


async def test_rows_of_all_tasks_are_added_in_order_and_nothing_is_left() -> None:
    async with world_of() as world:
        await world.commit(await world.stage(ROWS[:4], ROWS[4:5], ROWS[5:]))
        assert await world.entries() == ROWS
        assert (await world.state(), await world.staged_ledgers()) == (State.COMPLETE, set())
        await world.commit(await world.stage(ROWS[:2], batch=1))
        await world.commit(await world.stage(batch=2))
        assert await world.entries() == ROWS + ROWS[:2], "equal rows of two batches are two rows"
        keys = [entry.key async for entry in world.log]
        assert keys == [f"spark/{QUERY}/0/{n}" for n in range(10)] + [f"spark/{QUERY}/1/{n}" for n in range(2)]


async def test_more_rows_than_are_under_way_at_a_time_stay_in_order() -> None:
    rows = [b"%d" % n for n in range(2 * PIECES_IN_FLIGHT_MAX * PIECE_ROWS_MAX + 7)]
    async with world_of() as world:
        await world.commit(await world.stage(rows[:50], rows[50:]))
        assert await world.entries() == rows


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("steps", range(5))
async def test_a_commit_that_died_is_repeated_with_other_rows(steps: int, after: bool) -> None:
    """Spark computes the batch anew, in another order: what the first commit has fixed is what counts."""
    async with world_of() as world:
        with pytest.raises(DiedError):
            await world.commit(await world.stage(ROWS[:5], ROWS[5:]), Dying.at(world, steps, after=after))
        again = [*reversed(ROWS)]
        fixed = await world.state() is not None
        await world.commit(await world.stage(again[:3], again[3:]))
        assert await world.entries() == (ROWS if fixed else again)
        assert (await world.state(), await world.staged_ledgers()) == (State.COMPLETE, set())
        await world.commit(await world.stage(ROWS))
        assert len(await world.entries()) == 10, "the batch is complete"


@pytest.mark.parametrize("there", range(11))
@pytest.mark.parametrize("others", [0, 20])
async def test_a_commit_goes_on_behind_the_rows_that_are_there(there: int, others: int) -> None:
    """Also where other leaders have added more entries meanwhile than the window of keys holds."""
    async with world_of() as world:
        rows = await world.stage(ROWS[:5], ROWS[5:])
        async with world.log.lead() as writer:
            await writer.add(b"before")
            write = staged("orders", QUERY, 0, rows.ledgers, may_repeat=True).started(writer.end)
            assert await world.writes.store_write(write, None)
            for row in range(there):
                await writer.add(ROWS[row], key=write.key_of(row))
            for _ in range(others):
                await writer.add(b"of another", key=None)
        await world.commit(await world.stage([*reversed(ROWS)]))
        assert await world.entries() == [b"before", *ROWS[:there], *[b"of another"] * others, *ROWS[there:]]


async def test_a_truncation_that_leaves_no_row_makes_the_write_uncertain() -> None:
    async with world_of() as world:
        rows = await world.stage(ROWS)
        async with world.log.lead() as writer:
            write = staged("orders", QUERY, 0, rows.ledgers, may_repeat=True).started(0)
            assert await world.writes.store_write(write, None)
            for row in range(4):
                await writer.add(ROWS[row], key=write.key_of(row))
        await world.log.truncate(3)
        await world.commit(rows)
        assert await world.entries() == ROWS[3:], "row 3 says that those before it are there"

        rows = await world.stage(ROWS, batch=1)
        write = staged("orders", QUERY, 1, rows.ledgers, may_repeat=True).started(10)
        assert await world.writes.store_write(write, (await world.writes.read(QUERY))[1])
        async with world.log.lead() as writer:
            await writer.add(b"of another")
            await writer.add(b"of another")
        await world.log.truncate(11)
        with pytest.raises(
            DataLossError, match="truncated up to position 11 while a write of 5f0c was under way from 10"
        ):
            await world.commit(rows)
        assert await world.staged_ledgers() == {ledger.ledger_id for ledger in rows.ledgers}


async def test_rows_out_of_order_are_refused() -> None:
    async with world_of() as world:
        rows = await world.stage(ROWS)
        write = staged("orders", QUERY, 0, rows.ledgers, may_repeat=True).started(0)
        assert await world.writes.store_write(write, None)
        async with world.log.lead() as writer:
            await writer.add(ROWS[1], key=write.key_of(1))
        with pytest.raises(InternalError, match="at position 0 is row 1 of 5f0c, where row 0 belongs"):
            await world.commit(rows)


async def test_two_commits_of_one_batch_add_it_once() -> None:
    async with world_of() as world:
        first, second = await world.stage(ROWS), await world.stage([*reversed(ROWS)])
        await asyncio.gather(world.commit(first), world.commit(second))
        assert await world.entries() in (ROWS, [*reversed(ROWS)])
        assert await world.staged_ledgers() == set()


async def test_a_batch_before_that_is_not_complete_is_finished_first() -> None:
    async with world_of() as world:
        with pytest.raises(DiedError):
            await world.commit(await world.stage(ROWS[:3]), Dying.at(world, 1, after=True))
        await world.commit(await world.stage(ROWS[3:], batch=1))
        assert await world.entries() == ROWS


async def test_ledgers_that_were_deleted_are_told() -> None:
    async with world_of() as world:
        rows = await world.stage(ROWS[:5], ROWS[5:])
        with pytest.raises(DiedError):
            await world.commit(rows, Dying.at(world, 1, after=False))
        await world.client.delete_ledger(rows.ledgers[1].ledger_id)
        with pytest.raises(DataLossError, match=f"staged in ledger {rows.ledgers[1].ledger_id}, which was deleted"):
            await world.commit(rows)


async def test_a_job_with_a_name_is_added_once_and_one_without_is_forgotten() -> None:
    async with world_of() as world:
        await world.commit(await world.stage(ROWS, batch=None, job="daily"))
        await world.commit(await world.stage(ROWS, batch=None, job="daily"))
        assert await world.entries() == ROWS
        await world.commit(await world.stage(ROWS, batch=None, job="token", may_repeat=False))
        assert await world.entries() == ROWS + ROWS
        assert await world.state("token") is None
        with pytest.raises(InvalidArgumentError, match="the name of a job and the id of a query"):
            await world.commit(await world.stage(ROWS, batch=0, job="daily"))


async def test_a_commit_waits_for_the_lead_and_then_says_who_is_in_the_way() -> None:
    async with world_of(leadSeconds="1") as world:
        async with world.log.lead() as writer:
            with pytest.raises(OctavoTimeoutError, match="another client has led it for 1 seconds"):
                await world.commit(await world.stage(ROWS))
            committing = asyncio.ensure_future(world.commit(await world.stage(ROWS)))
            await writer.add(b"last")
        async with asyncio.timeout(WAIT_SECONDS):
            await committing
        assert await world.entries() == [b"last", *ROWS]


async def test_an_abort_keeps_what_a_repeated_batch_goes_on_with() -> None:
    async with world_of() as world:
        unfixed = await world.stage(ROWS)
        commit = LogCommit(world.options, world.client, world.log, world.writes)
        await commit.abort(unfixed)
        assert await world.staged_ledgers() == set()
        rows = await world.stage(ROWS)
        with pytest.raises(DiedError):
            await world.commit(rows, Dying.at(world, 1, after=False))
        await commit.abort(rows)
        assert await world.staged_ledgers() == {ledger.ledger_id for ledger in rows.ledgers}
        await world.commit(await world.stage(ROWS[:1]))
        assert await world.entries() == ROWS
        token = await world.stage(ROWS, batch=None, job="token", may_repeat=False)
        with pytest.raises(DiedError):
            await world.commit(token, Dying.at(world, 1, after=False))
        await commit.abort(token)
        assert (await world.state("token"), await world.staged_ledgers()) == (None, set())


async def test_cleaning_keeps_what_may_be_repeated() -> None:
    async with world_of() as world:
        kept = await world.stage(ROWS[:5], ROWS[5:])
        with pytest.raises(DiedError):
            await world.commit(kept, Dying.at(world, 1, after=False))
        token = await world.stage(ROWS, batch=None, job="token", may_repeat=False)
        with pytest.raises(DiedError):
            await world.commit(token, Dying.at(world, 1, after=False))
        failed = await world.stage(ROWS, batch=7)
        young = await clean_log_writes(world.client, world.store, older_than_seconds=3600)
        assert (young.ledger_ids, young.writes) == ((), 0)
        cleaned = await clean_log_writes(world.client, world.store, older_than_seconds=0)
        gone = {ledger.ledger_id for rows in (token, failed) for ledger in rows.ledgers}
        assert (set(cleaned.ledger_ids), cleaned.writes) == (gone, 1)
        await world.commit(kept)
        assert await world.entries() == ROWS
        await world.commit(await world.stage(ROWS, batch=1), None)
        await world.client.delete_log("orders")
        assert (await clean_log_writes(world.client, world.store, older_than_seconds=0)).writes == 1


async def test_a_log_without_keys_is_refused() -> None:
    async with world_of(window=None) as world:
        with pytest.raises(InvalidArgumentError, match="log orders was created without keys"):
            async with log_commit(world.options):
                raise AssertionError
