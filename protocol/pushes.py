"""Pushes: reports of a bookie about the ledgers to which a connection has subscribed.

A client subscribes to a ledger once (SUBSCRIBE), under a number of its own, and is told of all its ledgers that have
moved in a turn of the bookie's event loop in one frame. While nothing moves, a subscription costs neither side
anything.

A frame of pushes is ``[0, 13, 0, [[subscription, flags, lac, explicit, entries], ...]]``. It answers no request.

* ``flags``: see :class:`PushFlag`.
* ``lac`` is the highest LAC that the bookie knows, or None. It is a hint: no reader believes it (rule R3).
* ``explicit`` is the sealed explicit LAC, or None where the bookie has none, or has pushed it before.
* ``entries`` are sealed entries, ids ascending, each once, as soon as the bookie holds them: also above the LAC. They
  carry the LAC, and no reader is given one before a LAC has reached it (rule R6).

Entries are pushed while the subscription has *credit*: SUBSCRIBE says how many bytes may be pushed in all, from the
subscription's beginning on. The last one may exceed it. Setting the subscription again gives more. Without credit only
hints and explicit LACs are pushed, and a little later, so that a busy ledger costs little. What the credit did not
suffice for is pushed once there is more.

A bookie that understands subscriptions has :data:`CAPABILITY_SUBSCRIPTIONS` in its hello.
"""

import enum
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from octavo.protocol import fields
from octavo.protocol.errors import CODE_OK, ProtocolError
from octavo.protocol.frames import pack_body
from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import CONNECTION_REQUEST_ID, Op

CAPABILITY_SUBSCRIPTIONS: Final = "subscriptions"
"""In a bookie's hello: it answers SUBSCRIBE."""

PUSHES_PER_FRAME_MAX: Final = 1024
"""Subscriptions in one frame of pushes: bounds the time that a client takes for one."""


class PushFlag(enum.IntFlag):
    """Flags of a push."""

    NONE = 0
    OVER = 1
    """The term is over: it has been fenced, or a later one. The metadata say more."""
    ENDED = 2
    """The bookie has ended the subscription: the ledger is deleted here, or may not be read any more. READ_LAC tells
    why."""


class Push(NamedTuple):
    """One ledger has moved; see the module."""

    subscription: int
    flags: int
    lac: int | None
    explicit: bytes | None
    entries: list[bytes]


_NUMBER = fields.integer(0, ID_MAX)
_FLAGS = fields.integer(0, int(PushFlag.OVER | PushFlag.ENDED))
_LAC = fields.optional(_NUMBER)
_EXPLICIT = fields.optional(fields.binary(FRAME_BYTES_MAX))
_ITEMS = len(Push._fields)


def encode_pushes(pushes: Sequence[Push]) -> bytes:
    """The body of a frame of pushes."""
    return pack_body((CONNECTION_REQUEST_ID, int(Op.PUSH), CODE_OK, list(pushes)))


def are_pushes(values: Sequence[Any]) -> bool:
    """Whether a frame that arrived at a client holds pushes; it may still be malformed."""
    return len(values) > 1 and type(values[1]) is int and values[1] == Op.PUSH


def decode_pushes(values: Sequence[Any]) -> list[Push]:
    """The pushes in a frame that arrived at a client. Raises :class:`ProtocolError`."""
    if (
        len(values) != 4
        or type(values[0]) is not int
        or values[0] != CONNECTION_REQUEST_ID
        or type(values[2]) is not int
        or values[2] != CODE_OK
        or type(values[3]) is not list
        or not 0 < len(values[3]) <= PUSHES_PER_FRAME_MAX
    ):
        raise ProtocolError(f"pushes are [0, op, 0, pushes], from 1 to {PUSHES_PER_FRAME_MAX} of them")
    return [_push(items) for items in values[3]]


def _push(items: Any) -> Push:
    if type(items) is not list or len(items) != _ITEMS:
        raise ProtocolError("a push is [subscription, flags, LAC, explicit LAC, entries]")
    try:
        return Push(
            _NUMBER(items[0]), _FLAGS(items[1]), _LAC(items[2]), _EXPLICIT(items[3]), fields.sealed_entries(items[4])
        )
    except ValueError as error:
        raise ProtocolError(f"a push: {error}") from None
