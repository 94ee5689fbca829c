"""A consumer of a change feed, which goes on where it was when it is started again.

    change_feed.py URI LOG CONSUMER        prints each change until it is interrupted

The cursor advances after a change has been handled, and is stored about once a second. So a consumer that is killed
may handle a change twice, and never misses one: handle changes so that repeating one does no harm, here by its
position.
"""

import asyncio
import contextlib
import sys
from contextlib import aclosing

import octavo


async def handle(position: int, change: bytes) -> None:
    """Whatever the consumer does with a change."""
    print(position, change.decode(), flush=True)


async def main(uri: str, name: str, consumer: str) -> None:
    """Follow the log from the consumer's cursor."""
    async with octavo.connect(uri) as client, client.open_log(name) as log:
        cursor = await log.cursor(consumer)
        async with aclosing(cursor.follow(on_truncated="skip")) as changes:
            async for change in changes:
                if isinstance(change, octavo.Gap):  # retention was faster than this consumer
                    print(f"missed {change.first} to {change.last}", file=sys.stderr)
                    await cursor.advance(change.last + 1)
                else:
                    await handle(change.position, change.payload)
                    await cursor.advance(change.position + 1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
