"""The gateways of a cluster: this one, and those that others run (rule K9).

A gateway holds two locks in the metadata store, in one session with the locks of all logs that it leads:

========================  =============================================================================================
lock                      means
========================  =============================================================================================
`kafka/nodes/N`           it is the gateway with the number N, by which clients know it. Held until it has ended
`kafka/gateways/N`        it takes part: it leads the logs of which it is the choice. Its holder names the address at
                          which clients reach it. Given back first, when the gateway ends in order: the others then ask
                          for the logs that it still leads
========================  =============================================================================================

The session ends as a whole. So while the lock of its number lives, by the clock of its own process, no other gateway
can hold the lock of a log that this one leads.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, Self

from octavo.gateway.leading.choice import chosen
from octavo.metadata import MetadataStore
from octavo.metadata.store.values import Lease

GATEWAYS_MAX: Final = 16
"""Of a cluster. Each watches the others."""


class GatewayAddress(NamedTuple):
    """A gateway as clients know it."""

    node_id: int
    host: str
    port: int


def node_lock(node_id: int) -> str:
    """The lock of the gateway with this number."""
    return f"kafka/nodes/{node_id}"


def gateway_lock(node_id: int) -> str:
    """The lock that a gateway holds while it takes part."""
    return f"kafka/gateways/{node_id}"


def _address_in(holder: str) -> tuple[str, int]:
    """Host and port of the holder of a gateway's lock."""
    host, _, port = holder.partition(" ")[0].rpartition(":")
    return host, int(port)


class RegisteredGateway(NamedTuple):
    """A gateway that takes part, for a program that is none."""

    address: GatewayAddress
    name: str
    """The holder of the locks of the logs that it leads."""


async def registered(store: MetadataStore) -> list[RegisteredGateway]:
    """The gateways of a cluster that take part.

    Raises:
        OctavoError: The metadata store does not answer.
    """
    found = []
    for node_id in range(1, GATEWAYS_MAX + 1):
        holder = await store.read_lock(gateway_lock(node_id))
        if holder is not None:
            address, _, name = holder.holder.partition(" ")
            found.append(RegisteredGateway(GatewayAddress(node_id, *_address_in(address)), name))
    return found


class Gateways:
    """See the module. Made by :meth:`enter`."""

    def __init__(self, store: MetadataStore, name: str, node_id: int, lease: Lease) -> None:
        self._store = store
        self._name = name
        self.node_id = node_id
        """The number of this gateway."""
        self._lease = lease
        self._part: Lease | None = None
        """While it takes part."""
        self._others: dict[int, GatewayAddress] = {}
        self._own: GatewayAddress | None = None
        self._present: dict[int, GatewayAddress] = {}
        self._choices: dict[str, int | None] = {}
        self._changed = asyncio.Event()
        self._watching: set[asyncio.Task[None]] = set()

    @classmethod
    async def enter(cls, store: MetadataStore, name: str) -> Self:
        """Take a number, the lowest that is free. Waits if all are taken.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        for node_id in range(1, GATEWAYS_MAX + 1):
            lease = await store.try_lock(node_lock(node_id), name)
            if lease is not None:
                return cls(store, name, node_id, lease)
        return cls(store, name, 1, await store.lock(node_lock(1), name))

    async def take_part(self, host: str, port: int) -> None:
        """Lead what falls to this gateway, from now on. Clients reach it at this address.

        A gateway that is registered with this address was killed, since this one listens there now. So this one waits
        until that one's time is over: clients cannot tell the two apart.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        for node_id in self._other_numbers():
            await self._wait_for_another_address(node_id, (host, port))
        for node_id in self._other_numbers():
            holder = await self._store.read_lock(gateway_lock(node_id))
            self._heard(node_id, None if holder is None else holder.holder)
        self._part = await self._store.lock(gateway_lock(self.node_id), f"{host}:{port} {self._name}")
        self._own = GatewayAddress(self.node_id, host, port)
        self._note_change()
        loop = asyncio.get_running_loop()
        self._watching = {loop.create_task(self._watch(node_id)) for node_id in self._other_numbers()}

    async def _wait_for_another_address(self, node_id: int, address: tuple[str, int]) -> None:
        async with self._store.watch_lock(gateway_lock(node_id)) as watch:
            async for holder in watch:
                if holder is None or _address_in(holder.holder) != address:
                    return

    def _other_numbers(self) -> list[int]:
        return [node_id for node_id in range(1, GATEWAYS_MAX + 1) if node_id != self.node_id]

    async def _watch(self, node_id: int) -> None:
        async with self._store.watch_lock(gateway_lock(node_id)) as watch:
            async for holder in watch:
                self._heard(node_id, None if holder is None else holder.holder)

    def _heard(self, node_id: int, holder: str | None) -> None:
        before = self._others.pop(node_id, None)
        if holder is not None:
            self._others[node_id] = GatewayAddress(node_id, *_address_in(holder))
        if self._others.get(node_id) != before:
            self._note_change()

    def _note_change(self) -> None:
        own = {} if self._own is None else {self.node_id: self._own}
        self._present = dict(sorted((self._others | own).items()))
        self._choices.clear()
        self._changed.set()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether no other gateway can lead what this one leads, by the clock of this process."""
        return not self._lease.lost

    @property
    def present(self) -> Mapping[int, GatewayAddress]:
        """The gateways that take part, by their numbers. Not to be changed."""
        return self._present

    def choice(self, log_name: str) -> GatewayAddress | None:
        """The gateway that is to lead a log; None: no gateway takes part, or it would be this one and its time is
        over."""
        if log_name not in self._choices:
            self._choices[log_name] = chosen(log_name, self._present)
        node_id = self._choices[log_name]
        if node_id is None or (node_id == self.node_id and not self.is_current):
            return None
        return self._present[node_id]

    def is_own(self, log_name: str) -> bool:
        """Whether this gateway is to lead a log."""
        choice = self.choice(log_name)
        return choice is not None and choice.node_id == self.node_id

    async def follow(self, on_change: Callable[[], object]) -> None:
        """Call ``on_change`` after gateways have come or gone, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            on_change()

    @property
    def watching(self) -> Collection[asyncio.Task[None]]:
        """The tasks that watch the other gateways, while this one takes part. None of them ends by itself."""
        return self._watching

    async def wait_lost(self) -> None:
        """Return once another gateway may lead what this one leads."""
        await self._lease.wait_lost()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Take part no more. What this gateway leads, it leads until it gives it up."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        self._own = None
        self._note_change()
        if self._part is not None:
            await self._part.release()

    async def close(self) -> None:
        """Give the number back."""
        await self._lease.release()
