"""Groups the creation of ledgers: all creations requested in one iteration of the event loop share one transaction.

A transaction costs the servers and the client little more than a single creation, so the throughput of a client that
creates thousands of ledgers a second is limited only by ZooKeeper. A client that creates one ledger after another sees
no difference.

A transaction succeeds or fails as a whole. One creation that cannot succeed (its id is taken, its folder is missing)
must not fail the others: its caller gets the error, or its folder is created, and the rest are requested again. When an
answer is lost, the nodes are read before any caller gets an answer (rule M1): one node found with the wanted bytes
proves that the whole transaction was executed.

A creation whose caller was cancelled before it was sent is not sent. One that was sent cannot be withdrawn, but every
later request of its caller on this session is executed after it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from octavo.metadata.own_tasks import tasks_cancelled
from octavo.metadata.store.driver import Kind
from octavo.metadata.zookeeper.connection import AnswerLostError
from octavo.metadata.zookeeper.fast_messages import CreateMessage, Message, Transaction
from octavo.metadata.zookeeper.layout import Paths, Stat, name_of
from octavo.metadata.zookeeper.messages import (
    ANY_VERSION,
    NO_NODE,
    NODE_EXISTS,
    OK,
    Answer,
    check,
    create_container,
    failed_part,
    transaction,
)
from octavo.metadata.zookeeper.nodes import LARGE_ATTEMPTS_MAX, LARGE_BYTES, Nodes, Operation
from octavo.protocol.errors import ClientClosedError, InternalError, MetadataUnavailableError, OctavoError

TOGETHER_MAX: Final = 32
"""Creations in one transaction. More would gain little, and would leave the client idle while the servers work and the
servers idle while the client works."""

TOGETHER_BYTES_MAX: Final = 128 * 1024
"""Bytes of values in one transaction, unless one value alone has more: far below a server's limit (1 MiB)."""

_FOLDERS_MAX: Final = 64
"""Number of folders remembered as existing. The new ledgers of one client go into one or two folders."""


class _Creation:
    """One ledger to be created. The result of ``made`` is the node's stat, or None when it already exists."""

    __slots__ = ("folder", "key", "made", "message", "path", "value")

    def __init__(self, key: str, path: str, message: Message, value: bytes, made: asyncio.Future[Stat | None]) -> None:
        self.key = key
        self.path = path
        self.folder = path.rpartition("/")[0]
        self.message = message
        self.value = value
        self.made = made


class _Together(Transaction):
    """Creations in one transaction, without those whose callers have been cancelled by the time it is sent."""

    __slots__ = ("_creations", "sent")

    def __init__(self, creations: Sequence[_Creation]) -> None:
        super().__init__(())
        self._creations = creations
        self.sent: list[_Creation] = []

    def messages(self) -> Sequence[Message]:
        """The messages to send; sets :attr:`sent`."""
        self.sent = _wanted(self._creations)
        return [creation.message for creation in self.sent] or [check("/", ANY_VERSION).message]


