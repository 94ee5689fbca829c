"""Measure the metadata of a stream with very many fragments, on the SQLite store and on the one in memory.

stream_scale.py [--fragments 100000] [--rounds 30] [--stores memory sqlite] [--data-dir DIR]

No bookie is needed. The stream is grown as its writers grow it: 64 rolls, with a takeover now and then, between two
moments at which old fragments are paged out. Then it is opened, sought in and truncated. Each round of opening and
seeking has a handle of its own, which has read nothing yet. Each line of the result is JSON.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.stream.encoding import encode_stream
from octavo.metadata.stream.model import StreamFragment, StreamKey, StreamMetadata
from octavo.metadata.stream.pages import MOVED_FRAGMENTS_MAX, pages_prefix
from octavo.metadata.updates.paging import StreamPages, tidy_stream, truncate_stream
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place

_ENTRIES = 1_000_000
"""Of each fragment: 1 GiB of entries of 1 KiB."""

_BYTES = 2**30

_ROLLS_PER_TERM = 500


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Median and maximum."""
    return {"median_ms": round(statistics.median(seconds) * 1000, 2), "max_ms": round(max(seconds) * 1000, 2)}


def bookies_of(number: int) -> tuple[BookieId, ...]:
    """Three of twenty bookies, with names as `octavo up` and the units give them."""
    return tuple(BookieId(f"bookie-{(number + at) % 20}.example:3181") for at in range(3))


def a_stream(ledger_id: LedgerId) -> StreamMetadata:
    """With one fragment."""
    return StreamMetadata(
        ledger_id=ledger_id,
        owner="0" * 32,
        fragments=(
            StreamFragment(
                first_entry_id=place(1, 0),
                first_position=0,
                bookies=bookies_of(0),
                write_quorum=3,
                ack_quorum=2,
                opened_at_ms=1_700_000_000_000,
            ),
        ),
        keys=(StreamKey(digest=Digest.CRC32C, verifier=b"v" * 32, salt=b"s" * 16),),
        created_at=datetime.now(UTC),
        writer_token="0" * 32,
    )


def rolled(stream: StreamMetadata, number: int) -> StreamMetadata:
    """With another fragment, of a new term now and then."""
    last = stream.last_fragment
    following = replace(
        last,
        first_entry_id=EntryId(last.first_entry_id + _ENTRIES),
        first_position=last.first_position + _ENTRIES,
        length_before=last.length_before + _BYTES,
        bookies=bookies_of(number),
        opened_at_ms=last.opened_at_ms + 3_600_000,
    )
    if number % _ROLLS_PER_TERM:
        return stream.with_fragment(following)
    ended = stream.at_rest(EntryId(following.first_entry_id - 1), following.length_before)
    return ended.with_next_term(f"{number:032x}", following)


async def grow(store: MetadataStore, fragments: int) -> tuple[LedgerId, list[float], list[float]]:
    """The stream; the seconds of each write of a root, and those of each time of paging out."""
    ledger_id = await store.allocate_ledger_id()
    await store.create_stream(a_stream(ledger_id))
    known = await store.read_stream(ledger_id)
    writes: list[float] = []
    pagings: list[float] = []
    number = 1
    while number < fragments:
        stream = known.value
        for _ in range(min(MOVED_FRAGMENTS_MAX, fragments - number)):
            stream = rolled(stream, number)
            number += 1
        started = time.perf_counter()
        await store.compare_and_set_stream(stream, known.version)
        written = time.perf_counter()
        known = await tidy_stream(store, ledger_id, writer_token="0" * 32)
        writes.append(written - started)
        pagings.append(time.perf_counter() - written)
    return ledger_id, writes, pagings


async def measure(uri: str, fragments: int, rounds: int) -> dict[str, Any]:
    """All figures of one store."""
    chance = random.Random(1)
    async with await open_metadata_store(uri, create=True) as keeper:
        started = time.perf_counter()
        ledger_id, writes, pagings = await grow(keeper, fragments)
        grown_seconds = time.perf_counter() - started
        root = (await keeper.read_stream(ledger_id)).value
        opens: list[float] = []
        seeks: list[float] = []
        pages_read: list[int] = []
        for _ in range(rounds):
            async with await open_metadata_store(uri) as store:
                started = time.perf_counter()
                stream = (await store.read_stream(ledger_id)).value
                opened = time.perf_counter()
                pages = StreamPages(store)
                await pages.place_at(stream, chance.randrange(stream.start, stream.tail_position))
                opens.append(opened - started)
                seeks.append(time.perf_counter() - opened)
                pages_read.append(pages.pages_read)
        walk_started = time.perf_counter()
        walked = len([span async for span in StreamPages(keeper).spans(root)])
        walk_seconds = time.perf_counter() - walk_started
        started = time.perf_counter()
        middle = await truncate_stream(keeper, ledger_id, root.tail_position // 2 + 7, writer_token="t")
        half_seconds = time.perf_counter() - started
        started = time.perf_counter()
        after = await truncate_stream(keeper, ledger_id, 2**62, writer_token="t")
        rest_seconds = time.perf_counter() - started
        left = [name async for name in keeper.list_documents(pages_prefix(ledger_id))]
        assert walked == fragments, "every fragment is found"
        assert middle.value.start == root.tail_position // 2 + 7, "truncation is exact"
        assert not left, "no page is left"
        assert not after.value.pages, "only the last fragment is left"
    return {
        "store": uri.split(":", maxsplit=1)[0],
        "fragments": walked,
        "pages": len(root.pages),
        "tail_fragments": len(root.fragments),
        "root_bytes": len(encode_stream(root)),
        "open": milliseconds(opens),
        "seek": milliseconds(seeks),
        "pages_read_per_seek": max(pages_read),
        "write_root": milliseconds(writes),
        "page_out": milliseconds(pagings),
        "walk_all_seconds": round(walk_seconds, 2),
        "truncate_half_ms": round(half_seconds * 1000, 1),
        "truncate_rest_ms": round(rest_seconds * 1000, 1),
        "grow_seconds": round(grown_seconds, 1),
    }


def main() -> None:
    """Measure the stores that the command names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fragments", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--stores", nargs="+", choices=("memory", "sqlite"), default=["memory", "sqlite"])
    parser.add_argument("--data-dir", type=Path, help="where the SQLite file is made; default: a temporary directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.data_dir) as directory:
        uris = {"memory": "memory://stream-scale", "sqlite": f"sqlite:///{directory}/metadata.db"}
        for name in arguments.stores:
            figures = asyncio.run(measure(uris[name], arguments.fragments, arguments.rounds))
            sys.stdout.write(json.dumps(figures) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
