"""Packs: several requests of one client in one frame, and one answer for all that succeed.

A frame costs both sides as much as a hundred entries in it would. A client that writes a thousand ledgers, with one add
under way in each, has a thousand small requests for a bookie; in a pack they cost one frame. The pack is nothing but a
frame: each request in it has an id of its own, is served as if it had come alone, in the order of the pack, and has an
outcome of its own.

A pack is ``[first id, 11, [[op, ...fields], ...]]``; the request at index ``i`` has the id ``first id + i``. It holds
requests whose answers have no fields (:data:`USUAL`). The answer ``[id, 11, 0, [[first, last], ...]]`` names runs of
request ids that succeeded; ``id`` is the first of them. They may be of several packs, and those of one pack may be
answered in several frames. A request that is refused gets the refusal that it would have got alone.

A bookie that understands packs has :data:`CAPABILITY_PACKS` in its hello. It answers in this form only what came in a
pack.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from octavo.protocol import fields
from octavo.protocol.errors import CODE_OK, ProtocolError
from octavo.protocol.frames import pack_body
from octavo.protocol.ids import ID_MAX, TERM_MAX
from octavo.protocol.limits import REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import (
    CONNECTION_REQUEST_ID,
    KEY_BYTES_MAX,
    REQUEST_ID_MAX,
    REQUESTS,
    Add,
    Added,
    AddFlag,
    Forced,
    LacWritten,
    Op,
    Reply,
    Request,
    Subscribed,
)

CAPABILITY_PACKS: Final = "packs"
"""In a bookie's hello: it understands packs."""

USUAL: Final[Mapping[int, Reply]] = {
    int(Op.ADD): Added(),
    int(Op.WRITE_LAC): LacWritten(),
    int(Op.FORCE): Forced(),
    int(Op.SUBSCRIBE): Subscribed(),
}
"""Operation -> its answer. Only these operations may be in a pack."""

PACK_REQUESTS_MAX: Final = 512
"""Requests after which a client begins the next pack: a bookie then works on the first while the client makes the
next. A bookie takes up to ``REQUESTS_PER_CONNECTION_MAX`` in one pack, as many as a connection may have unanswered."""

_FRAME_HEAD = struct.Struct(">IBBQ")
_PACK_HEAD = struct.Struct(">IBBQBBH")
_LENGTH_BYTES = 4
_ADD_TAIL_ITEMS = 1 + len(Add.names)
_ARRAY_OF_3, _ARRAY_16, _UINT_64 = 0x93, 0xDC, 0xCF
"""msgpack's marks of an array of three items, of one whose number of items follows in two bytes, and of an integer of
eight bytes: request ids have eight whatever their value."""


def encode_tail(op: Op, *values: Any) -> bytes:
    """A request without its id, ``[op, ...fields]``: what packs are made of. The operation is the byte at index 1. The
    same tail may go to several bookies."""
    return pack_body((int(op), *values))


def tail_of(request: Request) -> bytes:
    """The tail of a request; see :func:`encode_tail`."""
    return pack_body((int(request.op), *request.to_fields()))


def frame_head(request_id: int, tail: bytes) -> bytes:
    """The bytes before ``tail[1:]`` in the frame of a request that travels alone: the length, and the beginning of the
    body."""
    # The array has one item more than the tail: the id.
    return _FRAME_HEAD.pack(_FRAME_HEAD.size - _LENGTH_BYTES + len(tail) - 1, tail[0] + 1, _UINT_64, request_id)


def pack_head(first_id: int, tails: Sequence[bytes]) -> bytes:
    """The bytes before the tails in the frame of a pack: the length, and the beginning of the body."""
    body_bytes = _PACK_HEAD.size - _LENGTH_BYTES + sum(map(len, tails))
    return _PACK_HEAD.pack(body_bytes, _ARRAY_OF_3, _UINT_64, first_id, int(Op.PACK), _ARRAY_16, len(tails))


def is_pack(values: Sequence[Any]) -> bool:
    """Whether a frame, in either direction, is a pack or the answer to one; it may still be malformed."""
    return len(values) > 1 and type(values[1]) is int and values[1] == Op.PACK


class PlainAdds(NamedTuple):
    """Adds that follow one another in a pack and are alike: each has one entry and no flags, and no two are of one
    ledger. A column for each field, so that a bookie checks a pack with a few steps for each of its columns."""

    ledger_ids: Sequence[int]
    ledger_keys: Sequence[bytes]
    terms: Sequence[int]
    entries: Sequence[bytes]

    def only(self, indexes: Sequence[int]) -> "PlainAdds":
        """These of them."""
        return PlainAdds._make([column[index] for index in indexes] for column in self)

    def request(self, index: int) -> Add:
        """One of them."""
        return Add(
            self.ledger_ids[index], self.ledger_keys[index], AddFlag.NONE, self.terms[index], [self.entries[index]]
        )


