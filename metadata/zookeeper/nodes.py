"""Reads and changes of ZooKeeper's nodes that end in a definite answer, or in an error that says there is none.

Reads are preceded by ``sync``: they see every change that had returned when they were made, whichever server answers
(rule M3; :meth:`Nodes.stats_after_write` covers the exception). When the answer to a change is lost, the node is read
before the caller gets an answer (rule M1): every change comes with a function that reads the node and tells whether
this handle made the change, another handle changed the node, or the change was not made and may be sent again.
:mod:`octavo.metadata.zookeeper.session` explains why such a read settles the question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, NoReturn, Self

from octavo.metadata.zookeeper.connection import AnswerLostError
from octavo.metadata.zookeeper.fast_messages import Acl
from octavo.metadata.zookeeper.layout import Stat
from octavo.metadata.zookeeper.messages import (
    ANY_VERSION,
    BAD_VERSION,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    OK,
    Answer,
    Node,
    Request,
    changed_at,
    children,
    create,
    exists,
    failure_of,
    get,
    multi,
    set_value,
    sync,
)
from octavo.metadata.zookeeper.session import Session
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, OctavoError, UnauthorizedError

LARGE_BYTES: Final = 64 * 1024
LARGE_ATTEMPTS_MAX: Final = 3
"""A large change is not tried again after the connection has broken this many times: a server that accepts only smaller
requests (``jute.maxbuffer``) closes the connection without giving a reason."""

_REFUSALS: Final = {NO_NODE, NODE_EXISTS, BAD_VERSION}
"""Codes that a change can get because the same change has already been made."""

type Settle = Callable[[], Awaitable[Answer | None]]
"""Checks whether a change whose answer was lost was made: the answer that it got or must have got, or None when it was
not made and may be sent again."""


class Operation:
    """The time limit of one operation: ``async with nodes.operation(what) as operation``. Raises
    :class:`MetadataUnavailableError` when the time is over; ``what`` names the thing."""

    def __init__(self, nodes: "Nodes", what: str) -> None:
        self._nodes = nodes
        self.what = what
        self.in_doubt = False
        """A change was sent, and it is not known whether it was made."""
        self._timeout = asyncio.timeout(nodes.operation_seconds)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            nodes = self._nodes
            reason = "it does not answer" if nodes.session.connected else nodes.session.last_failure
            raise MetadataUnavailableError(
                f"{self.what}: no answer from ZooKeeper within {nodes.operation_seconds:g} s ({reason})",
                may_have_happened=self.in_doubt,
            ) from error

    def sent(self) -> None:
        """Note that a change is being sent."""
        self.in_doubt = True

    def settled(self) -> None:
        """Note that the outcome of the change is known."""
        self.in_doubt = False


class Nodes:
    """Nodes as one session sees them. New nodes get the access rights ``acl``."""

    def __init__(self, session: Session, *, operation_seconds: float, acl: Acl) -> None:
        self.session = session
        self.operation_seconds = operation_seconds
        self.acl = acl

    def operation(self, what: str) -> Operation:
        """The time limit for one operation on ``what``."""
        return Operation(self, what)

    # --- reads -----------------------------------------------------------------------------------------------------

    async def ask(self, *requests: Request) -> list[Answer]:
        """The answers to reads, which see every change that has returned by now. Repeats the reads when answers are
        lost."""
        while True:
            try:
                synced, *answers = await self.session.call_together(sync("/"), *requests)
            except AnswerLostError:
                continue
            if synced.code != OK:
                self.refuse(synced.code, "/")
            return answers

    async def read(self, path: str, *, watch: bool = False) -> Node | None:
        """The node; None when it does not exist. ``watch`` requests a notice of its next change in both cases."""
        while True:
            (answer,) = await self.ask(get(path, watch=watch))
            if answer.code == OK:
                node: Node = answer.value
                return node
            self._check(answer, path, NO_NODE)
            if not watch:
                return None
            # Only this request can watch a node that does not exist; it may have been made in between.
            (answer,) = await self.ask(exists(path, watch=True))
            self._check(answer, path, NO_NODE)
            if answer.code == NO_NODE:
                return None

    async def stat(self, path: str) -> Stat | None:
        """The node's stat; None when it does not exist."""
        (answer,) = await self.ask(exists(path))
        self._check(answer, path, NO_NODE)
        found: Stat | None = answer.value
        return found

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """The names of the node's children; None when there is no such node."""
        (answer,) = await self.ask(children(path, watch=watch))
        self._check(answer, path, NO_NODE)
        names: list[str] | None = answer.value
        return names

    async def read_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Node | None]:
        """The nodes, in this order; None for nodes that do not exist, which are not watched."""
        answers = await self.ask(*(get(path, watch=watch) for path in paths))
        for path, answer in zip(paths, answers, strict=True):
            self._check(answer, path, NO_NODE)
        return [answer.value for answer in answers]

    async def stats_after_write(self, written: str, paths: Sequence[str]) -> list[Stat | None]:
        """The stats of the nodes, in this order, after a write of the node ``written``; None for nodes that do not
        exist. ``written`` is made if it does not exist; its value is not used.

        A quorum commits the write, and the server executes the requests of a session in order, so the stats show every
        change that was committed before the write. The same is not true of ``sync``, which a leader answers that has
        lost its followers and does not know it yet (ZOOKEEPER-1675).
        """
        while True:
            try:
                write, *answers = await self.session.call_together(
                    set_value(written, b"", ANY_VERSION), *map(exists, paths)
                )
            except AnswerLostError:
                continue
            if write.code == NO_NODE:
                await self.ensure(written)
                continue
            self._check(write, written)
            for path, answer in zip(paths, answers, strict=True):
                self._check(answer, path, NO_NODE)
            return [answer.value for answer in answers]

    async def time_ms_of_write(self, written: str) -> int:
        """The time, in milliseconds since 1970, that the leading server gives to a write of the node ``written`` now;
        the node is made if it does not exist, and its value is not used."""
        while True:
            try:
                write, changed = await self.session.call_together(
                    set_value(written, b"", ANY_VERSION), changed_at(written)
                )
            except AnswerLostError:
                continue
            if write.code == NO_NODE:
                await self.ensure(written)
                continue
            self._check(write, written)
            self._check(changed, written)
            return int(changed.value)

    # --- changes ---------------------------------------------------------------------------------------------------

    async def change(
        self,
        operation: Operation,
        request: Request,
        settle: Settle,
        *,
        session_id: int | None = None,
        value_bytes: int = 0,
    ) -> Answer:
        """The definite answer to a change: OK, or one of the codes that concern the node.

        Raises :class:`octavo.metadata.zookeeper.session.SessionGoneError` when it was to be made in a session that has
        ended.
        """
        lost = 0
        while True:
            try:
                answer = await self.session.call(request, session_id=session_id, on_sent=operation.sent)
            except AnswerLostError as error:
                lost += 1
                settled = await settle()
                operation.settled()
                if settled is not None:
                    return settled
                if value_bytes > LARGE_BYTES and lost >= LARGE_ATTEMPTS_MAX:
                    raise MetadataUnavailableError(
                        f"{operation.what}: the connection broke at every attempt to store {value_bytes} bytes; does "
                        "the server's jute.maxbuffer allow them?",
                        may_have_happened=False,
                    ) from error
                continue
            operation.settled()
            if lost and self.code_of(answer) in _REFUSALS:
                settled = await settle()
                if settled is not None:
                    return settled
            return answer

    async def transact(
        self,
        operation: Operation,
        requests: Sequence[Request],
        settle: Settle,
        *,
        main: int = 0,
        session_id: int | None = None,
        value_bytes: int = 0,
    ) -> Answer:
        """As :meth:`change`, for changes that are made together or not at all. Returns the reason for a failure, or the
        answer to the change numbered ``main``; ``settle`` returns the same."""
        answer = await self.change(operation, multi(*requests), settle, session_id=session_id, value_bytes=value_bytes)
        if answer.code != OK or not isinstance(answer.value, list):
            return answer
        reason = failure_of(answer.value)
        done: Answer = answer.value[main] if reason == OK else Answer(reason)
        return done

    async def ensure(self, path: str) -> None:
        """Make a node without a value unless it exists. Its parent must exist."""

        async with self.operation(path) as operation:

            async def settle() -> Answer | None:
                return Answer(OK) if await self.stat(path) is not None else None

            answer = await self.change(operation, create(path, b"", self.acl), settle)
            self._check(answer, path, NODE_EXISTS)

    # --- refusals --------------------------------------------------------------------------------------------------

    @staticmethod
    def code_of(answer: Answer) -> int:
        """The code that tells how a change ended; for a transaction, the code of the part that decided it."""
        return failure_of(answer.value) if isinstance(answer.value, list) else answer.code

    def expect(self, answer: Answer, path: str, *codes: int) -> Answer:
        """The answer, if it is OK or has one of the codes; raises otherwise."""
        self._check(answer, path, *codes)
        return answer

    def _check(self, answer: Answer, path: str, *codes: int) -> None:
        if answer.code != OK and answer.code not in codes:
            self.refuse(answer.code, path)

    @staticmethod
    def refuse(code: int, path: str) -> NoReturn:
        """Raise the error for an unexpected code."""
        raise error_of(code, path)


def error_of(code: int, path: str) -> OctavoError:
    """The error for a refusal that only the operator can remedy."""
    if code == NO_AUTH:
        return UnauthorizedError(
            f"ZooKeeper denies access to {path}: give the credentials of this cluster in OCTAVO_ZOOKEEPER_AUTH, or "
            "name a file that holds them with ?auth_file=PATH in the URI"
        )
    if code == NO_NODE:
        return MetadataError(f"ZooKeeper's node {path} is missing: was the cluster destroyed?")
    return MetadataError(f"ZooKeeper refuses the request on {path} with code {code}")
