"""Every message of the wire as a typed value, with its one encoding.

A frame's array is ``[request id, op, ...fields]`` for requests, ``[request id, op, 0, ...fields]`` for replies and
``[request id, op, code, text, may_have_happened]`` for refusals, ``code`` from
:data:`octavo.protocol.errors.ERROR_CODES`. Request ids are the requester's to choose; replies come in any order.
Request id 0 is the connection itself: the hello each side sends first, and the one error frame before a connection is
closed for a broken protocol.

Each class below lists its fields in wire order; :data:`REQUESTS` and :data:`REPLIES` are the op table. Decoding checks
the type and range of every field and raises :class:`ProtocolError`, naming message and field, for anything else: what
passes can be used without further checks. Absent ids are ``None``; ids of runs are ``[first, last]``, both inclusive.

Requests carry a ``term``: which writer of a ledger they are from or about, where a ledger has several in turn. It is 0
for a ledger with one writer; above 0 ids are places (``places``), and only bookies with :data:`CAPABILITY_TERMS` are
asked.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar, Self, cast, dataclass_transform

from octavo.protocol import fields
from octavo.protocol.entries import OVERHEAD_BYTES_MAX
from octavo.protocol.errors import (
    CODE_OK,
    OctavoError,
    ProtocolError,
    UnsupportedOperationError,
    code_of,
    error_from_wire,
)
from octavo.protocol.frames import pack_body
from octavo.protocol.ids import ID_MAX, TERM_MAX
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import (
    E_MAX,
    ENTRIES_PER_FRAME_MAX,
    ERROR_MESSAGE_CHARACTERS_MAX,
    FRAME_BYTES_MAX,
    LONG_POLL_SECONDS_MAX,
)

PROTOCOL_VERSION = 1
MAGIC = "octavo"
CONNECTION_REQUEST_ID = 0
REQUEST_ID_MAX = 2**63 - 1
KEY_BYTES_MAX = 64

CAPABILITY_REPAIR = "repair"
"""In a bookie's hello: it answers MISSING, and understands the flag REPAIR of READ."""

CAPABILITY_DEFERRED_SYNC = "deferred-sync"
"""In a bookie's hello: it answers FORCE, and understands the flag DEFERRED_SYNC of ADD (rule W10)."""

CAPABILITY_TERMS = "terms"
"""In a bookie's hello: it understands terms above 0 (rule T7). Others ignore them: a fence of one term would stop all,
and would be forgotten as that of a term."""

CAPABILITY_AUTHENTICATE = "authenticate"
"""In a bookie's hello: it answers AUTHENTICATE, and serves only clients that it knows."""

EXTENSION_PRINCIPAL = "principal"
"""In a bookie's hello, where it requires authentication: the principal that the client's certificate names."""

EXTENSION_DENIED = "denied"
"""In a bookie's hello, where it requires authentication: why the client's certificate is not enough. A client without
a key gives up."""


class Op(enum.IntEnum):
    """The operation of a frame. Numbers are permanent."""

    HELLO = 0
    ADD = 1
    READ = 2
    READ_LAC = 3
    WRITE_LAC = 4
    FORCE = 5
    LIST_ENTRIES = 6
    INFO = 7
    PING = 8
    MISSING = 9
    AUTHENTICATE = 10
    PACK = 11
    SUBSCRIBE = 12
    PUSH = 13
    ERROR = 127


class AddFlag(enum.IntFlag):
    """Flags of ADD."""

    NONE = 0
    RECOVERY = 1
    """Sent by a recovery or a repair: accepted on a fenced ledger (rules F5 and B6)."""
    DEFERRED_SYNC = 2
    """The request is answered before its entries are durable; FORCE makes them so (rule W10). Needs
    :data:`CAPABILITY_DEFERRED_SYNC`, and does not go together with RECOVERY."""
    PRIVATE = 4
    """The ledger is private: from now on the bookie gives its entries only to clients that have the ledger key, and to
    repairs (rule S3)."""


class ReadFlag(enum.IntFlag):
    """Flags of READ and READ_LAC."""

    NONE = 0
    FENCE = 1
    """Fence the ledger before answering (rules F2 and F4). Needs the ledger key."""
    REPAIR = 2
    """Sent by a repair: also served for private ledgers. A READ is answered after other reads, at a limited rate. Needs
    :data:`CAPABILITY_REPAIR`."""


