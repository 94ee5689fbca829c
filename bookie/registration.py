"""Keeps a bookie registered: registers it, does so again whenever its lease is lost, and unregisters it at the end.

A metadata store that does not answer never ends a bookie: what it holds can be read and written without the store, and
an outage of the store must not take every bookie down at once. The bookie goes on serving and registers again once the
store is back.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import structlog
from octavo.metadata import BookieLease, BookieRegistration, MetadataStore
from octavo.protocol.errors import ClientClosedError, LeaseLostError, MetadataConflictError, OctavoError

log = structlog.get_logger("octavo.bookie")

RETRY_SECONDS_FIRST = 0.2
RETRY_SECONDS_MAX = 5.0
"""Back-off between attempts to register, doubled each time, with jitter: bookies must not all retry at once."""


class Registrar:
    """The supervisor of one bookie's registration. ``current`` returns the registration as it should be now."""

    def __init__(self, store: MetadataStore, current: Callable[[], BookieRegistration], rng: random.Random) -> None:
        self._store = store
        self._current = current
        self._rng = rng
        self._lease: BookieLease | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def registered(self) -> bool:
        """Whether the bookie is registered, as far as it can tell."""
        return self._lease is not None and not self._lease.lost

    async def start(self) -> None:
        """Register. Raises what the first attempt raises; from then on the registration is kept in the background."""
        self._lease = await self._store.register_bookie(self._current())
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def announce(self) -> None:
        """Update the registration. If the lease is lost, registering again does so."""
        if self._lease is None:
            return
        with contextlib.suppress(LeaseLostError, MetadataConflictError):
            await self._lease.update(self._current())

    async def stop(self) -> None:
        """Unregister. If the store does not answer, the lease expires instead."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease is not None:
            with contextlib.suppress(OctavoError):
                await self._lease.release()

    async def _keep(self) -> None:
        while True:
            assert self._lease is not None
            await self._lease.wait_lost()
            log.warning("registration lost", remedy="registering again")
            delay = RETRY_SECONDS_FIRST
            while True:
                try:
                    self._lease = await self._store.register_bookie(self._current())
                    break
                except ClientClosedError:
                    return
                except OctavoError as error:
                    log.warning("cannot register", error=type(error).__name__, reason=error.message)
                await asyncio.sleep(delay * self._rng.uniform(0.5, 1.0))
                delay = min(delay * 2, RETRY_SECONDS_MAX)
            log.info("registered again")
