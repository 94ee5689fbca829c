"""The value stored under a ledger's id: a ledger with one writer, or a stream. Pure.

A client that opens, recovers or writes a ledger asks for one kind, and is refused the other. What looks after all
ledgers (repair, garbage collection, dumps, lists) takes both: a stream has bookies, and entries on them, like any
ledger.

The models are loaded when the first ledger or stream is met: many commands never meet one.
"""

# ruff: noqa: PLC0415 - see above
from typing import TYPE_CHECKING

from octavo.metadata.encoding import open_object
from octavo.metadata.ledger.formats import ARCHIVED_STREAM_FORMAT, LEDGER_FORMAT
from octavo.protocol.errors import LedgerKindError
from octavo.protocol.ids import LedgerId

if TYPE_CHECKING:
    from octavo.metadata.ledger.model import LedgerMetadata
    from octavo.metadata.stream.model import StreamMetadata


type EitherMetadata = LedgerMetadata | StreamMetadata
"""The metadata of a ledger with one writer, or those of a stream."""


def encode_either(metadata: EitherMetadata) -> bytes:
    """The stored form."""
    from octavo.metadata.ledger.model import LedgerMetadata, encode_ledger

    if isinstance(metadata, LedgerMetadata):
        return encode_ledger(metadata)
    from octavo.metadata.stream.encoding import encode_stream

    return encode_stream(metadata)


def decode_either(ledger_id: LedgerId, value: bytes) -> EitherMetadata:
    """The metadata in ``value``, which is stored under ``ledger_id``; the format tells the kind.

    Raises :class:`MetadataError`, naming the ledger, when it is damaged, of another ledger, or of a newer format.
    """
    format_number, fields = open_object(value, what=f"ledger {ledger_id}", format_max=ARCHIVED_STREAM_FORMAT)
    if format_number == LEDGER_FORMAT:
        from octavo.metadata.ledger.model import ledger_from

        return ledger_from(ledger_id, fields)
    from octavo.metadata.stream.encoding import stream_from

    return stream_from(ledger_id, fields)


def as_ledger(metadata: EitherMetadata) -> "LedgerMetadata":
    """The metadata if they are those of a ledger with one writer. Raises :class:`LedgerKindError` for a stream: its
    end is not for the caller to decide, and its ids have gaps."""
    from octavo.metadata.ledger.model import LedgerMetadata

    if isinstance(metadata, LedgerMetadata):
        return metadata
    raise LedgerKindError(
        f"ledger {metadata.ledger_id} is a stream, which several writers write one after another: it cannot be opened, "
        "recovered or changed as a ledger"
    )


def as_stream(metadata: EitherMetadata) -> "StreamMetadata":
    """The metadata if they are those of a stream. Raises :class:`LedgerKindError` for a ledger with one writer."""
    from octavo.metadata.ledger.model import LedgerMetadata

    if isinstance(metadata, LedgerMetadata):
        raise LedgerKindError(f"ledger {metadata.ledger_id} is no stream: it has one writer")
    return metadata
