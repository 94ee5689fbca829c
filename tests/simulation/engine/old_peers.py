"""Bookies and clients of a version that knows no packs and no subscriptions, and what travels in packs and pushes
in a universe with many ledgers.

A bookie that knows none does not offer the capability, and must not be sent a pack or a subscription. A client that
knows none does not see that it is offered. Whether a process is an old one is drawn when it says hello for the first
time: a bookie that is restarted may be another one than before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from octavo.bookie.server import connection
from octavo.bookie.server.connection import Connection
from octavo.bookie.server.lookups import Lookups
from octavo.client.wire import wire
from octavo.client.wire.subscriptions import BookieSubscriptions
from octavo.protocol.messages import Add, Force, Hello, WriteLac
from octavo.protocol.packs import CAPABILITY_PACKS, PlainAdds, decode_pack
from octavo.protocol.pushes import CAPABILITY_SUBSCRIPTIONS
from simulation.engine.loop import Process
from simulation.engine.patches import patch
from simulation.judges.history import Violation
from simulation.world import World

_NEW = {CAPABILITY_PACKS, CAPABILITY_SUBSCRIPTIONS}

PACKS = "packs: sent to a bookie"
OF_SEVERAL_LEDGERS = "packs: with requests of ten ledgers or more"
IN_PACKS = "packs: adds in packs"
ADDS = "packs: adds served, in packs and alone"
PUSHES = "followers: pushes"
PUSHED_ENTRIES = "followers: entries in pushes"
OF_SEVERAL_PUSHES = "followers: frames with pushes of ten ledgers or more"
OLD_BOOKIES = "packs: bookie that knows none started"
OLD_CLIENTS = "packs: client that knows none started"


class _Ages:
    """Which processes are old ones."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng_for("old peers")
        self._old: dict[Process, bool] = {}

    def is_old(self, process: Process, chance: float, counter: str) -> bool:
        """Whether this process is one."""
        old = self._old.get(process)
        if old is None:
            old = self._old[process] = self._rng.random() < chance
            self._world.trace.count(counter, old)
        return old


@contextmanager
def old_peers(world: World) -> Iterator[None]:
    """Let bookies and clients be old ones, and count what comes in packs, inside the block. Does nothing in universes
    without many ledgers."""
    hardships = world.plan.hardships
    if not hardships.many:
        yield
        return
    ages, count = _Ages(world), world.trace.count

    @patch(connection, "encode_hello")
    def encode_hello(original: Any, hello: Hello) -> bytes:
        if ages.is_old(world.loop.current, hardships.old_bookie_chance, OLD_BOOKIES):
            hello = _without_packs(hello)
        encoded: bytes = original(hello)
        return encoded

    @patch(wire, "decode_hello")
    def decode_hello(original: Any, values: Any) -> Any:
        hello = original(values)
        if isinstance(hello, Hello) and ages.is_old(world.loop.current, hardships.old_client_chance, OLD_CLIENTS):
            return _without_packs(hello)
        return hello

    @patch(Connection, "_pack")
    def pack(original: Any, self: Connection, values: Any, body: Any) -> None:
        process = world.loop.current
        if ages.is_old(process, hardships.old_bookie_chance, OLD_BOOKIES):
            world.violate(Violation("packs", f"{process.name} does not offer packs, and is sent one"))
            return
        decoded = decode_pack(values)
        requests = decoded.requests
        count(PACKS)
        ledgers = {request.ledger_id for request in requests if isinstance(request, Add | WriteLac | Force)}
        count(OF_SEVERAL_LEDGERS, len(ledgers) >= 10)
        count(IN_PACKS, sum(type(request) is Add for request in requests))
        count(ADDS, sum(len(part.entries) for part in decoded.parts if isinstance(part, PlainAdds)))
        original(self, values, body)

    @patch(Connection, "_add")
    def add(original: Any, self: Connection, request_id: int, request: Any) -> None:
        count(ADDS)
        original(self, request_id, request)

    @patch(Lookups, "_subscribe")
    def subscribe(original: Any, self: Lookups, request_id: int, request: Any) -> None:
        process = world.loop.current
        if ages.is_old(process, hardships.old_bookie_chance, OLD_BOOKIES):
            world.violate(Violation("followers", f"{process.name} does not offer subscriptions, and is sent one"))
            return
        original(self, request_id, request)

    @patch(BookieSubscriptions, "_pushed")
    def pushed(original: Any, self: BookieSubscriptions, pushes: Any) -> None:
        count(PUSHES, len(pushes))
        count(PUSHED_ENTRIES, sum(len(push.entries) for push in pushes))
        count(OF_SEVERAL_PUSHES, len(pushes) >= 10)
        original(self, pushes)

    patches = (encode_hello, decode_hello, pack, add, subscribe, pushed)
    for one in patches:
        one.apply()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.undo()


def _without_packs(hello: Hello) -> Hello:
    return replace(hello, capabilities=tuple(name for name in hello.capabilities if name not in _NEW))
