"""Records that belong to a session: registrations of bookies, and locks. They are ephemeral nodes of the ZooKeeper
session that the handle uses for everything.

That a record is still there is asked once, with a watch, and again when the watch or a new connection says that it may
be gone: a renewal is one request for all records, however many a client holds.

The callers of this module give their session a name. A name stands for the ZooKeeper session in which it was begun; it
ends when that session ends, or when another name is begun. The nodes made under a name are deleted before the next name
is begun: the caller may have given the session up as lost, for lack of an answer, while ZooKeeper still keeps it.
"""

import asyncio
import random
from typing import Final, NamedTuple

from octavo.metadata.store.driver import Kind, Unchanged
from octavo.metadata.store.values import Version
from octavo.metadata.zookeeper.connection import AnswerLostError
from octavo.metadata.zookeeper.layout import Paths, Stat, decode_guarded, name_of, version_of
from octavo.metadata.zookeeper.messages import (
    ANY_VERSION,
    BAD_VERSION,
    NO_NODE,
    NODE_EXISTS,
    OK,
    Answer,
    Request,
    check,
    create,
    delete,
    exists,
    get,
    multi,
    set_value,
)
from octavo.metadata.zookeeper.nodes import Nodes, Operation
from octavo.metadata.zookeeper.session import CLOSE_SECONDS_MAX, SessionGoneError
from octavo.protocol.errors import MetadataUnavailableError

_TOLERANCE_SECONDS: Final = 0.001
"""ZooKeeper counts in milliseconds."""

type Thing = tuple[Kind, str]


class _Held(NamedTuple):
    created: int
    """The change (zxid) that made the node."""
    incarnation: int | None
    """For a bookie: the version of its incarnation node that belongs to this registration."""


