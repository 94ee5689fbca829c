"""Keeps a bookie registered: registers it, does so again whenever its lease is lost, and unregisters it at the end.

A metadata store that does not answer never ends a bookie: what it holds can be read and written without the store, and
an outage of the store must not take every bookie down at once. The bookie goes on serving and registers again once the
store is back.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog
from octavo.metadata import BookieLease, BookieRegistration, MetadataStore
from octavo.protocol.errors import ClientClosedError, LeaseLostError, OctavoError

log = structlog.get_logger("octavo.bookie")

RETRY_SECONDS_FIRST = 0.2
RETRY_SECONDS_MAX = 5.0
"""Back-off between attempts to register, doubled each time, with jitter: bookies must not all retry at once."""


RELEASE_SECONDS_MAX = 2.0
"""Time that a stopping bookie gives the store to take the registration back: a supervisor kills what does not stop
within seconds, and without an answer the lease expires by itself."""


class Registrar:
    """The supervisor of one bookie's registration. ``current`` returns the registration as it should be now."""

    def __init__(self, store: MetadataStore, current: Callable[[], BookieRegistration], rng: random.Random) -> None:
        self._store = store
        self._current = current
        self._rng = rng
        self._lease: BookieLease | None = None
        self._told: BookieRegistration | None = None
        """What the store was told last."""
        self._announcing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.release_seconds_max = RELEASE_SECONDS_MAX

    @property
    def registered(self) -> bool:
        """Whether the bookie is registered, as far as it can tell."""
        return self._lease is not None and not self._lease.lost

    async def start(self) -> None:
        """Register. Raises what the first attempt raises; from then on the registration is kept in the background."""
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def announce(self) -> None:
        """Update the registration. If the bookie is not registered, it is about to be, with what is current then. One
        update at a time: otherwise an older one could come last, and stay."""
        async with self._announcing:
            if self._lease is None or self._lease.lost:
                return
            told = self._current()
            with contextlib.suppress(LeaseLostError):
                await self._lease.update(told)
                self._told = told

    async def stop(self) -> None:
        """Unregister. If the store does not answer, the lease expires instead."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease is not None:
            with contextlib.suppress(OctavoError, TimeoutError):
                async with asyncio.timeout(self.release_seconds_max):
                    await self._lease.release()

    async def _register(self) -> None:
        told = self._current()
        self._lease = await self._store.register_bookie(told)
        self._told = told

    async def _keep(self) -> None:
        while await self._try(self._catch_up):
            assert self._lease is not None
            await self._lease.wait_lost()
            log.warning("registration lost", remedy="registering again")
            if not await self._try(self._register):
                return
            log.info("registered again")

    async def _catch_up(self) -> None:
        """Announce what has changed while the bookie was being registered: there was nothing to update then."""
        if self._told != self._current():
            await self.announce()

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Repeat this until it succeeds; False if the store is closed."""
        delay = RETRY_SECONDS_FIRST
        while True:
            try:
                await step()
            except ClientClosedError:
                return False
            except OctavoError as error:
                log.warning("cannot register", error=type(error).__name__, reason=error.message)
            else:
                return True
            await asyncio.sleep(delay * self._rng.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_SECONDS_MAX)
