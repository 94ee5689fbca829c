"""The simulated network: TCP connections between machines, with every behaviour that TCP allows.

As in TCP, the bytes of one connection arrive in order, without gaps, once. Everything else may vary: how writes are
split or merged into reads, when bytes arrive, and whether the end of a connection is noticed.

* A *link* leads from one machine to another and has a delay. A blocked link (a partition blocks directions one by one)
  holds data back and delivers it late, after it is unblocked. Connections survive, as in TCP until its retransmissions
  end.
* A connection can be *reset*: each side receives some prefix of the data in flight, then the reset.
* The kernel ends the connections of a killed process. A machine that loses power sends nothing: its peers keep
  half-open connections until the rebooted machine answers one of their packets with a reset.
* Data that a process does not read stays in the socket buffers. When these are full, the sender's transport pauses its
  protocol.
"""

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.engine.loop import EscapedError, Process, SimulationLoop
from simulation.engine.trace import Trace

RETRANSMIT_SECONDS = 1.0
"""Delay before a lost SYN is first sent again; it doubles each time."""

RETRANSMIT_SECONDS_MAX = 8.0

READ_BYTES_MAX = 256 * 1024
"""Largest number of bytes that one read of a socket returns, as in asyncio's transports."""


@dataclass(slots=True)
class NetworkSettings:
    """How the network behaves without faults. Seconds, bytes, chances from 0 to 1."""

    delay_seconds_min: float = 0.0001
    delay_seconds_mean: float = 0.0005
    spike_chance: float = 0.0
    """Chance that a packet is delayed by up to ``spike_seconds`` more."""
    spike_seconds: float = 0.5
    split_chance: float = 0.0
    """Chance that a read returns only part of the data that has arrived."""
    socket_bytes: int = 256 * 1024
    """Bytes that the kernels of both sides together buffer for one direction of a connection."""


@dataclass(slots=True)
class Link:
    """One direction between two machines."""

    blocked: bool = False
    extra_delay_seconds: float = 0.0
    """Largest additional delay of a packet."""
    steady: bool = False
    """Whether every packet has exactly that additional delay, so that the distances between packets stay."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Called once it is unblocked."""


