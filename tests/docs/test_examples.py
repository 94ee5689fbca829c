"""Every example in a public docstring runs, and prints what it says."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from octavo.metadata import MetadataStore
from octavo.metadata.connect import open_metadata_store
from support.clusters.fake_bookie import registered_bookies
from support.clusters.log_cluster import QUICK
from support.docstring_examples import examples_in, play, public_objects

import octavo
from octavo import metrics

URI = "sqlite:///octavo-data/metadata.db"
"""What examples connect to."""

THREE = [b"first", b"second", b"third"]

STORE = {
    f"MetadataStore.{name}".removesuffix("."): value
    for name, value in {"": MetadataStore, **vars(MetadataStore)}.items()
    if not name.startswith("_")
}
METRICS = {"register": metrics.register, "instrument_otel": metrics.instrument_otel}
EXAMPLES = {
    name: found
    for name, value in [*public_objects(), *STORE.items(), *METRICS.items()]
    if (found := examples_in(getattr(value, "__doc__", None) or ""))
}


MADE_BY = {
    "AddStatistics": "LogWriter",
    "LedgerWriterStatistics": "LedgerWriter",
    "LogStatistics": "Log",
    "CursorState": "Log",
    "Entry": "LedgerReader",
    "EntryBatch": "LedgerReader",
    "Fragment": "LedgerReader",
    "LedgerMetadata": "LedgerReader",
    "LedgerState": "LedgerReader",
    "Gap": "Log",
    "LogEntry": "Log",
    "LogExtent": "Log",
    "LogStatus": "Log",
    "SegmentStatus": "Log",
    "LogWriterStatistics": "LogWriter",
    "ReaderStatistics": "LedgerReader",
    "ReplicationStatistics": "LedgerWriter",
}
"""The classes whose objects give these values: their examples begin alike."""


@contextlib.asynccontextmanager
async def given(client: octavo.Client, stack: contextlib.AsyncExitStack, name: str) -> AsyncIterator[dict[str, Any]]:
    """What the examples of a class begin with."""
    kind = name.partition(".")[0]
    kind = MADE_BY.get(kind, kind)
    names: dict[str, Any] = {"octavo": octavo, "client": client}
    if kind in {"Log", "LogWriter", "Cursor"}:
        names["log"] = log = await stack.enter_async_context(client.create_log("orders"))
        if kind == "LogWriter":
            names["writer"] = await stack.enter_async_context(log.lead())
        else:
            async with log.lead() as writer:
                await writer.add_many(THREE)
        if kind == "Cursor":
            names["cursor"] = await log.cursor("billing")
    elif kind == "LedgerWriter":
        names["ledger"] = await stack.enter_async_context(client.create_ledger())
    elif kind == "ExplicitIdWriter":
        names["ledger"] = await stack.enter_async_context(client.create_ledger(ids="explicit"))
    elif kind == "LedgerReader":
        async with client.create_ledger() as ledger:
            await ledger.add_many(THREE)
        names["reader"] = await stack.enter_async_context(client.open_ledger(ledger.id))
    yield names


async def clear(client: octavo.Client) -> None:
    """Delete all logs and ledgers."""
    for log_name in [log_name async for log_name in client.list_logs()]:
        await client.delete_log(log_name)
    for ledger_id in [ledger_id async for ledger_id in client.list_ledgers()]:
        await client.delete_ledger(ledger_id)


async def test_every_example_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "octavo-data").mkdir()
    wrong: dict[str, list[str]] = {}
    async with await open_metadata_store(URI, create=True) as store, registered_bookies(store, 3):
        for name, examples in EXAMPLES.items():
            async with contextlib.AsyncExitStack() as stack:
                client = await stack.enter_async_context(octavo.connect(URI, **QUICK))
                async with given(client, stack, name) as names:
                    differences = await play(examples, names)
            async with octavo.connect(URI, **QUICK) as client:
                await clear(client)
            if differences:
                wrong[name] = differences
    assert wrong == {}
