"""What is said to a ZooKeeper server, and what its answers mean: a typed face on the message classes of aiozk.

A :class:`Request` is one call before it has a number; :meth:`Request.payload` gives its bytes, ``parse`` the value in
the answer's body. aiozk's classes hold the formats of the fields; what they lack (containers, the answers to a
transaction, the first answer's end) is here. See docs/decisions/010-zookeeper-session.md for why its session is not
used.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from aiozk import protocol
from aiozk.protocol import acl as aiozk_acl
from aiozk.protocol.stat import Stat as AiozkStat
from octavo.metadata.zookeeper_layout import Stat

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
AUTH_FAILED: Final = -115
SESSION_MOVED: Final = -118
NO_WATCHER: Final = -121

SESSION_CODES: Final = frozenset({CONNECTION_LOSS, OPERATION_TIMEOUT, SESSION_EXPIRED, SESSION_MOVED})
"""These tell of the connection or the session, not of the request."""

# --- numbers of requests ---------------------------------------------------------------------------------------------

WATCH_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4

ANY_VERSION: Final = -1

_ANY_WATCH: Final = 3

REPLY_HEADER: Final = struct.Struct("!iqi")
"""Number of the request, the server's latest change, code."""

_MULTI_HEADER: Final = struct.Struct("!i?i")
_INT: Final = struct.Struct("!i")

PASSWORD_NONE: Final = bytes(16)


class Node(NamedTuple):
    """A node as read."""

    value: bytes
    stat: Stat


class Request(NamedTuple):
    """One call of a server, without a number."""

    message: Any
    """Of a class of aiozk."""
    parse: Callable[[bytes], Any]
    """The value in an answer without error."""

    def payload(self, xid: int) -> bytes:
        """Its bytes as the request number ``xid``."""
        payload: bytes = self.message.serialize(xid)
        return payload


class Answer(NamedTuple):
    """What a server answered: a value, or the code of a refusal."""

    code: int
    value: Any = None


class Handshake(NamedTuple):
    """A server's first answer."""

    timeout_seconds: float
    """How long the session lasts unheard; 0: it has ended."""
    session_id: int
    password: bytes


class WatchEvent(NamedTuple):
    """Something watched has changed."""

    path: str


class Containers(protocol.CreateRequest):  # type: ignore[misc]
    """A create of a container: a node that the servers remove when its last child has gone."""

    opcode = 19


# --- requests --------------------------------------------------------------------------------------------------------

type Acl = Sequence[Any]

OPEN_TO_ALL: Final[Acl] = (aiozk_acl.UNRESTRICTED_ACCESS,)
"""Everybody who reaches the servers may do everything."""

FOR_CREATOR: Final[Acl] = (aiozk_acl.AUTHED_UNRESTRICTED,)
"""Who shows the credentials that made the node may do everything, nobody else anything."""


def handshake(session_id: int, password: bytes, timeout_seconds: float, last_zxid: int) -> bytes:
    """The first bytes on a connection. A server in read-only mode, whose reads may be old, closes it: we do not say
    that we would have one."""
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
    """Show credentials; goes out as number :data:`AUTH_XID`."""
    return Request(protocol.AuthRequest(type=0, scheme=scheme, auth=credentials), _nothing)


def ping() -> Request:
    """A sign of life; goes out as number :data:`PING_XID`."""
    return Request(protocol.PingRequest(), _nothing)


def close_session() -> Request:
    """End the session now."""
    return Request(protocol.CloseRequest(), _nothing)


def sync(path: str) -> Request:
    """Let what follows on this connection see every change made so far, whichever server took it."""
    return Request(protocol.SyncRequest(path=path), _nothing)


def get(path: str, *, watch: bool = False) -> Request:
    """Read a node: a :class:`Node`."""
    return Request(protocol.GetDataRequest(path=path, watch=watch), _parse_node)


def exists(path: str, *, watch: bool = False) -> Request:
    """A node's :class:`Stat`. The only request that can watch for a node to be made."""
    return Request(protocol.ExistsRequest(path=path, watch=watch), _parse_stat)


def children(path: str, *, watch: bool = False) -> Request:
    """The names of a node's children, in no order: a list of str."""
    return Request(protocol.GetChildrenRequest(path=path, watch=watch), _parse_children)


