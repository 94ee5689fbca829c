"""Spark reads ledgers: streams in the same cluster are left out, and named if they are asked for."""

from dataclasses import replace

import pytest
from octavo.metadata import open_metadata_store
from octavo.pipeline.base.cluster import connected, metadata_of_each
from octavo.pipeline.base.options import parse_source_options
from octavo.pipeline.source.discovery import plan_scan
from octavo.pipeline.source.filters import IdBounds
from octavo.protocol.errors import LedgerKindError, NoSuchLedgerError
from octavo.protocol.ids import EntryId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.memory_stores import memory_uri
from support.metadata.stream_metadata import open_stream


async def test_streams_are_left_out_of_scans_and_refused_by_name() -> None:
    uri = memory_uri("left-out")
    async with await open_metadata_store(uri, create=True) as store:
        ids = [await store.allocate_ledger_id() for _ in range(3)]
        await store.create_ledger(open_ledger(ids[0]).closed(EntryId(4), 50))
        await store.create_stream(replace(open_stream(), ledger_id=ids[1]))
        options = parse_source_options({"metadata": uri, "ledgers": "all"})
        async with connected(options.cluster) as client:
            assert [one.ledger_id async for one in metadata_of_each(client, ids)] == [ids[0]]
            with pytest.raises(LedgerKindError):
                await client.ledger_metadata(ids[1])
        planned = await plan_scan(options, IdBounds())
        assert [(one.ledger_id, one.first, one.last) for ranges in planned for one in ranges] == [(ids[0], 0, 4)]
        for missing, refusal in ((ids[1], LedgerKindError), (ids[2], NoSuchLedgerError)):
            with pytest.raises(refusal, match=f"ledger {missing} "):
                await plan_scan(parse_source_options({"metadata": uri, "ledgers": str(missing)}), IdBounds())
