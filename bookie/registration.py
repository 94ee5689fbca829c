"""Keeps a bookie registered: registers it, does so again whenever its lease is lost, and unregisters it at the end.

Every registration is preceded by a comparison of the bookie with its cookie in the metadata, and is made only if the
cookie has not changed since (rule B10). A bookie whose id belongs to another by then never registers again.

A metadata store that does not answer never ends a bookie: what it holds can be read and written without the store, and
an outage of the store must not take every bookie down at once. The bookie goes on serving and registers again once the
store is back.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog
from octavo.bookie.identity.incarnation import IdentityLostError
from octavo.metadata import BookieLease, BookieRegistration, MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import ClientClosedError, LeaseLostError, MetadataConflictError, OctavoError

log = structlog.get_logger("octavo.bookie")

RETRY_SECONDS_FIRST = 0.2
RETRY_SECONDS_MAX = 5.0
"""Back-off between attempts to register, doubled each time, with jitter: bookies must not all retry at once."""


RELEASE_SECONDS_MAX = 2.0
"""Time that a stopping bookie gives the store to take the registration back: a supervisor kills what does not stop
within seconds, and without an answer the lease expires by itself."""


class Registrar:
    """The supervisor of one bookie's registration."""

    def __init__(
        self,
        store: MetadataStore,
        current: Callable[[], BookieRegistration],
        rng: random.Random,
        *,
        confirm: Callable[[], Awaitable[Version]],
        registered: Callable[[BookieLease], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        """``current`` returns the registration as it should be now. ``confirm`` compares the bookie with its cookie,
        whose version it returns, or raises :class:`IdentityLostError`. ``registered`` is told of every
        registration, ``lost`` that there will be none any more: the id belongs to another, or this has a defect."""
        self._store = store
        self._current = current
        self._rng = rng
        self._confirm = confirm
        self._registered = registered
        self._lost = lost
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
        self._task.add_done_callback(self._kept)

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
        while True:
            cookie = await self._confirm()
            told = self._current()
            with contextlib.suppress(MetadataConflictError):  # it has changed since: look again, by what
                self._lease = await self._store.register_bookie(told, cookie=cookie)
                break
        self._told = told
        self._registered(self._lease)

    def _kept(self, task: "asyncio.Task[None]") -> None:
        """No bookie goes on as if it were registered again some time."""
        if not task.cancelled() and (defect := task.exception()) is not None:
            log.error("the registration is kept no more, by a defect", exc_info=defect)
            self._lost(defect)

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
            except IdentityLostError as error:
                self._lost(error)
                return False
            except OctavoError as error:
                log.warning("cannot register", error=type(error).__name__, reason=error.message)
            else:
                return True
            await asyncio.sleep(delay * self._rng.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_SECONDS_MAX)
