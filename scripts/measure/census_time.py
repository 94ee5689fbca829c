"""Measure the auditor's index of ledgers: its memory, and the time of its work, without a metadata store or with one.

census_time.py [--ledgers 1000000] [--bookies 10] [--metadata URI]

With ``--metadata`` the ledgers are created in an empty metadata store first, and the auditor's first round, which reads
every ledger, and a round without changes are measured on it.

Every ledger is closed and names three bookies. Work is done in steps, and between them the auditor's bookie serves its
clients: the longest step is the longest time for which they wait.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import LedgerMetadata, MetadataStore, open_metadata_store
from octavo.metadata.cluster.repair_states import RepairStates
from octavo.metadata.ledger.model import Fragment, LedgerState
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.repair.audit.rounds import Rounds
from octavo.repair.base.census import Census, Round, Seen, Steps
from octavo.repair.base.settings import RepairSettings

CREATES_AT_ONCE = 64
"""Ledgers created at the same time."""


def timed(name: str, steps: Steps[Any], figures: dict[str, Any]) -> None:
    """Do the work; note how long it and its longest step took."""
    longest, begun = 0.0, time.perf_counter()
    while True:
        step_begun = time.perf_counter()
        try:
            next(steps)
        except StopIteration:
            break
        finally:
            longest = max(longest, time.perf_counter() - step_begun)
    seconds = time.perf_counter() - begun
    figures[name] = {"seconds": round(seconds, 3), "longest_step_ms": round(1000 * longest, 1)}


def take_round(census: Census, ledger_ids: Iterable[int], members: list[frozenset[BookieId]]) -> Round:
    """List the ledgers, and read those that a round reads."""
    found = Round()
    for number in ledger_ids:
        ledger_id = LedgerId(number)
        found.list(ledger_id)
        if census.must_read(ledger_id):
            found.note(ledger_id, Seen(members[number % len(members)], closed=True, spare_copies=1))
    return found


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--bookies", type=int, default=10)
    parser.add_argument("--metadata", help="URI of an empty metadata store")
    arguments = parser.parse_args()
    if arguments.metadata:
        print(json.dumps(asyncio.run(measure_store(arguments.metadata, arguments)), indent=1))
        return 0
    count, rng = arguments.ledgers, random.Random(1)
    names = [BookieId(f"bookie-{number}") for number in range(arguments.bookies)]
    members = [frozenset(rng.sample(names, 3)) for _ in range(1009)]
    figures: dict[str, Any] = {"ledgers": count, "resident_megabytes_before": _resident_megabytes()}
    census = Census()
    timed("first_round", census.apply(take_round(census, range(count), members)), figures)
    figures["index_megabytes"] = round(census.memory_bytes / 1e6, 1)
    timed("round_without_changes", census.apply(take_round(census, range(count), members)), figures)
    timed("round_with_100_new_and_100_deleted",
          census.apply(take_round(census, range(100, count + 100), members)), figures)  # fmt: skip
    timed("queue_after_the_loss_of_a_bookie", census.candidates({names[0]: 0}), figures)
    timed("figures_of_bookies", census.counts({names[0]}), figures)
    figures["resident_megabytes_max"] = _resident_megabytes()
    print(json.dumps(figures, indent=1))
    return 0


async def measure_store(uri: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Create the ledgers, and take the first rounds of an auditor."""
    async with await open_metadata_store(uri, create=True) as store:
        begun = time.perf_counter()
        await create_ledgers(store, arguments.ledgers, arguments.bookies)
        figures: dict[str, Any] = {"ledgers": arguments.ledgers, "create_seconds": _since(begun)}
        figures["resident_megabytes_before"] = _resident_megabytes()
        pool = ConnectionPool(store, cluster_id=await store.cluster_id(), options=ClientOptions(), rng=random.Random(2))
        try:
            # Members are asked what they lack in turn, which takes check_days: here, next to none of them.
            settings = RepairSettings(audit_seconds=0.001, check_days=1e6)
            rounds = Rounds(SimpleNamespace(store=store), pool, settings)
            for name in ("first_round", "round_without_changes"):
                begun, processor = time.perf_counter(), time.process_time()
                await rounds.take_round(RepairStates(), ())
                figures[name] = {
                    "seconds": _since(begun),
                    "processor_seconds": round(time.process_time() - processor, 2),
                }
        finally:
            await pool.close()
        figures["index_megabytes"] = round(rounds.census.memory_bytes / 1e6, 1)
        figures["resident_megabytes_max"] = _resident_megabytes()
        return figures


async def create_ledgers(store: MetadataStore, count: int, bookies: int) -> None:
    """Closed ledgers of ten entries with E = Qw = 3."""
    names, rng = [BookieId(f"bookie-{number}") for number in range(bookies)], random.Random(1)
    numbers = iter(range(count))

    async def create_some() -> None:
        for _ in numbers:
            await store.create_ledger(
                LedgerMetadata(
                    ledger_id=await store.allocate_ledger_id(),
                    state=LedgerState.CLOSED,
                    ensemble_size=3,
                    write_quorum=3,
                    ack_quorum=2,
                    fragments=(Fragment(EntryId(0), tuple(rng.sample(names, 3)), 0),),
                    last_entry_id=EntryId(9),
                    length=10_240,
                    digest=Digest.CRC32C,
                    created_at=datetime(2026, 1, 1, tzinfo=UTC),
                    verifier=bytes(32),
                    salt=bytes(16),
                )
            )

    await asyncio.gather(*(create_some() for _ in range(CREATES_AT_ONCE)))


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)


def _resident_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