_ID = fields.integer(0, ID_MAX)
_TERM = fields.integer(0, TERM_MAX)
_KEY = fields.binary(KEY_BYTES_MAX)
_SEALED = fields.optional(fields.binary(FRAME_BYTES_MAX))


# --- messages -------------------------------------------------------------------------------------------------------


class Message:
    """A message: a frozen dataclass whose fields, in order, are the wire's, each with its check in ``checks``."""

    __slots__ = ()
    op: ClassVar[Op]
    names: ClassVar[tuple[str, ...]]
    checks: ClassVar[tuple[fields.Check, ...]]

    def to_fields(self) -> list[Any]:
        """The values of the fields, in order."""
        return [getattr(self, name) for name in self.names]

    @classmethod
    def from_fields(cls, values: Sequence[Any]) -> Self:
        """Decode the fields. Raises :class:`ProtocolError`."""
        checks = cls.checks
        if len(values) != len(checks):
            raise ProtocolError(f"{cls.__name__}: {len(values)} fields instead of {len(checks)}")
        try:
            checked = [check(value) for check, value in zip(checks, values, strict=True)]
        except ValueError:
            raise cls._refusal_of(values) from None
        return cls(*checked)

    @classmethod
    def _refusal_of(cls, values: Sequence[Any]) -> ProtocolError:
        """Names the first of ``values`` that is wrong."""
        for name, check, value in zip(cls.names, cls.checks, values, strict=True):
            try:
                check(value)
            except ValueError as error:
                return ProtocolError(f"{cls.__name__}.{name}: {error}")
        raise AssertionError("one of the values is wrong")


class Request(Message):
    """A request of a client to a bookie."""

    __slots__ = ()

    def encode(self, request_id: int) -> bytes:
        """The frame's body."""
        return pack_body((request_id, int(self.op), *self.to_fields()))


class Reply(Message):
    """The answer of a bookie on success."""

    __slots__ = ()

    def encode(self, request_id: int) -> bytes:
        """The frame's body."""
        return pack_body((request_id, int(self.op), CODE_OK, *self.to_fields()))


@dataclass_transform(frozen_default=True)
def _message[M: Message](op: Op, *checks: fields.Check) -> Callable[[type[M]], type[M]]:
    def decorate(plain: type[M]) -> type[M]:
        message_class = dataclass(frozen=True, slots=True)(plain)
        message_class.op = op
        message_class.names = tuple(field.name for field in dataclass_fields(cast(Any, message_class)))
        message_class.checks = checks
        if len(checks) != len(message_class.names):
            raise TypeError(f"{plain.__name__} needs one check per field")
        return message_class

    return decorate


@_message(
    Op.HELLO,
    fields.text(16),
    fields.integer(1, 2**16),
    fields.integer(1, 2**16),
    fields.text(64),
    fields.text(128),
    fields.text(128),
    fields.text(64),
    fields.texts(64, 64),
    fields.extensions,
)
class Hello(Request):
    """The first frame in each direction. The connecting side sends first.

    ``versions`` are the lowest and highest protocol version spoken; the highest common one is used. ``bookie_id`` is
    the bookie wanted (from a client; empty for any) or answering (from a bookie): an address may have passed to
    another. ``boot_id`` names one life of the sender's process. ``cluster_id`` is empty when a client does not know
    it.

    ``capabilities`` name what the sender understands beyond this version, operations above all: a side uses such an
    operation only if the other has named it. ``extensions`` carry content that belongs to the hello itself, the first
    message of an authentication for example. Both are ignored if unknown, and so are fields that follow them.
    """

    magic: str
    version_lowest: int
    version_highest: int
    software: str
    cluster_id: str
    bookie_id: str
    boot_id: str
    capabilities: tuple[str, ...]
    extensions: dict[str, bytes] = field(default_factory=dict)


@_message(Op.ADD, _ID, _KEY, fields.flags(AddFlag), _TERM, fields.sealed_entries)
class Add(Request):
    """Store sealed entries of one ledger, ids ascending; all of them or none. Needs the ledger key. With a term above 0
    all ids are places of it."""

    ledger_id: int
    ledger_key: bytes
    flags: AddFlag
    term: int
    entries: list[bytes]


@_message(Op.ADD)
class Added(Reply):
    """Every entry of the request is on this bookie's disk; with DEFERRED_SYNC: in its memory, and on its way there."""


