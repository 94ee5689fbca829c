"""A stream at a glance: what lists show of it, read from its stored form. Pure.

A list of ten thousand logs needs six facts of each. To decode all metadata of a stream, and to check that they agree
with each other, takes many times as long. A glance verifies the checksum and the fields that it reads; a client that
opens the stream verifies all of it. Nothing may be decided or changed by a glance.
"""

from typing import Any, Final, NamedTuple

from octavo.metadata.encoding import FieldReader, open_object
from octavo.metadata.ledger.formats import ARCHIVED_STREAM_FORMAT, STREAM_FORMAT
from octavo.metadata.stream.states import StreamState
from octavo.protocol.errors import LedgerKindError
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import term_of

_LENGTH_BEFORE: Final = 5
"""Index of the payload before a page, in the stored form of its reference."""


class StreamGlance(NamedTuple):
    """See the module."""

    start: int
    """The first position."""
    known_stop: int
    """The position up to which the metadata by themselves tell where every entry is."""
    stop_is_known: bool
    """Whether the stream ends there: its current term has an end."""
    first_term: int
    """Of the client that leads, or has led last."""
    settled_bytes: int
    """Payload of the fragments that have an end and were not truncated."""
    has_writer: bool
    """Whether a writer may be adding, or another client is ending its term."""
    closed: bool
    """No term can follow."""


def glance_at_stream(ledger_id: LedgerId, value: bytes) -> StreamGlance:
    """The stream in ``value``, which is stored under ``ledger_id``.

    Raises :class:`MetadataError` when it is damaged, of another ledger, or of a newer format, and
    :class:`LedgerKindError` for a ledger with one writer.
    """
    what = f"ledger {ledger_id}"
    format_number, fields = open_object(value, what=what, format_max=ARCHIVED_STREAM_FORMAT)
    if format_number < STREAM_FORMAT:
        raise LedgerKindError(f"ledger {ledger_id} is no stream: it has one writer")
    reader = FieldReader(fields, what)
    if reader.get("ledger_id", int) != ledger_id:
        raise reader.damaged(f"they are those of ledger {reader.get('ledger_id', int)}")
    try:
        state = StreamState(reader.get("state", str))
    except ValueError as error:
        raise reader.damaged(str(error)) from error
    fragments = reader.get("fragments", list)
    if not fragments:
        raise reader.damaged("it has no fragment")
    part = FieldReader(reader.get("stream", dict), what)
    first, last = _object(fragments[0], what), _object(fragments[-1], what)
    first_position, first_entry_id = last.get("first_position", int), last.get("first_entry_id", int)
    last_entry_id = reader.optional("last_entry_id", int)
    pages = part.added_later("page_references", list, [])
    before = _length_before(reader, pages[0]) if pages else first.get("length_before", int)
    return StreamGlance(
        start=part.get("start", int),
        known_stop=first_position if last_entry_id is None else first_position + last_entry_id - first_entry_id + 1,
        stop_is_known=last_entry_id is not None,
        first_term=last.added_later("leader_term", int, 0) or term_of(first_entry_id),
        settled_bytes=max(reader.get("length", int), last.get("length_before", int)) - before,
        has_writer=state in {StreamState.OPEN, StreamState.IN_RECOVERY},
        closed=state is StreamState.CLOSED,
    )


def _object(fields: object, what: str) -> FieldReader:
    return FieldReader(fields if isinstance(fields, dict) else {}, what)


def _length_before(reader: FieldReader, page: Any) -> int:
    if not isinstance(page, list) or len(page) <= _LENGTH_BEFORE or type(page[_LENGTH_BEFORE]) is not int:
        raise reader.damaged("a page's fields are of wrong types")
    return page[_LENGTH_BEFORE]
