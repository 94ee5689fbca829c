"""Requests to ZooKeeper servers and the meaning of their answers: a typed interface to the message classes of aiozk.

A :class:`Request` is one call that has no number yet; :meth:`Request.payload` gives its bytes, and ``parse`` decodes
the body of the answer. aiozk's classes define the formats of the fields. What they lack (containers, the end of the
first answer) is here; the few messages that are sent by the thousand are in
:mod:`octavo.metadata.zookeeper.fast_messages`. See docs/decisions/010-zookeeper-session.md for why aiozk's session is
not used.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from aiozk import protocol
from aiozk.protocol import acl as aiozk_acl
from octavo.metadata.zookeeper.fast_messages import (
    CREATE_OPCODE,
    ERROR_PART,
    STAT_BYTES,
    Acl,
    CreateMessage,
    Message,
    Transaction,
    changed_at_ms,
    code_at,
    created_stat,
    part_at,
    stat_at,
    text_end,
)
from octavo.metadata.zookeeper.layout import Stat

# --- codes of answers ------------------------------------------------------------------------------------------------

OK: Final = 0
CONNECTION_LOSS: Final = -4
OPERATION_TIMEOUT: Final = -7
NO_NODE: Final = -101
NO_AUTH: Final = -102
BAD_VERSION: Final = -103
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111
SESSION_EXPIRED: Final = -112
SESSION_MOVED: Final = -118

SESSION_CODES: Final = frozenset({CONNECTION_LOSS, OPERATION_TIMEOUT, SESSION_EXPIRED, SESSION_MOVED})
"""Codes that concern the connection or the session, not the request."""

# --- numbers of requests ---------------------------------------------------------------------------------------------

WATCH_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4

ANY_VERSION: Final = -1

_ANY_WATCH: Final = 3

REPLY_HEADER: Final = struct.Struct("!iqi")
"""Number of the request, the server's latest change (zxid), code."""

_INT: Final = struct.Struct("!i")

PASSWORD_NONE: Final = bytes(16)


class Node(NamedTuple):
    """A node as read."""

    value: bytes
    stat: Stat


class Request(NamedTuple):
    """One call of a server, before it gets a number."""

    message: Message
    """An instance of a class of aiozk, or of :mod:`octavo.metadata.zookeeper.fast_messages`."""
    parse: Callable[[bytes], Any]
    """Decodes the value in an answer without error."""

    def payload(self, xid: int) -> bytes:
        """Its bytes as the request number ``xid``."""
        return self.message.serialize(xid)


class Answer(NamedTuple):
    """The answer of a server: a value, or the code of a refusal."""

    code: int
    value: Any = None


class Handshake(NamedTuple):
    """A server's answer to the connect request."""

    timeout_seconds: float
    """How long the session survives without a message; 0: it has ended."""
    session_id: int
    password: bytes


class WatchEvent(NamedTuple):
    """A watched node has changed."""

    path: str


class Containers(protocol.CreateRequest):  # type: ignore[misc]
    """Creates a container: a node that the servers remove after its last child has been deleted."""

    opcode = 19


# --- requests --------------------------------------------------------------------------------------------------------

OPEN_TO_ALL: Final = Acl(aiozk_acl.UNRESTRICTED_ACCESS)
"""Every client that reaches the servers may do everything."""

FOR_CREATOR: Final = Acl(aiozk_acl.AUTHED_UNRESTRICTED)
"""Only clients with the credentials of the node's creator may access it."""


def handshake(session_id: int, password: bytes, timeout_seconds: float, last_zxid: int) -> bytes:
    """The connect request, the first bytes on a connection. It does not accept servers in read-only mode, whose reads
    may be stale: such a server closes the connection."""
    message = protocol.ConnectRequest(
        protocol_version=0,
        last_seen_zxid=last_zxid,
        timeout=round(timeout_seconds * 1000),
        session_id=session_id,
        password=password,
        read_only=False,
    )
    payload: bytes = message.serialize()
    return payload


def parse_handshake(body: bytes) -> Handshake:
    """The server's answer to :func:`handshake`."""
    answer = protocol.ConnectResponse.deserialize(body)
    return Handshake(answer.timeout / 1000, answer.session_id, answer.password or PASSWORD_NONE)


def authenticate(scheme: str, credentials: bytes) -> Request:
    """Present credentials; sent with the number :data:`AUTH_XID`."""
    return Request(protocol.AuthRequest(type=0, scheme=scheme, auth=credentials), _nothing)


def ping() -> Request:
    """A ping; sent with the number :data:`PING_XID`."""
    return Request(protocol.PingRequest(), _nothing)


def close_session() -> Request:
    """End the session now."""
    return Request(protocol.CloseRequest(), _nothing)


