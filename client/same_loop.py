"""A client and what it made belong to the event loop in which it was made.

Their futures, timers and connections do. In another loop a call would wait for ever, or would change what the first
loop's thread is changing.
"""

import asyncio

from octavo.protocol.errors import InvalidArgumentError


def check_loop(loop: asyncio.AbstractEventLoop, *, may_have_happened: bool = False) -> None:
    """Raise :class:`InvalidArgumentError` unless the caller runs in ``loop``."""
    if asyncio.get_running_loop() is not loop:
        raise InvalidArgumentError(
            "the client was made in another event loop, and it and its writers and readers can be used and closed only "
            "there; make one client in each event loop (each asyncio.run() makes a new one)",
            may_have_happened=may_have_happened,
        )
