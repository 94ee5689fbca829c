"""The lock of a log, as its leader holds it: it says how it was lost, and can be got again (rule P18)."""

from collections.abc import Callable

from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Lease, LeaseEnd


class LogLock:
    """A :class:`~octavo.metadata.store.store.Lease` on the lock ``name`` for this holder, or one after another."""

    def __init__(self, store: MetadataStore, name: str, holder: str, lease: Lease) -> None:
        """``lease``: on the lock, as just got."""
        self._store = store
        self._name = name
        self._holder = holder
        self._lease = lease

    @property
    def lost(self) -> bool:
        """Whether it is not held any more, as far as this process can tell."""
        return self._lease.lost

    @property
    def loss(self) -> LeaseEnd | None:
        """How it was lost."""
        return self._lease.loss

    @property
    def fencing_number(self) -> int:
        """That of the present lease."""
        return self._lease.fencing_number

    async def wait_lost(self) -> None:
        """Return once the present lease is lost."""
        await self._lease.wait_lost()

    def when_lost(self, act: Callable[[], object]) -> None:
        """Call ``act`` once the present lease is lost."""
        self._lease.when_lost(act)

    async def release(self) -> None:
        """Give the lock back, if it is held."""
        await self._lease.release()

    async def get_again(self) -> bool:
        """Get the lock once more, if it is free and no other client waits for it. Raises
        :class:`MetadataUnavailableError`."""
        lease = await self._store.try_lock(self._name, self._holder)
        if lease is not None:
            self._lease = lease
        return lease is not None

    async def is_free(self) -> bool:
        """Whether no client has the lock now. Raises :class:`MetadataUnavailableError`."""
        return await self._store.read_lock(self._name) is None