class Address:
    """A machine in the network: one host name, powered on or off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.servers: dict[int, SimulatedServer] = {}
        self.ends: dict[SimulatedTransport, None] = {}
        """Ends of connections here, including half-open ones of earlier boots."""


class Network:
    """All addresses and links. A process is attached to an address when it is created."""

    def __init__(self, loop: SimulationLoop, rng: random.Random, settings: NetworkSettings, trace: Trace) -> None:
        self.loop = loop
        self.rng = rng
        self.settings = settings
        self.trace = trace
        self.addresses: dict[str, Address] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._homes: dict[Process, Address] = {}
        self._ports = 40_000
        loop.connector = self._connect
        loop.listener = self._listen

    # --- for the world ---------------------------------------------------------------------------------------------

    def add_machine(self, name: str) -> Address:
        """The address ``name``, which exists from now on."""
        return self.addresses.setdefault(name, Address(name))

    def attach(self, process: Process, name: str) -> None:
        """Attach ``process`` to the address ``name``. Its connections are ended when it dies."""
        address = self.add_machine(name)
        self._homes[process] = address
        process.on_death.append(lambda: self._process_died(process, address))

    def link(self, source: str, target: str) -> Link:
        """The link from one address to another."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link()
        return link

    def set_blocked(self, source: str, target: str, blocked: bool) -> None:
        """Block or unblock one direction."""
        link = self.link(source, target)
        link.blocked = blocked
        if not blocked:
            waiting, link.waiting = link.waiting, []
            for go_on in waiting:
                go_on()

    def heal(self) -> None:
        """Unblock every link and remove every additional delay."""
        for source, target in list(self._links):
            link = self._links[source, target]
            link.extra_delay_seconds, link.steady = 0.0, False
            self.set_blocked(source, target, False)

    def power_off(self, name: str) -> None:
        """Disconnect a machine without telling its peers. Call this before its processes are killed."""
        address = self.addresses[name]
        address.up = False
        address.servers.clear()
        for end in address.ends:
            end.vanish()

    def power_on(self, name: str) -> None:
        """Boot a machine: packets of connections from before are answered with a reset."""
        address = self.addresses[name]
        address.up = True
        for end in list(address.ends):
            if end.vanished:
                end.answer_with_reset()

    def reset_some(self, name: str, chance: float) -> int:
        """Reset connections of an address, each with this chance. Returns the number of connections reset."""
        count = 0
        for end in list(self.addresses[name].ends):
            if not end.vanished and end.process.alive and self.rng.random() < chance:
                end.reset()
                count += 1
        return count

    def delay(self, source: str, target: str) -> float:
        """Draw the time in seconds that a packet sent now takes."""
        settings, draw = self.settings, self.rng.random
        delay = settings.delay_seconds_min + draw() * 2 * settings.delay_seconds_mean
        if settings.spike_chance and draw() < settings.spike_chance:
            delay += draw() * settings.spike_seconds
            self.trace.count("network: late packet")
        link = self.link(source, target)
        extra = link.extra_delay_seconds
        if not extra:
            return delay
        return delay + (extra if link.steady else extra * draw())

    # --- the loop's side -------------------------------------------------------------------------------------------

    def home(self, process: Process) -> Address:
        """The address of a process."""
        address = self._homes.get(process)
        if address is None:
            raise EscapedError(f"{process} has no network")
        return address

    async def _listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "SimulatedServer":
        process = self.loop.current
        address = self.home(process)
        if host != address.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {address.name}")
        if port in address.servers:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        server = SimulatedServer(self, process, address, port, factory)
        address.servers[port] = server
        return server

    async def _connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple["SimulatedTransport", asyncio.Protocol]:
        process = self.loop.current
        source = self.home(process)
        target = self.addresses.get(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"no host {host}")
        await self._exchange(source, target)
        server = target.servers.get(port)
        if server is None or not server.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connect to {host}:{port} refused")
        self._ports += 1
        here = SimulatedTransport(self, process, source, (source.name, self._ports), (host, port))
        there = SimulatedTransport(self, server.process, target, (host, port), (source.name, self._ports))
        here.join(there)
        there.join(here)
        there.start(server.factory())
        try:
            await self._exchange(target, source)
        except BaseException:
            here.abort()
            raise
        protocol = factory()
        here.open(protocol)
        return here, protocol

    async def _exchange(self, source: Address, target: Address) -> None:
        """Wait until a SYN, or its answer, has arrived; lost ones are sent again."""
        pause = RETRANSMIT_SECONDS
        while True:
            await asyncio.sleep(self.delay(source.name, target.name))
            if target.up and not self.link(source.name, target.name).blocked:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRANSMIT_SECONDS_MAX)

    def _process_died(self, process: Process, address: Address) -> None:
        del self._homes[process]
        for port in [port for port, server in address.servers.items() if server.process is process]:
            del address.servers[port]
        for end in list(address.ends):
            if end.process is process and not end.vanished:
                end.kernel_closes()