def create(path: str, value: bytes, acl: Acl, *, ephemeral: bool = False) -> Request:
    """Make a node: its :class:`Stat`."""
    message = protocol.Create2Request(path=path, data=value, acl=list(acl))
    message.set_flags(ephemeral=ephemeral)
    return Request(message, _parse_created)


def create_container(path: str, acl: Acl) -> Request:
    """Make a node that goes with its last child: its :class:`Stat`."""
    message = Containers(path=path, data=b"", acl=list(acl))
    message.set_flags(container=True)
    return Request(message, _parse_created)


def set_value(path: str, value: bytes, version: int) -> Request:
    """Give a node a value if it has this version: its new :class:`Stat`."""
    return Request(protocol.SetDataRequest(path=path, data=value, version=version), _parse_stat)


def delete(path: str, version: int) -> Request:
    """Delete a node if it has this version."""
    return Request(protocol.DeleteRequest(path=path, version=version), _nothing)


def check(path: str, version: int) -> Request:
    """Only within :func:`multi`: a condition on a node's version."""
    return Request(protocol.CheckVersionRequest(path=path, version=version), _nothing)


def multi(*requests: Request) -> Request:
    """All of them or none: a list of :class:`Answer`, one for each. Of those that failed, one has the reason."""
    message = protocol.TransactionRequest()
    for request in requests:
        message.add(request.message)
    return Request(message, lambda body: _parse_multi(requests, body))


def forget_watches(path: str) -> Request:
    """Watch a node no more."""
    return Request(protocol.RemoveWatchesRequest(path=path, type=_ANY_WATCH), _nothing)


def failure_of(answers: Sequence[Answer]) -> int:
    """Why a transaction failed: the code of its first answer that is a reason; OK when it did not."""
    reasons = [answer.code for answer in answers if answer.code not in {OK, _ROLLED_BACK}]
    return reasons[0] if reasons else OK


_ROLLED_BACK: Final = -2
"""Code of the parts of a failed transaction that come after the one that failed."""


# --- bodies ----------------------------------------------------------------------------------------------------------


def parse_event(body: bytes) -> WatchEvent | None:
    """A watch's message; None when it tells of the connection only."""
    event = protocol.WatchEvent.deserialize(body)
    return WatchEvent(event.path) if event.type > 0 else None


def _nothing(_body: bytes) -> None:
    return None


def _stat_of(stat: Any) -> Stat:
    return Stat(stat.created_zxid, stat.version, stat.ephemeral_owner)


def _parse_stat(body: bytes) -> Stat:
    return _stat_of(AiozkStat.parse(body, 0)[0])


def _parse_node(body: bytes) -> Node:
    answer = protocol.GetDataResponse.deserialize(body)
    return Node(answer.data or b"", _stat_of(answer.stat))


def _parse_created(body: bytes) -> Stat:
    return _stat_of(protocol.Create2Response.deserialize(body).stat)


def _parse_children(body: bytes) -> list[str]:
    names: list[str] = protocol.GetChildrenResponse.deserialize(body).children
    return names


_BODIES: Final[dict[int, Any]] = {
    protocol.Create2Request.opcode: protocol.Create2Response,
    protocol.SetDataRequest.opcode: AiozkStat,
    protocol.DeleteRequest.opcode: None,
    protocol.CheckVersionRequest.opcode: None,
}
"""What stands behind the header of each part of a transaction's answer."""


def _parse_multi(requests: Sequence[Request], body: bytes) -> list[Answer]:
    answers: list[Answer] = []
    offset = 0
    while True:
        kind, done, _ = _MULTI_HEADER.unpack_from(body, offset)
        offset += _MULTI_HEADER.size
        if done:
            break
        if kind == -1:
            (code,) = _INT.unpack_from(body, offset)
            offset += _INT.size
            answers.append(Answer(code))
            continue
        layout = _BODIES[kind]
        value: Stat | None = None
        if layout is not None:
            parsed, offset = layout.parse(body, offset)
            value = _stat_of(parsed.stat if layout is protocol.Create2Response else parsed)
        answers.append(Answer(OK, value))
    if len(answers) != len(requests):
        raise ValueError(f"a transaction of {len(requests)} requests has {len(answers)} answers")
    return answers