@_message(
    Op.READ, _ID, _KEY, fields.flags(ReadFlag), _TERM, _ID, _ID, fields.integer(1, E_MAX), fields.residues,
    fields.integer(1, ENTRIES_PER_FRAME_MAX), fields.integer(0, FRAME_BYTES_MAX),
)  # fmt: skip
class Read(Request):
    """Entries of ``first..last`` whose ``id % modulus`` is among ``residues`` (``1, (0,)`` for all of them).

    The answer stops at either limit, but holds one entry at least if it finds one. ``ledger_key`` is empty unless
    the request fences or the ledger is private. ``term`` is, with FENCE, the one that is over; without, it means
    nothing.
    """

    ledger_id: int
    ledger_key: bytes
    flags: ReadFlag
    term: int
    first: int
    last: int
    modulus: int
    residues: tuple[int, ...]
    entries_max: int
    bytes_max: int


@_message(Op.READ, _ID, fields.sealed_entries, fields.runs, fields.optional(_ID))
class ReadAnswer(Reply):
    """The entries asked for that the bookie has, from the request's ``first`` up to ``last_covered``.

    Of those ids: each is found (in ``entries``), *unknown* (in a run of ``unknown``: damaged, unreadable, or the
    bookie is in doubt), or else absent. Ids above ``last_covered`` are unanswered (rule R2).
    ``last_add_confirmed`` is the LAC the bookie knows: a hint.
    """

    last_covered: int
    entries: Sequence[bytes]
    unknown: tuple[tuple[int, int], ...]
    last_add_confirmed: int | None


@_message(
    Op.READ_LAC, _ID, _KEY, fields.flags(ReadFlag), _TERM, fields.optional(_ID),
    fields.integer(0, int(LONG_POLL_SECONDS_MAX * 1000)), fields.integer(0, ENTRIES_PER_FRAME_MAX),
    fields.integer(0, FRAME_BYTES_MAX),
)  # fmt: skip
class ReadLac(Request):
    """The last add confirmed that the bookie knows.

    With ``wait_milliseconds`` above 0 the bookie answers once it knows a LAC above ``above``, the ledger is fenced, or
    the time is over. ``entries_max`` above 0 brings along entries from ``above + 1`` on, up to the LAC found.

    ``term`` is, with FENCE, the one that is over; without, the one that is followed: fenced then means that it is over,
    and above 0 no entries of other terms are brought along.
    """

    ledger_id: int
    ledger_key: bytes
    flags: ReadFlag
    term: int
    above: int | None
    wait_milliseconds: int
    entries_max: int
    bytes_max: int


@_message(Op.READ_LAC, fields.boolean, fields.boolean, fields.boolean, _SEALED, _SEALED, fields.sealed_entries)
class LacAnswer(Reply):
    """``explicit`` and ``entry`` are the sealed explicit LAC and the sealed entry with the highest LAC that the bookie
    has: the asker verifies them and takes the higher. ``known``: the bookie has heard of the ledger. ``fenced``: the
    term asked for is over. ``in_doubt``: this LAC is only a hint (rule B4)."""

    known: bool
    fenced: bool
    in_doubt: bool
    explicit: bytes | None
    entry: bytes | None
    entries: list[bytes]


@_message(Op.WRITE_LAC, _ID, _KEY, _TERM, fields.binary(OVERHEAD_BYTES_MAX))
class WriteLac(Request):
    """Take an explicit LAC, sealed by the writer. Applied at once, without waiting for the disk (rule W2). Needs the
    key."""

    ledger_id: int
    ledger_key: bytes
    term: int
    sealed: bytes


@_message(Op.WRITE_LAC)
class LacWritten(Reply):
    """The LAC has been applied."""


@_message(Op.SUBSCRIBE, _ID, _ID, _KEY, _TERM, _ID, fields.optional(_ID))
class Subscribe(Request):
    """Set subscription number ``subscription`` of the connection (:mod:`octavo.protocol.pushes`): what moves in this
    term is pushed, and entries from ``first`` on up to ``credit_bytes`` in all. None: the subscription ends."""

    subscription: int
    ledger_id: int
    ledger_key: bytes
    term: int
    first: int
    credit_bytes: int | None


@_message(Op.SUBSCRIBE)
class Subscribed(Reply):
    """The subscription has been set."""


@_message(Op.FORCE, _ID, _KEY, _TERM, fields.runs)
class Force(Request):
    """Make deferred adds of these ids durable. Needs the key, and :data:`CAPABILITY_DEFERRED_SYNC`. With a term above 0
    all ids are places of it."""

    ledger_id: int
    ledger_key: bytes
    term: int
    ids: tuple[tuple[int, int], ...]


