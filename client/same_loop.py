"""A client and what it made belong to the process and to the event loop in which it was made.

Their futures, timers and connections do. In another loop a call would wait for ever, or would change what the first
loop's thread is changing; in a forked child it would write into its parent's connections (rule H1).
"""

import asyncio

from octavo.protocol.errors import InvalidArgumentError
from octavo.security import forks


def check_loop(loop: asyncio.AbstractEventLoop, *, may_have_happened: bool = False) -> None:
    """Raise :class:`ForkedError` in a forked child, and :class:`InvalidArgumentError` unless the caller runs in
    ``loop``."""
    if forks.running_loop() is not loop:
        forks.check_process(loop)
        raise InvalidArgumentError(
            "the client was made in another event loop, and it and its writers and readers can be used and closed only "
            "there; make one client in each event loop (each asyncio.run() makes a new one)",
            may_have_happened=may_have_happened,
        )
