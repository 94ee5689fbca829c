"""Streams on bookies as processes, with their real storage: many takeovers, some with a bookie that was killed.

`make soak`: ``OCTAVO_STREAM_TAKEOVERS`` says how many, and ``OCTAVO_BOTH_DRIVERS`` that ZooKeeper has its turn, too.
"""

import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from octavo.metadata import open_metadata_store
from octavo.protocol.entries import Opener, derive_secrets
from octavo.protocol.errors import TermOverError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag
from octavo.protocol.quorums import Quorums
from support.clusters.streams import StreamCluster
from support.clusters.writing import DIGEST, PASSWORD, FakeCluster
from support.commands.processes import BookieProcess
from support.metadata.interposed_store import InterposedStore
from support.metadata.zookeeper import new_cluster_uri

TAKEOVERS = int(os.environ.get("OCTAVO_STREAM_TAKEOVERS", "11"))
DRIVERS = ("sqlite", "zookeeper") if os.environ.get("OCTAVO_BOTH_DRIVERS") else ("sqlite",)
TIMEOUTS: dict[str, Any] = {"recovery_timeout_seconds": 1.0, "request_timeout_seconds": 1.0}
CYCLE = 12
"""Takeovers from one kill of a bookie to the next; for half of them it stays away."""


async def shown(cluster: StreamCluster, ledger_id: LedgerId) -> list[bytes]:
    """The payloads of all positions: each from every bookie of its fragment that has it."""
    client = cluster.client("reader")
    stream = await cluster.stored(ledger_id)
    secrets = derive_secrets(PASSWORD, stream.ledger_id)
    opener = Opener(stream.ledger_id, DIGEST, secrets)
    found: list[bytes] = []
    for fragment in stream.fragments:
        last = stream.last_id_of(fragment)
        assert last is not None, "at rest"
        if last < fragment.first_entry_id:
            continue  # the last term has no entries
        copies: dict[int, set[bytes]] = {}
        for bookie_id in fragment.bookies:
            read = Read(
                *(stream.ledger_id, b"", ReadFlag.NONE, 0, fragment.first_entry_id, last, 1, (0,)),
                *(1000, 1 << 20),
            )
            answer = await client.pool.get(bookie_id).request(read, timeout_seconds=10)
            assert isinstance(answer, ReadAnswer)
            for sealed in answer.entries:
                entry = opener.open(sealed)
                copies.setdefault(entry.entry_id, set()).add(entry.payload)
        for entry_id in range(fragment.first_entry_id, last + 1):
            (payload,) = copies[entry_id]
            found.append(payload)
    return found


@pytest.mark.parametrize("driver", DRIVERS)
async def test_takeovers_with_bookies_that_are_killed_lose_nothing(tmp_path: Path, driver: str) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db" if driver == "sqlite" else new_cluster_uri()
    rng = random.Random(7)
    with ExitStack() as stack:

        def start(name: str) -> BookieProcess:
            bookie = stack.enter_context(BookieProcess(tmp_path / name, "--port", 0, "--metadata", uri))
            return bookie.wait_ready()

        start("a")
        start("b")
        third = start("c")
        async with await open_metadata_store(uri) as store:
            cluster = StreamCluster(FakeCluster(store, InterposedStore(store), [], await store.cluster_id()))
            client = cluster.client("0")
            writer = await client.streams.create(Quorums(3, 3, 2), password=PASSWORD)
            ledger_id = writer.id
            wanted: list[bytes] = []
            for number in range(1, TAKEOVERS + 1):
                payloads = [b"%d/%d" % (number, at) for at in range(rng.randrange(4))]
                positions = await writer.add_many(payloads)
                assert positions.start == len(wanted)
                wanted += payloads
                if number % 3 == 0:
                    await writer.close()
                if number % CYCLE == CYCLE // 2:
                    third.process.kill()
                    third.process.wait()
                elif number % CYCLE == 0:
                    third = start("c")
                # Two hundred clients that try to reach a dead bookie would leave no time for the others.
                before, client = client, cluster.client(str(number), reconnect_delay_seconds_max=0.1, **TIMEOUTS)
                old, writer = writer, await client.take_over(ledger_id)
                assert writer.term == number + 1
                if number % 3:
                    with pytest.raises(TermOverError):
                        await old.add(b"late")
                cluster.fake.pools.remove(before.pool)
                await before.pool.close()
            await writer.close()
            if third.process.poll() is not None:
                start("c")
            assert await shown(cluster, ledger_id) == wanted
            for pool in cluster.fake.pools:
                await pool.close()