@_message(Op.FORCE)
class Forced(Reply):
    """Every id named that this process has answered an add of is durable. It says nothing about entries that the
    process before it has answered: the client compares the ``boot_id`` of the hellos (rule W10)."""


@_message(Op.LIST_ENTRIES, _ID, _ID, _ID)
class ListEntries(Request):
    """Which ids of ``first..last`` the bookie holds."""

    ledger_id: int
    first: int
    last: int


@_message(Op.LIST_ENTRIES, _ID, fields.runs)
class EntryList(Reply):
    """Runs of the ids held, from the request's ``first`` up to ``last_covered``; ask again above it."""

    last_covered: int
    held: tuple[tuple[int, int], ...]


@_message(Op.MISSING, _ID, _ID, _ID, fields.integer(1, E_MAX), fields.residues)
class Missing(Request):
    """Which ids of ``first..last`` with ``id % modulus`` among ``residues`` the bookie does not hold. Answered from the
    index: no entry is read. Needs :data:`CAPABILITY_REPAIR`."""

    ledger_id: int
    first: int
    last: int
    modulus: int
    residues: tuple[int, ...]


@_message(Op.MISSING, _ID, fields.runs, fields.runs)
class MissingAnswer(Reply):
    """Of the ids asked for, from the request's ``first`` up to ``last_covered``, each is held, missing, or unknown (the
    index is damaged there, or the bookie is in doubt); ask again above it. A run may span ids that were not asked for,
    those of other residues. Both lists are empty where the bookie holds all."""

    last_covered: int
    missing: tuple[tuple[int, int], ...]
    unknown: tuple[tuple[int, int], ...]


@_message(Op.AUTHENTICATE, fields.text(32), fields.text(64), fields.binary(1024))
class Authenticate(Request):
    """One step of proving who the client is. ``mechanism`` names the exchange, ``name`` the principal. Needs
    :data:`CAPABILITY_AUTHENTICATE`."""

    mechanism: str
    name: str
    data: bytes


@_message(Op.AUTHENTICATE, fields.boolean, fields.texts(64, 64), fields.binary(1024))
class AuthenticateAnswer(Reply):
    """The bookie's part of the step. ``complete``: the client is authenticated, has these ``roles``, and ``data``
    proves that the bookie is what it claims to be."""

    complete: bool
    roles: tuple[str, ...]
    data: bytes


@_message(Op.INFO)
class Info(Request):
    """Capacity, load and version of the bookie."""


@_message(Op.INFO, fields.facts)
class InfoAnswer(Reply):
    """Named facts; docs/wire-protocol.md lists them. A reader ignores names it does not know."""

    facts: Mapping[str, str | int | float | bool]


@_message(Op.PING)
class Ping(Request):
    """Asks whether the bookie answers."""


@_message(Op.PING)
class Pong(Reply):
    """The bookie answers."""


REQUESTS: dict[int, type[Request]] = {
    int(request.op): request
    for request in (Add, Read, ReadLac, WriteLac, Force, ListEntries, Info, Ping, Missing, Authenticate, Subscribe)
}
"""Op -> request, without the hello, which is only sent once per connection."""

REPLIES: dict[int, type[Reply]] = {
    int(reply.op): reply
    for reply in (
        Added,
        ReadAnswer,
        LacAnswer,
        LacWritten,
        Forced,
        EntryList,
        InfoAnswer,
        Pong,
        MissingAnswer,
        AuthenticateAnswer,
        Subscribed,
    )
}
"""Op -> reply."""

_ERROR_TEXT = fields.text(ERROR_MESSAGE_CHARACTERS_MAX)


def encode_error(request_id: int, op: Op, error: OctavoError) -> bytes:
    """The body of a refusal of one request; with :data:`CONNECTION_REQUEST_ID` and ``Op.ERROR``, of the connection.

    Whatever the error's text holds, this succeeds: what cannot be UTF-8 (a path with stray bytes) is escaped, what is
    too long is cut.
    """
    text = error.message.encode(errors="backslashreplace").decode()[:ERROR_MESSAGE_CHARACTERS_MAX]
    return pack_body((request_id, int(op), code_of(error), text, error.may_have_happened))