class LedgerCreates:
    """The creations of one handle."""

    def __init__(self, nodes: Nodes, paths: Paths) -> None:
        self._nodes = nodes
        self._paths = paths
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Creation] = []
        self._gathered_bytes = 0
        self._folders: dict[str, None] = {}
        """Folders known to have existed; the servers remove a folder with its last ledger."""
        self._under_way: dict[asyncio.Task[None], Sequence[_Creation]] = {}
        self._closed = False

    async def create(self, key: str, value: bytes) -> Stat | None:
        """Create a ledger's node; None when it already exists."""
        path = self._paths.node(Kind.LEDGER, key)
        made: asyncio.Future[Stat | None] = self._loop.create_future()
        creation = _Creation(key, path, CreateMessage(path, value, self._nodes.acl), value, made)
        if self._gathered_bytes + len(value) > TOGETHER_BYTES_MAX:
            self._send()
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append(creation)
        self._gathered_bytes += len(value)
        if len(self._gathered) == TOGETHER_MAX:
            self._send()
        return await made

    async def close(self) -> None:
        """Fail all waiting callers with :class:`ClientClosedError`."""
        self._send()
        self._closed = True
        under_way = self._under_way.copy()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for creations in under_way.values():
            _fail(creations, ClientClosedError("the metadata store has been closed"))

    def _send(self) -> None:
        if self._gathered:
            task = self._loop.create_task(self._make(self._gathered), name="creating ledgers")
            self._under_way[task] = self._gathered
            task.add_done_callback(self._ended)
            self._gathered, self._gathered_bytes = [], 0

    def _ended(self, task: asyncio.Task[None]) -> None:
        creations = self._under_way.pop(task)
        if task.cancelled() and not self._closed:
            _fail(creations, tasks_cancelled("creating ledgers"))

    async def _make(self, creations: Sequence[_Creation]) -> None:
        try:
            async with self._nodes.operation(_names(creations)) as operation:
                attempts_lost = 0
                folders_missing = False
                while creations := _wanted(creations):
                    try:
                        if folders_missing:
                            await self._make_folders(operation, creations)
                        creations, folders_missing = await self._attempt(operation, creations)
                    except AnswerLostError as error:
                        attempts_lost += 1
                        creations = await self._look(operation, creations)
                        _check_large(creations, attempts_lost, error)
        except OctavoError as error:
            _fail(creations, error)
        except Exception as error:
            failure = InternalError(f"creating ledgers failed: {error!r}")
            failure.__cause__ = error
            _fail(creations, failure)

    async def _attempt(self, operation: Operation, creations: Sequence[_Creation]) -> tuple[Sequence[_Creation], bool]:
        """Request all of them; returns those to be requested again, and whether their folders must be created first.
        Raises :class:`AnswerLostError`."""
        for folder in dict.fromkeys(creation.folder for creation in creations):
            if folder not in self._folders:
                # Sent right before the ledgers, without waiting: nearly always it succeeds, or the folder exists.
                self._nodes.session.post(create_container(folder, self._nodes.acl))
                self._note_folder(folder)
        together = _Together(creations)
        answer = await self._nodes.session.call(transaction(together), on_sent=operation.sent)
        operation.settled()
        sent = together.sent
        self._nodes.expect(answer, operation.what)
        parts: list[Answer] = answer.value
        failed = failed_part(parts)
        if failed is None:
            for creation, part in zip(sent, parts, strict=False):  # a check alone, when none was left to be sent
                _settle(creation, part.value)
            return (), False
        if not sent:
            return (), False
        self._nodes.expect(Answer(parts[failed].code), sent[failed].path, NO_NODE, NODE_EXISTS)
        if parts[failed].code == NO_NODE:
            # The servers have removed an empty folder, or its parents are missing, too.
            self._folders.clear()
            return sent, True
        # Created by another handle: whatever a lost answer had created has been found before this attempt.
        _settle(sent[failed], None)
        return sent, False

    async def _look(self, operation: Operation, creations: Sequence[_Creation]) -> Sequence[_Creation]:
        """After an answer was lost: settle the creations that were made; returns those to be requested again."""
        sent = _wanted(creations)
        nodes = await self._nodes.read_many([creation.path for creation in sent])
        operation.settled()
        found = list(zip(sent, nodes, strict=True))
        ours = [node.stat for creation, node in found if node is not None and node.value == creation.value]
        if ours:
            # One change made them all; some may have been changed or deleted since.
            for creation in sent:
                _settle(creation, Stat(ours[0].created, 0, 0))
            return ()
        for creation, node in found:
            if node is not None:
                _settle(creation, None)
        return sent

    async def _make_folders(self, operation: Operation, creations: Sequence[_Creation]) -> None:
        for folder in dict.fromkeys(creation.folder for creation in creations):
            await self._make_folder(operation, folder)
            self._note_folder(folder)

    def _note_folder(self, folder: str) -> None:
        if len(self._folders) >= _FOLDERS_MAX:
            self._folders.clear()
        self._folders[folder] = None

    async def _make_folder(self, operation: Operation, folder: str) -> None:
        nodes = self._nodes
        if folder == self._paths.folder(Kind.LEDGER):
            nodes.refuse(NO_NODE, folder)

        async def settle() -> Answer | None:
            return Answer(OK) if await nodes.stat(folder) is not None else None

        while True:
            made = await nodes.change(operation, create_container(folder, nodes.acl), settle)
            if nodes.expect(made, folder, NODE_EXISTS, NO_NODE).code != NO_NODE:
                return
            await self._make_folder(operation, folder.rpartition("/")[0])


def _wanted(creations: Sequence[_Creation]) -> list[_Creation]:
    """The creations whose callers still wait."""
    return [creation for creation in creations if not creation.made.done()]


def _settle(creation: _Creation, stat: Stat | None) -> None:
    if not creation.made.done():
        creation.made.set_result(stat)


def _fail(creations: Sequence[_Creation], failure: OctavoError) -> None:
    for creation in _wanted(creations):
        # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
        error = type(failure)(failure.message, may_have_happened=failure.may_have_happened)
        error.__cause__ = failure
        creation.made.set_exception(error)


def _names(creations: Sequence[_Creation]) -> str:
    """A name for error messages."""
    first = name_of(Kind.LEDGER, creations[0].key)
    return first if len(creations) == 1 else f"{first} and {len(creations) - 1} more"


def _check_large(creations: Sequence[_Creation], attempts_lost: int, error: AnswerLostError) -> None:
    for creation in creations:
        if len(creation.value) > LARGE_BYTES and attempts_lost >= LARGE_ATTEMPTS_MAX:
            raise MetadataUnavailableError(
                f"{name_of(Kind.LEDGER, creation.key)}: the connection broke at every attempt to store "
                f"{len(creation.value)} bytes; does the server's jute.maxbuffer allow them?",
                may_have_happened=False,
            ) from error