class Pack(NamedTuple):
    """A pack that arrived at a bookie."""

    first_id: int
    size: int
    """How many requests it has."""
    parts: Sequence[Request | PlainAdds]
    """Its requests, in order."""

    @property
    def requests(self) -> list[Request]:
        """Its requests, in order, each by itself."""
        requests: list[Request] = []
        for part in self.parts:
            requests += map(part.request, range(len(part.entries))) if isinstance(part, PlainAdds) else (part,)
        return requests


PLAIN_ADDS_MIN: Final = 4
"""Fewer adds are quicker decoded and served one by one."""

_operation = itemgetter(0)


def decode_pack(values: Sequence[Any]) -> Pack:
    """The requests of a pack that arrived at a bookie. Raises :class:`ProtocolError`."""
    if len(values) != 3 or type(values[2]) is not list or not values[2]:
        raise ProtocolError("a pack is [first id, op, requests], with one request or more")
    first_id, _, tails = values
    if len(tails) > REQUESTS_PER_CONNECTION_MAX:
        raise ProtocolError(f"a pack of {len(tails)} requests is over the limit of {REQUESTS_PER_CONNECTION_MAX}")
    if type(first_id) is not int or not CONNECTION_REQUEST_ID < first_id <= REQUEST_ID_MAX + 1 - len(tails):
        raise ProtocolError(f"request ids are integers from 1 to {REQUEST_ID_MAX}")
    _check_operations(tails)
    parts: list[Request | PlainAdds] = []
    for op, following in groupby(tails, key=_operation):
        group = list(following)
        plain = _plain_adds(group) if op == Op.ADD and len(group) >= PLAIN_ADDS_MIN else None
        if plain is not None:
            parts.append(plain)
        else:
            parts += [REQUESTS[op].from_fields(tail[1:]) for tail in group]
    return Pack(first_id, len(tails), parts)


def _check_operations(tails: Sequence[Any]) -> None:
    """Raises :class:`ProtocolError` unless each of these begins with an operation that may be in a pack."""
    if set(map(type, tails)) == {list} and all(tails):
        operations = list(map(_operation, tails))
        if set(map(type, operations)) == {int} and set(operations) <= USUAL.keys():
            return
    raise ProtocolError("a pack holds requests whose answers have no fields")


def _plain_adds(tails: Sequence[list[Any]]) -> PlainAdds | None:
    """These adds, if they are plain. Nothing passes here that :class:`~octavo.protocol.messages.Add` would refuse."""
    if set(map(len, tails)) != {_ADD_TAIL_ITEMS}:
        return None
    _, ledger_ids, ledger_keys, flags, terms, entry_lists = zip(*tails, strict=True)
    if (
        set(map(type, (*ledger_ids, *flags, *terms))) != {int}
        or set(map(type, ledger_keys)) != {bytes}
        or set(map(type, entry_lists)) != {list}
        or set(map(len, entry_lists)) != {1}
        or any(flags)
        or not 0 <= min(ledger_ids) <= max(ledger_ids) <= ID_MAX
        or not 0 <= min(terms) <= max(terms) <= TERM_MAX
        or max(map(len, ledger_keys)) > KEY_BYTES_MAX
        or len(set(ledger_ids)) != len(ledger_ids)
    ):
        return None
    entries = [entry for (entry,) in entry_lists]
    return PlainAdds(ledger_ids, ledger_keys, terms, entries) if set(map(type, entries)) == {bytes} else None


def encode_done(request_ids: Iterable[int]) -> bytes:
    """The body of the answer to the requests with these ids, one at least, which have succeeded."""
    runs: list[list[int]] = []
    for request_id in sorted(request_ids):
        if runs and request_id == runs[-1][1] + 1:
            runs[-1][1] = request_id
        else:
            runs.append([request_id, request_id])
    return pack_body((runs[0][0], int(Op.PACK), CODE_OK, runs))


def decode_done(values: Sequence[Any]) -> Sequence[tuple[int, int]]:
    """The runs of request ids in an answer that arrived at a client; see the module. Raises :class:`ProtocolError`."""
    if len(values) != 4 or type(values[2]) is not int or values[2] != CODE_OK:
        raise ProtocolError("the answer to a pack is [id, op, 0, runs]")
    try:
        return fields.runs(values[3])
    except ValueError as error:
        raise ProtocolError(f"the answer to a pack: {error}") from None
