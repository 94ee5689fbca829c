"""Streams on bookies as processes, with their real storage: many takeovers, and one with a bookie that was killed."""

import random
from pathlib import Path

import pytest
from octavo.metadata import open_metadata_store
from octavo.protocol.entries import Opener, derive_secrets
from octavo.protocol.errors import TermOverError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag
from octavo.protocol.quorums import Quorums
from support.interposed_store import InterposedStore
from support.processes import BookieProcess
from support.streams import StreamCluster
from support.writing import DIGEST, PASSWORD, FakeCluster

TAKEOVERS = 12


async def shown(cluster: StreamCluster, ledger_id: LedgerId) -> list[bytes]:
    """The payloads of all positions: each from every bookie of its fragment that has it."""
    client = cluster.client("reader")
    stream = await cluster.stored(ledger_id)
    secrets = derive_secrets(PASSWORD, stream.ledger_id)
    opener = Opener(stream.ledger_id, DIGEST, secrets)
    found: list[bytes] = []
    for fragment in stream.fragments:
        last = stream.last_place_of(fragment)
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


async def test_takeovers_with_bookies_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    with (
        BookieProcess(tmp_path / "a", "--port", 0, "--metadata", uri) as first,
        BookieProcess(tmp_path / "b", "--port", 0, "--metadata", uri) as second,
        BookieProcess(tmp_path / "c", "--port", 0, "--metadata", uri) as third,
    ):
        for bookie in (first, second, third):
            bookie.wait_ready()
        async with await open_metadata_store(uri) as store:
            cluster = StreamCluster(FakeCluster(store, InterposedStore(store), [], await store.cluster_id()))
            rng = random.Random(7)
            writer = await cluster.client("0").streams.create(Quorums(3, 3, 2), password=PASSWORD)
            ledger_id = writer.id
            wanted: list[bytes] = []
            for number in range(1, TAKEOVERS):
                payloads = [b"%d/%d" % (number, at) for at in range(rng.randrange(4))]
                positions = await writer.add_many(payloads)
                assert positions.start == len(wanted)
                wanted += payloads
                if number % 3 == 0:
                    await writer.close()
                if number == TAKEOVERS // 2:
                    third.process.kill()
                    third.process.wait()
                client = cluster.client(str(number), recovery_timeout_seconds=1.0, request_timeout_seconds=1.0)
                old, writer = writer, await client.take_over(ledger_id)
                assert writer.term == number + 1
                if number % 3:
                    with pytest.raises(TermOverError):
                        await old.add(b"late")
            await writer.close()
            with BookieProcess(tmp_path / "c", "--port", 0, "--metadata", uri) as back:
                back.wait_ready()
                assert await shown(cluster, ledger_id) == wanted
            for pool in cluster.fake.pools:
                await pool.close()