class SessionRecords:
    """The records in the session of one handle. Meanings as in :class:`octavo.metadata.store.driver.RecordStore`."""

    def __init__(self, nodes: Nodes, paths: Paths, rng: random.Random) -> None:
        self._nodes = nodes
        self._paths = paths
        self._rng = rng
        self._name: str | None = None
        self._session_id = 0
        self._held: dict[Thing, _Held] = {}
        self._doubtful: set[Thing] = set()
        """Records that calls without an answer may have made."""
        self._unwatched: set[Thing] = set()
        """Records held that may be gone without a watch having told it. The next renewal looks at them."""

    def expired(self, session_id: int) -> None:
        """ZooKeeper has ended a session."""
        if session_id == self._session_id:
            self._name = None
            self._forget()

    def connected(self) -> None:
        """The watches of the previous connection are gone."""
        self._unwatched.update(self._held)

    def changed(self, watched: tuple[Kind, str | None]) -> None:
        """A watch has told that a record has changed or is gone."""
        kind, key = watched
        if key is not None and (kind, key) in self._held:
            self._unwatched.add((kind, key))

    def needs_watch(self, watched: tuple[Kind, str | None] | None) -> bool:
        """Whether the watch of a record must stay although nothing else needs it."""
        return watched is not None and watched in self._held

    def _forget(self) -> None:
        self._held.clear()
        self._doubtful.clear()
        self._unwatched.clear()

    # --- sessions --------------------------------------------------------------------------------------------------

    async def begin(self, name: str, lease_seconds: float) -> None:
        """See :meth:`RecordStore.begin_session`."""
        session = self._nodes.session
        async with self._nodes.operation("a session for leases"):
            await self._nodes.stat(self._paths.layout)  # waits until there is a connection, and with it a session
            session_id = session.session_id
            if session.timeout_seconds + _TOLERANCE_SECONDS < lease_seconds:
                raise MetadataUnavailableError(
                    f"ZooKeeper grants sessions of {session.timeout_seconds:g} s only, leases need {lease_seconds:g} s;"
                    " raise maxSessionTimeout",
                    may_have_happened=False,
                )
            if session_id == self._session_id:
                for thing in {*self._held, *self._doubtful}:
                    await self._remove(thing, session_id)
        self._name, self._session_id = name, session_id
        self._forget()

    async def renew(self, name: str) -> set[Thing] | None:
        """See :meth:`RecordStore.renew_session`. Cleans up records left by calls without an answer."""
        if not self._is_live(name):
            return None
        await self._look()
        if not self._is_live(name):
            return None
        for thing in list(self._doubtful):
            if thing not in self._held:
                await self._remove(thing, self._session_id)
            self._doubtful.discard(thing)
        return set(self._held) if self._is_live(name) else None

    async def _look(self) -> None:
        """Learn which records are gone. Asks the server in any case; what had happened before is known afterwards:
        watches tell it before the answer arrives."""
        first = True
        while first or self._unwatched:
            first = False
            looked_at = {thing: self._held[thing] for thing in self._unwatched if thing in self._held}
            self._unwatched.clear()  # before the request: what a watch tells from now on is looked at again
            try:
                answers = await self._nodes.ask(
                    exists(self._paths.layout), *(exists(self._paths.node(*thing), watch=True) for thing in looked_at)
                )
            except BaseException:
                self._unwatched.update(looked_at)
                raise
            for (thing, known), answer in zip(looked_at.items(), answers[1:], strict=True):
                self._nodes.expect(answer, self._paths.node(*thing), NO_NODE)
                ours = self._is_ours(answer.value) and answer.value.created == known.created
                if not ours and self._held.get(thing) is known:
                    del self._held[thing]

    async def end(self, name: str) -> None:
        """See :meth:`RecordStore.end_session`. Does not wait for servers that cannot be reached."""
        if not self._is_live(name):
            return
        self._name = None
        if not self._nodes.session.connected:
            raise MetadataUnavailableError(f"ZooKeeper cannot be reached ({self._nodes.session.last_failure})")
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                for thing in {*self._held, *self._doubtful}:
                    await self._remove(thing, self._session_id)
        except TimeoutError as error:
            raise MetadataUnavailableError("ZooKeeper did not answer while this handle was being closed") from error

    def _is_live(self, name: str) -> bool:
        return name == self._name and self._session_id == self._nodes.session.session_id != 0

    def _is_ours(self, stat: Stat | None) -> bool:
        return stat is not None and stat.owner == self._session_id

    # --- records ---------------------------------------------------------------------------------------------------

    async def create(
        self, kind: Kind, key: str, value: bytes, name: str, *, take_over: bool, unchanged: Unchanged | None
    ) -> Version | None:
        """See :meth:`RecordStore.create_in_session`."""
        if not self._is_live(name):
            return None
        thing = (kind, key)
        operation = self._nodes.operation(name_of(kind, key))
        try:
            async with operation:
                if kind is Kind.BOOKIE:
                    made = await self._register(operation, key, value, take_over=take_over, unchanged=unchanged)
                else:
                    made = await self._make((kind, key), operation, value)
        except SessionGoneError:
            return None
        except BaseException:
            if operation.in_doubt:
                self._doubtful.add(thing)
            raise
        if made is None:
            return None
        stat, incarnation = made
        if not self._is_live(name):
            return None
        self._held[thing] = _Held(stat.created, incarnation)
        self._unwatched.add(thing)
        self._doubtful.discard(thing)
        return version_of(stat)

    async def set(self, kind: Kind, key: str, value: bytes, name: str) -> Version | None:
        """See :meth:`RecordStore.set_in_session`."""
        held = self._held.get((kind, key))
        if held is None or not self._is_live(name):
            return None
        path = self._paths.node(kind, key)

        async def settle() -> Answer | None:
            return None  # may safely be done twice: it requires that the record is still ours

        try:
            async with self._nodes.operation(name_of(kind, key)) as operation:
                changed = await self._nodes.transact(
                    operation,
                    [set_value(path, value, ANY_VERSION), *self._guards(key, held)],
                    settle,
                    session_id=self._session_id,
                )
        except SessionGoneError:
            return None
        self._nodes.expect(changed, path, NO_NODE, BAD_VERSION)
        return version_of(changed.value) if changed.code == OK else None

    async def delete(self, kind: Kind, key: str, name: str) -> bool:
        """See :meth:`RecordStore.delete_in_session`."""
        if (kind, key) not in self._held or not self._is_live(name):
            return False
        async with self._nodes.operation(name_of(kind, key)):
            return await self._remove((kind, key), self._session_id)

    # --- how -------------------------------------------------------------------------------------------------------

    async def _make(self, thing: Thing, operation: Operation, value: bytes) -> tuple[Stat, int | None] | None:
        """Make the record of a lock or of a waiter, if there is none."""
        path = self._paths.node(*thing)
        session_id = self._session_id

        async def settle() -> Answer | None:
            stat = await self._nodes.stat(path)
            if stat is None:
                return None
            return Answer(OK, stat) if stat.owner == session_id else Answer(NODE_EXISTS)

        request = create(path, value, self._nodes.acl, ephemeral=True)
        made = await self._nodes.change(operation, request, settle, session_id=session_id)
        if made.code == NO_NODE and thing[0] is Kind.WAITER:
            folder = create(self._paths.folder(Kind.WAITER), b"", self._nodes.acl)
            (answer,) = await self._nodes.ask(folder)
            self._nodes.expect(answer, path, NODE_EXISTS)
            made = await self._nodes.change(operation, request, settle, session_id=session_id)
        if made.code == NODE_EXISTS and thing in self._doubtful:
            # Perhaps it was made by an earlier call of this handle that got no answer.
            found = await settle()
            if found is not None and found.code == OK:
                await self._remove(thing, session_id)
                made = await self._nodes.change(operation, request, settle, session_id=session_id)
        self._nodes.expect(made, path, NODE_EXISTS)
        return None if made.code == NODE_EXISTS else (made.value, None)

    async def _register(
        self, operation: Operation, key: str, value: bytes, *, take_over: bool, unchanged: Unchanged | None
    ) -> tuple[Stat, int | None] | None:
        path, guard = self._paths.node(Kind.BOOKIE, key), self._paths.incarnation(key)
        session_id = self._session_id
        token = f"{self._rng.getrandbits(64):016x}".encode()

        async def settle() -> Answer | None:
            incarnation, stat = await self._nodes.read(guard), await self._nodes.stat(path)
            if incarnation is None or incarnation.value != token:
                return None  # not done, or done and then taken over by another handle: take it over once more
            if stat is None or stat.owner != session_id:
                return Answer(BAD_VERSION)
            return Answer(OK, stat)

        while True:
            (present,) = await self._nodes.ask(exists(path))
            self._nodes.expect(present, path, NO_NODE)
            if present.code == OK and not take_over:
                return None
            checks = [] if unchanged is None else await self._checks_of(unchanged)
            if checks is None:
                return None
            (guarded,) = await self._nodes.ask(get(guard))
            self._nodes.expect(guarded, guard, NO_NODE)
            incarnation = 0 if guarded.code == NO_NODE else guarded.value.stat.version + 1
            requests: list[Request] = [create(path, value, self._nodes.acl, ephemeral=True)]
            if present.code == OK:
                requests.insert(0, delete(path, present.value.version))
            if guarded.code == NO_NODE:
                requests.append(create(guard, token, self._nodes.acl))
            else:
                requests.append(set_value(guard, token, guarded.value.stat.version))
            main = len(requests) - 2
            made = await self._nodes.transact(operation, [*requests, *checks], settle, main=main, session_id=session_id)
            self._nodes.expect(made, path, NO_NODE, BAD_VERSION, NODE_EXISTS)
            if made.code == OK:
                return made.value, incarnation
            # Another handle was faster: look again.

    async def _checks_of(self, unchanged: Unchanged) -> list[Request] | None:
        """The checks that make a transaction fail when this guarded record has another version; None if it has one now,
        or is gone."""
        path = self._paths.node(unchanged.kind, unchanged.key)
        node = await self._nodes.read(path)
        if node is None or version_of(node.stat) != unchanged.version:
            return None
        guard = decode_guarded(node.value, name_of(unchanged.kind, unchanged.key)).guard
        # The child tells this node from one that was made in its place.
        return [check(path, node.stat.version), check(f"{path}/{guard}", ANY_VERSION)]

    def _guards(self, key: str, held: _Held) -> list[Request]:
        return [] if held.incarnation is None else [check(self._paths.incarnation(key), held.incarnation)]

    async def _remove(self, thing: Thing, session_id: int) -> bool:
        """Delete a record of ours, unless another handle has taken it over."""
        kind, key = thing
        path, guard = self._paths.node(kind, key), self._paths.incarnation(key)
        held = self._held.get(thing)
        while True:
            requests = []
            if kind is Kind.BOOKIE:
                (guarded,) = await self._nodes.ask(exists(guard))
                if self._nodes.expect(guarded, guard, NO_NODE).code == OK:
                    requests.append(check(guard, guarded.value.version))
            stat = await self._nodes.stat(path)
            if stat is None or stat.owner != session_id or (held is not None and stat.created != held.created):
                deleted = False
                break
            try:
                answer = await self._nodes.session.call(
                    multi(delete(path, stat.version), *requests), session_id=session_id
                )
            except AnswerLostError:
                continue
            except SessionGoneError:
                deleted = False
                break
            code = self._nodes.code_of(self._nodes.expect(answer, path))
            if code in {OK, NO_NODE, BAD_VERSION}:
                deleted = code == OK
                break
            self._nodes.refuse(code, path)
        if self._held.get(thing) is held:
            self._held.pop(thing, None)
        return deleted
