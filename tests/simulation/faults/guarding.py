"""Universes whose bookies guard themselves: principals with keys, an operator who changes them, and an intruder.

Every client process authenticates as a principal: ``client-0`` as ``client-0``, the repair agent of a bookie as its
machine, the judge and others as ``judge``. Faults disable and change the principals of clients while they write. The
intruder asks for what its principals may not have; a bookie that serves it breaks rule S1 or S2. At the end a principal
is disabled while it is connected, and its connections must serve nothing more.

There is no TLS: the simulated network counts as one host, within which clients use their keys. Keys come from names.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from octavo.bookie.server import access as bookie_access
from octavo.client.client import Client
from octavo.client.wire import security as client_security
from octavo.metadata.cluster.principals import DOCUMENT, Principal, Principals, decode_principals, encode_principals
from octavo.metadata.store.driver import Kind
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.messages import Add, AddFlag, Info, Read, ReadFlag, ReadLac, Request
from octavo.security.roles import Role
from octavo.security.scram import Key, verifier_of
from simulation.engine.patches import Patch
from simulation.judges.history import LedgerHistory, Violation
from simulation.world import ClientHost, World
from support.inside import connections_of

ROLES: dict[str, frozenset[Role]] = {
    **{f"client-{number}": frozenset({Role.APPEND}) for number in range(20)},
    "judge": frozenset({Role.APPEND}),
    **{f"bookie-{number}": frozenset({Role.REPAIR, Role.APPEND}) for number in range(20)},
    "observer": frozenset({Role.REPAIR}),
    "reader": frozenset({Role.READ}),
    "writer-without-ledgers": frozenset({Role.APPEND}),
    "leaver": frozenset({Role.READ}),
}
"""Every principal. The intruder is ``reader``, ``writer-without-ledgers`` and ``unknown``, which is none."""

INTRUDERS = ("reader", "writer-without-ledgers", "unknown")

LEARNED_SECONDS_MAX = 120.0
"""Virtual time in which every bookie learns of a changed principal once everything is healed."""

REQUEST_SECONDS = 1.0


def key_of(name: str) -> Key:
    """The key of a principal."""
    return Key(name, random.Random(f"key of {name}").randbytes(32))


_VERIFIERS = {name: verifier_of(key_of(name).secret) for name in ROLES}


@contextmanager
def guards(world: World) -> Iterator[None]:
    """Make the principals, and let keys come from names inside the block. Does nothing in other universes."""
    if not world.plan.guarded:
        yield
        return
    principals = Principals()
    for name, roles in ROLES.items():
        principals = principals.with_principal(Principal(name=name, roles=roles, verifier=_VERIFIERS[name]))
    world.metadata.server.create(Kind.DOCUMENT, DOCUMENT, encode_principals(principals), None, take_over=False)
    chance = _Chance(world.rng_for("nonces"))
    patches = [
        Patch(client_security, "read_key", key_of),
        Patch(client_security, "_is_within_host", lambda _transport: True),
        Patch(client_security, "secrets", chance),
        Patch(bookie_access, "secrets", chance),
    ]
    for patch in patches:
        patch.apply()
    try:
        yield
    finally:
        for patch in patches:
            patch.undo()


class _Chance:
    """In place of the module ``secrets``: the same seed must give the same universe."""

    def __init__(self, rng: random.Random) -> None:
        self.token_bytes = rng.randbytes


# --- the operator ------------------------------------------------------------------------------------------------


def change_principal(world: World, name: str, change: Callable[[Principal], Principal]) -> None:
    """Change a principal, as `octavo access` does."""
    server = world.metadata.server
    stored = server.read(Kind.DOCUMENT, DOCUMENT)
    assert stored is not None
    principals = decode_principals(stored.value)
    changed = principals.with_principal(change(principals.by_name[name]))
    server.compare_and_set(Kind.DOCUMENT, DOCUMENT, encode_principals(changed), stored.version)


def strikes(
    world: World, rng: random.Random, heal_after: Callable[[float, float, Callable[[], None]], None]
) -> dict[str, Callable[[], None]]:
    """The faults of guarded universes by name."""

    def client() -> str:
        return f"client-{rng.randrange(world.plan.log_clients if world.plan.logs else world.plan.clients)}"

    def disable() -> None:
        name = client()
        world.trace.count("security: principal disabled")
        change_principal(world, name, lambda one: replace(one, disabled=True))
        heal_after(
            0.05, 2.0, lambda: change_principal(world, name, lambda one: replace(one, disabled=False))
        )  # fmt: skip

    def change() -> None:
        world.trace.count("security: principal changed")
        change_principal(world, client(), lambda one: replace(one, roles=one.roles ^ {Role.OBSERVE}))

    return {"disable principal": disable, "change principal": change}


# --- the intruder ------------------------------------------------------------------------------------------------


class Intruding:
    """Asks bookies for what its principals may not have. An answer that is no refusal is a :class:`Violation`."""

    def __init__(self, world: World, rng: random.Random, ended: Callable[[], bool]) -> None:
        self._world = world
        self._rng = rng
        self._ended = ended

    async def run(self, host: ClientHost) -> None:
        """Run until the safety phase has ended."""
        clients = {name: await host.connect(name) for name in INTRUDERS}
        try:
            while not self._ended():
                await asyncio.sleep(self._rng.uniform(0.01, 0.3))
                name = self._rng.choice(INTRUDERS)
                ids = sorted({bookie for machine in self._world.machines for bookie in machine.ids})
                if ids:
                    await self._intrude(name, clients[name], BookieId(self._rng.choice(ids)))
        finally:
            for client in clients.values():
                await client.close()

    async def _intrude(self, name: str, client: Client, bookie_id: BookieId) -> None:
        rng, world = self._rng, self._world
        known = [ledger for ledger in world.history.ledgers.values() if not ledger.deleted]
        future = LedgerId(world.metadata.server.ledger_ids_stop() + rng.randrange(1, 50))
        rule = "S1"
        request: Request = self._read(future)
        if name == "reader" and known:
            request = self._as_reader(rng.choice(known))
        elif name == "writer-without-ledgers":
            rule = "S2"
            # A ledger that does not exist yet, or one that does, with a key of the intruder's own.
            ledger_id = rng.choice(known).ledger_id if known and rng.random() < 0.5 else future
            request = self._write(ledger_id, b"intruder")
        elif name == "unknown" and known:
            request = self._read(rng.choice(known).ledger_id)
        elif name == "reader":
            return
        try:
            answer = await connections_of(client).get(bookie_id).request(request, timeout_seconds=REQUEST_SECONDS)
        except OctavoError as error:
            world.trace.count(f"security: intruder met {type(error).__name__}")
            return
        world.violate(Violation(rule, f"bookie {bookie_id} served {request.op.name} to {name}: {answer!r:.100}"))

    def _as_reader(self, ledger: LedgerHistory) -> Request:
        if ledger.private and self._rng.random() < 0.3:
            return replace(self._read(ledger.ledger_id), flags=ReadFlag.REPAIR)
        return self._write(ledger.ledger_id, ledger.password)

    def _write(self, ledger_id: LedgerId, password: bytes) -> Request:
        """A fence or an add, with the key of this password."""
        secrets = derive_secrets(password, ledger_id)
        if self._rng.random() < 0.5:
            return ReadLac(ledger_id, secrets.ledger_key, ReadFlag.FENCE, 0, None, 0, 0, 0)
        first = EntryId(self._rng.randrange(100, 200))
        sealed = Sealer(ledger_id, Digest.CRC32C, secrets).seal(
            first, [b"intruder"], last_add_confirmed=None, length=0, sealed_at_ms=0
        )
        return Add(ledger_id, secrets.ledger_key, AddFlag.NONE, 0, sealed)

    def _read(self, ledger_id: LedgerId) -> Read:
        return Read(ledger_id, b"", ReadFlag.NONE, 0, 0, 9, 1, (0,), 10, 1000)


# --- the end -----------------------------------------------------------------------------------------------------


async def end_a_principal(world: World, host: ClientHost) -> None:
    """Disable a principal that is connected: once a bookie knows, it serves nothing to it (rule S1)."""
    client = await host.connect("leaver")
    served: list[BookieId] = []
    machines = {machine.bookie.bookie_id: machine for machine in world.machines if machine.bookie is not None}
    for bookie_id in machines:
        for _ in range(20):
            if await _asks(client, bookie_id):
                served.append(bookie_id)
                break
            await asyncio.sleep(0.5)
    change_principal(world, "leaver", lambda one: replace(one, disabled=True))

    def all_know() -> bool:
        bookies = [machines[bookie_id].bookie for bookie_id in served]
        accesses = [bookie.service.access for bookie in bookies if bookie is not None]
        return all(access is None or access.principals.by_name["leaver"].disabled for access in accesses)

    deadline = world.loop.now + LEARNED_SECONDS_MAX
    while not all_know():
        if world.loop.now > deadline:
            raise Violation("I8", "bookies do not learn that a principal was disabled")
        await asyncio.sleep(0.2)
    await asyncio.sleep(0.1)
    for bookie_id in served:
        if await _asks(client, bookie_id):
            raise Violation("S1", f"bookie {bookie_id} serves a principal that it knows to be disabled")
        world.trace.count("security: disabled principal refused")
    await client.close()


async def _asks(client: Client, bookie_id: BookieId) -> bool:
    """Whether the bookie answers."""
    try:
        await connections_of(client).get(bookie_id).request(Info(), timeout_seconds=REQUEST_SECONDS)
    except OctavoError:
        return False
    return True
