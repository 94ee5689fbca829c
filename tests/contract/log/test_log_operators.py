"""What operators do to a log: they change its retention. And in which ledgers positions are."""

import pytest
from support.clusters.log_cluster import LogCluster

import octavo
from octavo import TruncatedError


async def test_retention_of_an_existing_log_is_replaced(logs: LogCluster) -> None:
    log = await logs.log()
    assert (await log.status()).retention == octavo.Retention()
    await log.set_retention(octavo.Retention(bytes=1))
    async with log.lead() as writer:
        for _ in range(5):
            await writer.add(b"x")
            await writer.roll()
    assert await log.retain() > 0
    await log.set_retention(octavo.Retention(cursors=True))
    assert (await log.status()).retention == octavo.Retention(cursors=True)


async def test_extents_tell_in_which_ledger_each_position_is(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for n in range(7):
            await writer.add(b"%d" % n)
            if n % 3 == 2:
                await writer.roll()
    extents = await log.extents(1, 6)
    positions = [position for one in extents for position in range(one.first, one.last + 1)]
    assert positions == list(range(1, 7))
    for extent in extents:
        for entry in await log.read(extent.first, extent.last):
            assert (entry.ledger_id, entry.entry_id + extent.base) == (extent.ledger_id, entry.position)
    with pytest.raises(octavo.NoSuchEntryError):
        await log.extents(0, 7)
    await log.truncate(2)
    with pytest.raises(TruncatedError):
        await log.extents(1, 3)
