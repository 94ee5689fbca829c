"""Following a value through errors, until the store is closed."""

import asyncio

from octavo.metadata import MetadataStore, Versioned
from octavo.metadata.store.follow import follow
from octavo.protocol.errors import MetadataError, OctavoError
from support.waiting import WAIT_SECONDS, eventually


async def test_a_value_that_cannot_be_used_is_reported_and_the_following_goes_on_until_the_store_is_closed(
    store: MetadataStore,
) -> None:
    taken: list[bytes | None] = []
    errors: list[str] = []

    async def take(found: Versioned[bytes] | None) -> None:
        if found is not None and found.value == b"damaged":
            raise MetadataError("it is damaged")
        taken.append(None if found is None else found.value)

    def on_error(error: OctavoError) -> None:
        errors.append(error.message)

    following = asyncio.ensure_future(
        follow(lambda: store.watch_document("d"), take, on_error=on_error, retry_seconds=0.001)
    )
    await eventually(lambda: taken == [None])
    version = await store.create_document("d", b"damaged")
    await eventually(lambda: errors[:2] == ["it is damaged"] * 2, "the value is read again")
    version = await store.compare_and_set_document("d", b"good", version)
    await eventually(lambda: taken[-1:] == [b"good"])
    await store.compare_and_set_document("d", b"better", version)
    await eventually(lambda: taken[-1:] == [b"better"])
    await store.close()
    await asyncio.wait_for(following, WAIT_SECONDS)
