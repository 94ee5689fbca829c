"""How the cluster sees a bookie: its registration, which follows the bookie's state and the free space of its disks."""

import contextlib
import random
from collections.abc import Callable
from functools import partial

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.free_space import FreeSpaceMonitor
from octavo.bookie.identity.incarnation import Incarnation, confirm_identity
from octavo.bookie.registration import Registrar
from octavo.bookie.server.service import BookieService
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.disk_watch import DiskState
from octavo.metadata import BookieRegistration, BookieState, MetadataStore
from octavo.protocol.ids import BookieId


class Presence:
    """See the module. Whatever changes the registration announces it; before :meth:`start` nothing is announced."""

    def __init__(
        self,
        config: BookieConfig,
        service: BookieService,
        storage: Storage,
        store: MetadataStore,
        *,
        address: str,
        rng: random.Random,
        incarnation: Incarnation,
        lost: Callable[[BaseException], None],
    ) -> None:
        """``lost`` is told why the bookie will not be registered any more: its id belongs to another."""
        self._config = config
        self._service = service
        self._address = address
        self._lost = lost
        self._registrar = Registrar(
            store,
            self.registration,
            rng,
            confirm=partial(confirm_identity, store, incarnation),
            registered=service.standing.registered,
            lost=self._end,
        )
        self._free_space = FreeSpaceMonitor(storage.space.largest, self._registrar.announce)

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Register the bookie; ``stack`` unregisters it. Raises what the metadata store raises."""
        stack.push_async_callback(self._free_space.stop)
        await self._free_space.start()
        stack.push_async_callback(self._registrar.stop)
        await self._registrar.start()

    def _end(self, error: BaseException) -> None:
        self._service.standing.lost()
        self._lost(error)

    def registration(self) -> BookieRegistration:
        """The registration as it should be now."""
        service, identity = self._service, self._service.identity
        return BookieRegistration(
            bookie_id=BookieId(identity.bookie_id),
            address=self._address,
            state=BookieState.READ_ONLY if service.read_only or service.avoid_placement else BookieState.WRITABLE,
            version=identity.software,
            boot_id=identity.boot_id,
            rack=self._config.rack,
            host_id=self._config.registered_host_id,
            free_bytes=self.free_bytes,
            tls=self._config.tls,
        )

    @property
    def registered(self) -> bool:
        """Whether the bookie is registered, as far as it can tell."""
        return self._registrar.registered

    @property
    def free_bytes(self) -> int | None:
        """Free space that the registration states; None while it cannot be read."""
        return self._free_space.reported_bytes

    async def announce(self) -> None:
        """Update the registration, because the state of the bookie has changed."""
        await self._registrar.announce()

    async def note_disks(self, disks: DiskState) -> None:
        """Make the bookie read-only or writable, as its disks require."""
        self._service.note_disks(low=bool(disks.warned), read_only=disks.read_only, out_of_space=disks.out_of_space)
        await self.announce()

    async def switch_read_only(self, reason: str | None) -> None:
        """Make the bookie read-only for this reason of its operator, or with None as its disks allow."""
        self._service.switch_read_only(reason)
        await self.announce()
