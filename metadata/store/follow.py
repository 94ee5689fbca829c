"""Following one value of the metadata for as long as the store is open, whatever happens to it."""

import asyncio
from collections.abc import Awaitable, Callable

from octavo.metadata.store.values import Watch
from octavo.protocol.errors import ClientClosedError, OctavoError


async def follow[T](
    watch: Callable[[], Watch[T]],
    take: Callable[[T], Awaitable[None]],
    *,
    on_error: Callable[[OctavoError], None],
    retry_seconds: float,
) -> None:
    """Hand the value, and the latest one after every change, to ``take``. Returns when the store is closed.

    Other Octavo errors, of the store (:class:`MetadataError`: the value cannot be understood) or of ``take``, go to
    ``on_error``. The value is read again ``retry_seconds`` later, and is handed over even if it is the same.
    """
    while True:
        try:
            async with watch() as values:
                async for value in values:
                    await take(value)
        except ClientClosedError:
            return
        except OctavoError as error:
            on_error(error)
        await asyncio.sleep(retry_seconds)
