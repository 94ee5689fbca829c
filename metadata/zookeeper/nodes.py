"""Reads and changes of ZooKeeper's nodes that end in a definite answer, or say that they have none.

Reads are synced: they see every change that had returned when they were made, whichever server answers (rule M3).
A change whose answer was lost is looked for before anything is said about it (rule M1): every change comes with a
function that reads what stands there and tells whether it is one's own doing, somebody else's, or has not been done
and may be sent again. See :mod:`octavo.metadata.zookeeper.session` for why such a look settles it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, NoReturn, Self

from octavo.metadata.zookeeper.connection import AnswerLostError
from octavo.metadata.zookeeper.fast_messages import Acl
from octavo.metadata.zookeeper.layout import Stat
from octavo.metadata.zookeeper.messages import (
    BAD_VERSION,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    OK,
    Answer,
    Node,
    Request,
    children,
    create,
    exists,
    failure_of,
    get,
    multi,
    sync,
)
from octavo.metadata.zookeeper.session import Session
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, OctavoError, UnauthorizedError

LARGE_BYTES: Final = 64 * 1024
LARGE_ATTEMPTS_MAX: Final = 3
"""A large change during which the connection broke so often is not tried again: a server that takes only smaller
requests (``jute.maxbuffer``) drops the connection without a word."""

_REFUSALS: Final = {NO_NODE, NODE_EXISTS, BAD_VERSION}
"""Codes that one's own change, done already, can bring about."""

type Settle = Callable[[], Awaitable[Answer | None]]
"""Looks whether a change whose answer was lost was done: the answer that it had or must have had, or None when it was
not done and may be sent again."""


class Operation:
    """The time that one operation has: ``async with nodes.operation(what) as operation``. Raises
    :class:`MetadataUnavailableError` when it is over; ``what`` names the thing."""

    def __init__(self, nodes: "Nodes", what: str) -> None:
        self._nodes = nodes
        self.what = what
        self.in_doubt = False
        """A change was sent, and nobody knows whether it was done."""
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
        """A change goes out."""
        self.in_doubt = True

    def settled(self) -> None:
        """Its fate is known."""
        self.in_doubt = False


class Nodes:
    """Nodes as one session sees them. ``acl`` is given to what is made."""

    def __init__(self, session: Session, *, operation_seconds: float, acl: Acl) -> None:
        self.session = session
        self.operation_seconds = operation_seconds
        self.acl = acl

    def operation(self, what: str) -> Operation:
        """The time for one operation on ``what``."""
        return Operation(self, what)

    # --- reads -----------------------------------------------------------------------------------------------------

    async def ask(self, *requests: Request) -> list[Answer]:
        """The answers to reads, which see every change that has returned by now. Asks again when they are lost."""
        while True:
            try:
                synced, *answers = await self.session.call_together(sync("/"), *requests)
            except AnswerLostError:
                continue
            if synced.code != OK:
                self.refuse(synced.code, "/")
            return answers

    async def read(self, path: str, *, watch: bool = False) -> Node | None:
        """The node; None when there is none. ``watch`` asks to be told of its next change either way."""
        while True:
            (answer,) = await self.ask(get(path, watch=watch))
            if answer.code == OK:
                node: Node = answer.value
                return node
            self._check(answer, path, NO_NODE)
            if not watch:
                return None
            # Only this request can watch for what is not there; it may have come in between.
            (answer,) = await self.ask(exists(path, watch=True))
            self._check(answer, path, NO_NODE)
            if answer.code == NO_NODE:
                return None

    async def stat(self, path: str) -> Stat | None:
        """What is known of the node; None when there is none."""
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
        """The nodes, in this order; None for those that are not there, which are not watched."""
        answers = await self.ask(*(get(path, watch=watch) for path in paths))
        for path, answer in zip(paths, answers, strict=True):
            self._check(answer, path, NO_NODE)
        return [answer.value for answer in answers]

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
        """The definite answer to a change: OK, or one of the codes that tell of the node.

        Raises :class:`octavo.metadata.zookeeper.session.SessionGoneError` when it was to be done in a session that has
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
        """As :meth:`change`, for changes that are made together or not at all: the reason for a failure, or the answer
        to the one numbered ``main``, as ``settle`` has to give it, too."""
        answer = await self.change(operation, multi(*requests), settle, session_id=session_id, value_bytes=value_bytes)
        if answer.code != OK or not isinstance(answer.value, list):
            return answer
        reason = failure_of(answer.value)
        done: Answer = answer.value[main] if reason == OK else Answer(reason)
        return done

    async def ensure(self, path: str) -> None:
        """Make a node without a value, unless it is there. Its parent must be."""

        async with self.operation(path) as operation:

            async def settle() -> Answer | None:
                return Answer(OK) if await self.stat(path) is not None else None

            answer = await self.change(operation, create(path, b"", self.acl), settle)
            self._check(answer, path, NODE_EXISTS)

    # --- refusals --------------------------------------------------------------------------------------------------

    @staticmethod
    def code_of(answer: Answer) -> int:
        """The code that tells how a change went; of a transaction, of the part that decided it."""
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
        """Raise what a code means that nobody expects."""
        raise error_of(code, path)


def error_of(code: int, path: str) -> OctavoError:
    """The error for a refusal that is nobody's business but the user's."""
    if code == NO_AUTH:
        return UnauthorizedError(
            f"ZooKeeper gives no access to {path}: name the credentials of this cluster by OCTAVO_ZOOKEEPER_AUTH, or "
            "by auth_file in the URI"
        )
    if code == NO_NODE:
        return MetadataError(f"ZooKeeper's node {path} is missing: was the cluster destroyed?")
    return MetadataError(f"ZooKeeper refuses what was asked of {path}, with code {code}")