def sync(path: str) -> Request:
    """Let later requests on this connection see every change made so far through any server. Not a quorum operation:
    see :mod:`octavo.metadata.zookeeper.layout`."""
    return Request(protocol.SyncRequest(path=path), _nothing)


def get(path: str, *, watch: bool = False) -> Request:
    """Read a node: a :class:`Node`."""
    return Request(protocol.GetDataRequest(path=path, watch=watch), _parse_node)


def exists(path: str, *, watch: bool = False) -> Request:
    """A node's :class:`Stat`. The only request that can watch for a node to be made."""
    return Request(protocol.ExistsRequest(path=path, watch=watch), _parse_stat)


def changed_at(path: str) -> Request:
    """When a node's value was last set, by the clock of the server that led then: milliseconds since 1970."""
    return Request(protocol.ExistsRequest(path=path, watch=False), changed_at_ms)


def children(path: str, *, watch: bool = False) -> Request:
    """The names of a node's children, in no order: a list of str."""
    return Request(protocol.GetChildrenRequest(path=path, watch=watch), _parse_children)


def create(path: str, value: bytes, acl: Acl, *, ephemeral: bool = False) -> Request:
    """Make a node: its :class:`Stat`."""
    return Request(CreateMessage(path, value, acl, ephemeral=ephemeral), _parse_created)


def create_container(path: str, acl: Acl) -> Request:
    """Make a node that the servers remove after its last child: its :class:`Stat`."""
    message = Containers(path=path, data=b"", acl=list(acl.entries))
    message.set_flags(container=True)
    return Request(message, _parse_created)


def set_value(path: str, value: bytes, version: int) -> Request:
    """Set a node's value if it has this version: its new :class:`Stat`."""
    return Request(protocol.SetDataRequest(path=path, data=value, version=version), _parse_stat)


def delete(path: str, version: int) -> Request:
    """Delete a node if it has this version."""
    return Request(protocol.DeleteRequest(path=path, version=version), _nothing)


def check(path: str, version: int) -> Request:
    """A condition on a node's version. Only within :func:`multi`."""
    return Request(protocol.CheckVersionRequest(path=path, version=version), _nothing)


def multi(*requests: Request) -> Request:
    """Execute all of the requests or none: a list of :class:`Answer`, one for each. If the transaction failed, one of
    the answers holds the reason."""
    return transaction(Transaction([request.message for request in requests]))


def transaction(message: Transaction) -> Request:
    """As :func:`multi`."""
    return Request(message, _parse_multi)


def forget_watches(path: str) -> Request:
    """Stop watching a node."""
    return Request(protocol.RemoveWatchesRequest(path=path, type=_ANY_WATCH), _nothing)


def failure_of(answers: Sequence[Answer]) -> int:
    """Why a transaction failed: the code of the first answer that is a reason; OK when it succeeded."""
    at = failed_part(answers)
    return OK if at is None else answers[at].code


def failed_part(answers: Sequence[Answer]) -> int | None:
    """The index of the part that made a transaction fail; None when it succeeded."""
    return next((at for at, answer in enumerate(answers) if answer.code not in {OK, ROLLED_BACK}), None)


ROLLED_BACK: Final = -2
"""Code of the parts of a failed transaction other than the one that made it fail."""


# --- bodies ----------------------------------------------------------------------------------------------------------


def parse_event(body: bytes) -> WatchEvent | None:
    """Decodes a watch's message; None when it concerns only the connection."""
    event = protocol.WatchEvent.deserialize(body)
    return WatchEvent(event.path) if event.type > 0 else None


def _nothing(_body: bytes) -> None:
    return None


def _parse_stat(body: bytes) -> Stat:
    return stat_at(body)


def _parse_node(body: bytes) -> Node:
    stop = text_end(body)
    return Node(body[_INT.size : stop], stat_at(body, stop))


def _parse_created(body: bytes) -> Stat:
    return created_stat(body)[0]


def _parse_children(body: bytes) -> list[str]:
    names: list[str] = protocol.GetChildrenResponse.deserialize(body).children
    return names


_ONLY_STAT: Final = protocol.SetDataRequest.opcode
"""The only kind of part in a transaction's answer, besides a create's, that has a body."""


def _parse_multi(body: bytes) -> list[Answer]:
    answers: list[Answer] = []
    offset = 0
    while True:
        opcode, done, offset = part_at(body, offset)
        if done:
            return answers
        value: Stat | None = None
        code = OK
        if opcode == ERROR_PART:
            code, offset = code_at(body, offset)
        elif opcode == CREATE_OPCODE:
            value, offset = created_stat(body, offset)
        elif opcode == _ONLY_STAT:
            value, offset = stat_at(body, offset), offset + STAT_BYTES
        answers.append(Answer(code, value))