def decode_request(values: Sequence[Any]) -> tuple[int, Request]:
    """Request id and request of a frame that arrived at a bookie.

    Raises :class:`ProtocolError`. An operation that does not exist here is :class:`UnknownOperationError`: the frame is
    well-formed, so the connection goes on.
    """
    if len(values) < 2:
        raise ProtocolError("a request is [id, op, ...]")
    request_id, op = values[0], values[1]
    if type(request_id) is not int or not CONNECTION_REQUEST_ID < request_id <= REQUEST_ID_MAX:
        raise ProtocolError(f"a request id is an integer from 1 to {REQUEST_ID_MAX}")
    if type(op) is not int or not 0 <= op < 128:
        raise ProtocolError("an operation is an integer from 0 to 127")
    request_class = REQUESTS.get(op)
    if request_class is None:
        raise UnknownOperationError(request_id, op)
    request = request_class.from_fields(values[2:])
    if op in _OPS_WITH_RANGES:
        _check_range(request)
    return request_id, request


_OPS_WITH_RANGES = frozenset({Op.READ, Op.LIST_ENTRIES, Op.MISSING})


def _check_range(request: Request) -> None:
    """Check what the checks of single fields cannot see."""
    assert isinstance(request, Read | ListEntries | Missing), "only these have a range"
    if request.first > request.last:
        raise ProtocolError(f"{type(request).__name__}: first {request.first} is above last {request.last}")
    if isinstance(request, Read | Missing) and request.residues[-1] >= request.modulus:
        raise ProtocolError(
            f"{type(request).__name__}.residues: {request.residues[-1]} is no residue modulo {request.modulus}"
        )


def decode_reply(values: Sequence[Any]) -> tuple[int, Reply | OctavoError]:
    """Request id and outcome of a frame that arrived at a client. Raises :class:`ProtocolError`.

    A refusal is returned, not raised: it belongs to the request. The connection's own error frame has request id 0.
    """
    if len(values) < 3:
        raise ProtocolError("a reply is [id, op, code, ...]")
    request_id, op, code = values[0], values[1], values[2]
    if type(request_id) is not int or not CONNECTION_REQUEST_ID <= request_id <= REQUEST_ID_MAX:
        raise ProtocolError(f"a request id is an integer from 0 to {REQUEST_ID_MAX}")
    if type(op) is not int or type(code) is not int or code < 0:
        raise ProtocolError("operation and code are integers")
    if code != CODE_OK:
        if len(values) != 5:
            raise ProtocolError("a refusal is [id, op, code, text, may have happened]")
        try:
            return request_id, error_from_wire(
                code, _ERROR_TEXT(values[3]), may_have_happened=fields.boolean(values[4])
            )
        except ValueError as error:
            raise ProtocolError(f"refusal: {error}") from None
    reply_class = REPLIES.get(op)
    if reply_class is None or request_id == CONNECTION_REQUEST_ID:
        raise ProtocolError(f"no reply has operation {op} here")
    return request_id, reply_class.from_fields(values[3:])


class UnknownOperationError(UnsupportedOperationError, ProtocolError):
    """A request of an operation that does not exist here: refused by itself as an unsupported operation, the
    connection goes on.

    A :class:`ProtocolError` too, as all that decoding raises.
    """

    def __init__(self, request_id: int, op: int) -> None:
        super().__init__(f"operation {op} is not known here")
        self.request_id = request_id


def encode_hello(hello: Hello) -> bytes:
    """The body of a hello frame."""
    return hello.encode(CONNECTION_REQUEST_ID)


def decode_hello(values: Sequence[Any]) -> Hello | OctavoError:
    """The peer's first frame: its hello, or the error with which it refuses ours. Raises :class:`ProtocolError`."""
    # Not a comparison of tuples: False and 0.0 are no request ids.
    if [type(value) for value in values[:2]] != [int, int] or values[0] != CONNECTION_REQUEST_ID:
        raise ProtocolError("the first frame must be a hello")
    if values[1] == Op.ERROR:
        return cast(OctavoError, decode_reply(values)[1])
    if values[1] != Op.HELLO:
        raise ProtocolError("the first frame must be a hello")
    # A later version may send more fields; these are the ones that this version knows.
    hello = Hello.from_fields(values[2 : 2 + len(Hello.checks)])
    if hello.magic != MAGIC:
        raise ProtocolError("the first frame must be a hello of this protocol")
    if hello.version_lowest > hello.version_highest:
        raise ProtocolError("Hello.version_lowest: above version_highest")
    return hello


def common_version(ours: Hello, theirs: Hello) -> int | None:
    """The protocol version two sides use: the highest both speak; None when there is none."""
    version = min(ours.version_highest, theirs.version_highest)
    return version if version >= max(ours.version_lowest, theirs.version_lowest) else None
