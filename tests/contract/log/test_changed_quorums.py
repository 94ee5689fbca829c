"""A leader changes the quorums of a log, on every layout and metadata driver (rule T13)."""

import pytest
from octavo.protocol.quorums import Quorums
from support.clusters.log_cluster import LogCluster, collect

from octavo import InvalidArgumentError


async def test_the_quorums_of_a_stream_can_be_changed_and_a_chain_says_that_it_has_none_to_change(
    logs: LogCluster,
) -> None:
    log = await logs.log()
    reader = await (await logs.client()).open_log("orders")
    async with log.lead() as writer:
        await writer.add(b"0")
        if logs.layout == "chain":
            with pytest.raises(InvalidArgumentError, match="only logs with the layout stream"):
                await writer.change(ensemble_size=2, write_quorum=2)
        else:
            await writer.change(ensemble_size=2, write_quorum=2)
        await writer.add(b"1")
        if logs.layout == "stream":
            await writer.change(write_quorum=1, ack_quorum=1)
        await writer.add(b"2")
    async with log.lead() as second:
        await second.add(b"3")
    quorums = Quorums(3, 3, 2) if logs.layout == "chain" else Quorums(2, 1, 1)
    assert (await reader.status()).quorums == quorums
    assert await collect(reader, 0, 4) == [b"0", b"1", b"2", b"3"]
    await log.truncate(2)
    assert [entry.payload async for entry in log.entries()] == [b"2", b"3"]
    await (await logs.client()).delete_log("orders")
    assert not await logs.ledgers()
