"""The stored form of a log that is a stream: the document under its name. Pure.

The stream's own metadata hold nearly everything: fragments, terms, quorums, password, digest. The document under the
log's name has what belongs to the name: which stream it is, the retention, and where the log begins for readers. That
may lie within the last fragment of the stream, which the start of the stream never does (rule P7).

Versions that know no such logs refuse the document, because of its format: they would take it for an empty chain.

===========  ====================================  ====================================================
state        means                                 then
===========  ====================================  ====================================================
MAKING       the stream may exist already or not   ACTIVE; or another client creates the log, see below
ACTIVE       the stream exists                     DELETED
DELETED      the stream is being deleted           the document goes last
===========  ====================================  ====================================================

A client that finds a document MAKING cannot know whether its maker lives. It writes its own in its place, in which the
stream of the other is *abandoned*: the other finds that out with its next compare-and-set and deletes its stream. If it
has died, clients that have the log delete the streams named here, so that no stream is forgotten (rule P13).

A log counts its leaders: its term is one below that of its stream, whose first term belongs to the creator. The creator
adds nothing, and leaves the stream at rest.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple, Self

from octavo.client.log.documents.chain import NO_RETENTION, LogDocument, Retention, log_from
from octavo.client.log.documents.formats import CHAIN_FORMAT, STREAM_FORMAT, STREAM_FORMAT_WITH_KEYS, STREAM_LAYOUT
from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.log.documents.states import LogState
from octavo.metadata.encoding import FieldReader, encode_object, open_object
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass


class Truncating(NamedTuple):
    """The note of a client that truncates within the last fragment, made before it looks at the end once more (rule
    P7)."""

    before: int
    token: str
    """Of this truncation and no other."""


class Abandoned(NamedTuple):
    """The stream of a creator that another one has got ahead of."""

    ledger_id: LedgerId
    misses: int = 0
    """How often it was looked for and did not exist: its maker may still be about to create it."""


@dataclass(frozen=True, slots=True)
class StreamLogDocument:
    """See the module."""

    name: str
    log_id: str
    """Unique for ever: a log created again under the name has another."""
    ledger_id: LedgerId
    """Of the stream."""
    created_at_ms: int
    retention: Retention = NO_RETENTION
    state: LogState = LogState.ACTIVE
    first_position: int = 0
    """Readers get nothing below it, and nothing below the start of the stream (rule P7). Never falls."""
    truncating: "Truncating | None" = None
    """A client that is about to truncate within the last fragment; None: none is. A leader that begins forgets it."""
    abandoned: tuple[Abandoned, ...] = ()
    counts_ages: bool = False
    """The log was created by a version that counts the ages of entries (rule P19)."""
    keys: KeyWindow | None = None
    """The window within which keys are known (rule P21); None: entries have no keys. Never changes."""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of a newer version, kept as they are."""

    def __post_init__(self) -> None:
        if min(self.ledger_id, self.created_at_ms, self.first_position) < 0:
            raise InvalidArgumentError(f"log {self.name}: a number is below 0")

    def in_place_of(self, other: "StreamLogDocument") -> Self:
        """The same document, for the name of a log whose creator has not ended."""
        return replace(self, abandoned=(*other.abandoned, Abandoned(other.ledger_id)))

    def encode(self) -> bytes:
        """The stored form (:mod:`octavo.metadata.encoding`)."""
        fields: dict[str, Any] = {
            **self.unknown,
            "layout": STREAM_LAYOUT,
            "name": self.name,
            "log_id": self.log_id,
            "ledger_id": int(self.ledger_id),
            "created_at_ms": self.created_at_ms,
            "retention": [self.retention.seconds, self.retention.bytes, self.retention.cursors],
            "state": self.state.value,
            "first_position": self.first_position,
        }
        if self.truncating is not None:
            fields["truncating"] = list(self.truncating)
        if self.abandoned:
            fields["abandoned"] = [list(one) for one in self.abandoned]
        if self.counts_ages:
            fields["counts_ages"] = True
        if self.keys is not None:
            fields["keys"] = [self.keys.entries, self.keys.seconds]
        return encode_object(fields, format_number=STREAM_FORMAT if self.keys is None else STREAM_FORMAT_WITH_KEYS)


type AnyLogDocument = LogDocument | StreamLogDocument


def decode_any_log(value: bytes, name: str) -> AnyLogDocument:
    """The log called ``name`` from its stored form, whatever its layout. Raises :class:`MetadataError` when it cannot
    be understood."""
    format_number, fields = open_object(value, what=f"log {name}", format_max=STREAM_FORMAT_WITH_KEYS)
    if format_number == CHAIN_FORMAT:
        return log_from(fields, name)
    return _stream_log_from(fields, name)


def _stream_log_from(fields: Mapping[str, Any], name: str) -> StreamLogDocument:
    what = f"log {name}"
    reader = FieldReader(fields, what)
    layout = reader.get("layout", str)
    if layout != STREAM_LAYOUT:
        raise MetadataError(f"{what} has the layout {layout!r}, which this version does not know; upgrade Octavo")
    try:
        seconds, byte_limit, cursors = reader.get("retention", list)
        return StreamLogDocument(
            name=reader.get("name", str),
            log_id=reader.get("log_id", str),
            ledger_id=LedgerId(reader.get("ledger_id", int)),
            created_at_ms=reader.get("created_at_ms", int),
            retention=Retention(seconds, byte_limit, bool(cursors)),
            state=LogState(reader.get("state", str)),
            first_position=reader.get("first_position", int),
            truncating=_truncating(reader.added_later("truncating", list, None)),
            abandoned=tuple(_abandoned(*one) for one in reader.added_later("abandoned", list, [])),
            counts_ages=reader.added_later("counts_ages", bool, False),
            keys=_keys(reader.added_later("keys", list, None)),
            unknown=reader.unknown_fields(),
        )
    except MetadataError:
        raise
    except (ValueError, TypeError) as error:
        raise reader.damaged(str(error)) from error


def _keys(fields: list[Any] | None) -> KeyWindow | None:
    if fields is None:
        return None
    entries, seconds = fields
    return KeyWindow(entries, seconds)


def _truncating(fields: list[Any] | None) -> Truncating | None:
    if fields is None:
        return None
    before, token = fields
    if type(before) is not int or type(token) is not str or before < 0:
        raise ValueError("a truncation under way is a number from 0 on and a text")
    return Truncating(before, token)


def _abandoned(ledger_id: int, misses: int) -> Abandoned:
    if type(ledger_id) is not int or type(misses) is not int or min(ledger_id, misses) < 0:
        raise ValueError("an abandoned stream is two numbers from 0 on")
    return Abandoned(LedgerId(ledger_id), misses)
