"""What a handle on a log says after another client has deleted the log, on every layout."""

import pytest
from support.clusters.log_cluster import LogCluster

from octavo import NoSuchLogError


@pytest.mark.parametrize("created_again", [False, True])
async def test_a_handle_on_a_deleted_log_says_so(logs: LogCluster, *, created_again: bool) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"x")
    client = await logs.client()
    await client.delete_log("orders")
    if created_again:
        await client.create_log("orders", layout=logs.layout)  # type: ignore[arg-type]
    with pytest.raises(NoSuchLogError):
        await log.lead()
    with pytest.raises(NoSuchLogError):
        await log.take_over()
    with pytest.raises(NoSuchLogError):
        await log.truncate(1)
    with pytest.raises(NoSuchLogError):
        await log.retain()
    with pytest.raises(NoSuchLogError):
        await log.refresh()