class _ServerSocket:
    """The part of a listening socket that servers use."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimulatedServer:
    """A listening port."""

    def __init__(
        self,
        network: Network,
        process: Process,
        address: Address,
        port: int,
        factory: Callable[[], asyncio.Protocol],
    ) -> None:
        self._network = network
        self._address = address
        self._port = port
        self.process = process
        self.factory = factory
        self.sockets = [_ServerSocket((address.name, port))]

    def close(self) -> None:
        """Accept no more connections."""
        if self._address.servers.get(self._port) is self:
            del self._address.servers[self._port]

    async def wait_closed(self) -> None:
        """Return at once: closing takes no time."""


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, including the kernel's part of it, which outlives the process."""

    def __init__(
        self, network: Network, process: Process, address: Address, own: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self._network = network
        self._loop = network.loop
        self._address = address
        self.process = process
        self._own = own
        self._other: SimulatedTransport
        self._link: Link
        self._protocol: asyncio.Protocol | None = None
        self._high = 64 * 1024
        self._low = 16 * 1024
        # What this end has sent and the other has not read.
        self._sent: deque[tuple[float, bytes]] = deque()
        self._unread = 0
        self._last_arrival = 0.0
        self._delivery_scheduled = False
        self._end_sent = False
        self._end_error: Exception | None = None
        """Follows the last byte once the end is sent: None for a FIN, or the error of a reset."""
        self._writing_paused = False
        self._reading_paused = False
        self._closing = False
        self._lost = False
        self.vanished = False
        """Whether the machine of this end has lost power."""
        address.ends[self] = None

    def join(self, other: "SimulatedTransport") -> None:
        """Connect this end with the other one."""
        self._other = other
        self._link = self._network.link(self._address.name, other._address.name)

    def start(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection to its protocol, from outside its process."""
        self._protocol = protocol
        self._reading_paused = True
        self._loop.call_process(self.process, 0.0, self.open, protocol)

    def open(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection to its protocol, from inside its process."""
        self._protocol = protocol
        self._reading_paused = False
        protocol.connection_made(self)
        self._other._schedule_delivery()

    # --- asyncio.Transport ------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost or not data:
            return
        self._send(bytes(data))
        limit = self._network.settings.socket_bytes + self._high
        if self._unread > limit and not self._writing_paused:
            self._writing_paused = True
            self._network.trace.count("network: writer paused")
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread - self._network.settings.socket_bytes)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not (self._reading_paused or self._closing)

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._other._schedule_delivery()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Send all queued data, then a FIN."""
        if self._closing:
            return
        self._closing = True
        self._end_with(None)
        if self.get_write_buffer_size() == 0:
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """End the connection at once; data that the kernel has not taken is lost."""
        if self._lost:
            return
        self._closing = True
        self._cut_to(self._network.settings.socket_bytes)
        self._end_with(_reset_by_peer())
        self._loop.call_soon(self._lose, None)

    # --- faults ------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Break the connection: each end receives some prefix of the data in flight, then the reset."""
        for end in (self, self._other):
            end._cut_to(self._network.rng.randint(0, end._unread))
            end._end_with(_reset_by_peer())

    def kernel_closes(self) -> None:
        """End the connection of a killed process: the kernel may send the data that it had taken."""
        rng = self._network.rng
        if rng.random() < 0.5:
            self._cut_to(rng.randint(0, self._unread))
        else:
            self._cut_to(self._network.settings.socket_bytes)
        self._end_with(_reset_by_peer() if rng.random() < 0.5 else None)
        self._forget()

    def vanish(self) -> None:
        """Send nothing more from this end, and do not tell the peer: the machine has lost power."""
        self._cut_to(self._network.rng.randint(0, self._unread))
        self.vanished = True

    def answer_with_reset(self) -> None:
        """Answer data sent to this end with a reset: the machine has rebooted and does not know the connection."""
        other = self._other
        if other._lost or not other.process.alive or other.vanished:
            self._forget()
        elif other._unread:
            self._network.trace.count("network: half-open connection reset")
            self._end_with(_reset_by_peer())
            self._forget()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        network = self._network
        arrival = self._loop.now + network.delay(self._address.name, self._other._address.name)
        arrival = max(arrival, self._last_arrival)
        self._last_arrival = arrival
        self._sent.append((arrival, data))
        self._unread += len(data)
        other = self._other
        if other.vanished:
            if other._address.up:
                other.answer_with_reset()
        elif not self._delivery_scheduled:
            self._schedule_delivery()

    def _end_with(self, error: Exception | None) -> None:
        if self._end_sent:
            return
        self._end_sent, self._end_error = True, error
        self._last_arrival = max(
            self._last_arrival,
            self._loop.now + self._network.delay(self._address.name, self._other._address.name),
        )
        self._schedule_delivery()

    def _cut_to(self, size: int) -> None:
        """Drop all but the first ``size`` unread bytes."""
        excess = self._unread - size
        while excess > 0 and self._sent:
            arrival, data = self._sent.pop()
            if len(data) > excess:
                self._sent.append((arrival, data[: len(data) - excess]))
            self._unread -= min(len(data), excess)
            excess -= len(data)

    def _schedule_delivery(self) -> None:
        """Schedule the next delivery to the other end, if there is anything to deliver."""
        if self._delivery_scheduled or self._other._lost or not (self._sent or self._end_sent):
            return
        if self._other._reading_paused and self._sent:
            return
        if self._link.blocked:
            self._link.waiting.append(self._unblocked)
            self._delivery_scheduled = True
            return
        self._delivery_scheduled = True
        due = self._sent[0][0] if self._sent else self._last_arrival
        self._loop.call_process(self._other.process, due, self._deliver)

    def _unblocked(self) -> None:
        self._delivery_scheduled = False
        if self._sent:
            late = self._loop.now + self._network.delay(self._address.name, self._other._address.name)
            self._sent[0] = (late, self._sent[0][1])
            self._last_arrival = max(self._last_arrival, late)
        self._schedule_delivery()

    def _deliver(self) -> None:
        """Deliver data that has arrived. Runs as a step of the other end's process."""
        self._delivery_scheduled = False
        other = self._other
        if other._lost or other.vanished or self._link.blocked or (other._reading_paused and self._sent):
            self._schedule_delivery()
            return
        if other._protocol is None:  # the connection is still being made there; `open` schedules the delivery again
            return
        if not self._sent:
            if self._end_sent and self._last_arrival <= self._loop.now:
                other._ended(self._end_error)
            else:
                self._schedule_delivery()
            return
        data = self._take_arrived()
        if data and not other._closing:
            self._network.trace.delivered(self._loop.now, other.process.name, data)
            try:
                other._protocol.data_received(data)
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": "Fatal error: protocol.data_received() call failed.", "exception": error}
                )
                other.abort()
        self._credit(len(data))
        self._schedule_delivery()

    def _take_arrived(self) -> bytes:
        sent, now = self._sent, self._loop.now
        if sent[0][0] > now:
            return b""
        pieces, size = [], 0
        while sent and sent[0][0] <= now and size < READ_BYTES_MAX:
            piece = sent.popleft()[1]
            pieces.append(piece)
            size += len(piece)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(pieces) > 1:
            self._network.trace.count("network: merged read")
        settings, rng = self._network.settings, self._network.rng
        if settings.split_chance and size > 1 and rng.random() < settings.split_chance:
            at = rng.randrange(1, size)
            sent.appendleft((now + settings.delay_seconds_min, data[at:]))
            data = data[:at]
            self._network.trace.count("network: split read")
        return data

    def _credit(self, size: int) -> None:
        """Account for ``size`` bytes that the other end has read, and resume writing if there is room again."""
        self._unread -= size
        room = self._network.settings.socket_bytes
        if self._writing_paused and self._unread <= room + self._low:
            self._loop.call_process(self.process, 0.0, self._resume_writing)
        elif self._closing and not self._lost and self._unread <= room:
            self._loop.call_process(self.process, 0.0, self._lose, None)

    def _resume_writing(self) -> None:
        if self._writing_paused and not self._lost:
            self._writing_paused = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    def _ended(self, error: Exception | None) -> None:
        """Handle the FIN or reset of the other end. Runs as a step of this end's process."""
        if self._lost:
            return
        if error is not None:
            self._closing = True
            self._lose(error)
        elif not self._closing:
            assert self._protocol is not None
            if not self._protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._closing = True
        self._forget()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _forget(self) -> None:
        self._address.ends.pop(self, None)


def _reset_by_peer() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
