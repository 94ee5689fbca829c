"""Work that goes on for as long as a bookie runs: an error ends it neither unseen nor for good (rule A12)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog

log = structlog.get_logger("octavo.repair")

RESTART_SECONDS_MIN: Final = 1.0
"""Pause before work that has failed begins again; it doubles while the work fails at once each time."""

RESTART_SECONDS_MAX: Final = 60.0


async def keep_running(what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run ``work`` until cancelled. If it fails it is logged, as ``what``, and begun again after a pause.

    One part of repair thus never ends another one: a document that cannot be written stops neither the copies that this
    bookie makes nor those that it serves.
    """
    loop = asyncio.get_running_loop()
    pause_seconds = RESTART_SECONDS_MIN
    while True:
        begun_at = loop.time()
        try:
            await work()
        except Exception:
            log.exception("a part of repair has failed: it begins again", part=what, pause_seconds=pause_seconds)
        if loop.time() - begun_at >= RESTART_SECONDS_MAX:
            pause_seconds = RESTART_SECONDS_MIN
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, RESTART_SECONDS_MAX)
