"""The stored form of a stream's metadata: the document of its ledger, in format 2. Pure.

Ledgers with one writer stay in format 1, byte for byte. A version or a function that knows nothing of streams reads
format 1 only, and refuses this one: it would take a stream for a ledger whose end is one compare-and-set away.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from octavo.metadata.debts import Debt, FullCopies, debt_from, stored_debt
from octavo.metadata.encoding import NO_FIELDS, FieldReader, decode_object, encode_bytes, encode_instant, encode_object
from octavo.metadata.page_reference import PageReference, Pages
from octavo.metadata.stream_model import StreamFragment, StreamKey, StreamMetadata, StreamState
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId

FORMAT = 2
"""Of streams, and of nothing else."""

_PAGES_KEPT: Final = 16
"""Streams whose pages are kept in decoded form, for the next time that their metadata are read."""


def encode_stream(stream: StreamMetadata) -> bytes:
    """The stored form. The same metadata give the same bytes."""
    fields: dict[str, Any] = {
        **stream.unknown_fields,
        "ledger_id": stream.ledger_id,
        "state": stream.state.value,
        "term": stream.term,
        "fragments": [encode_fragment(fragment) for fragment in stream.fragments],
        "last_entry_id": stream.last_entry_id,
        "length": stream.length,
        "custom_metadata": {key: encode_bytes(value) for key, value in stream.custom_metadata.items()},
        "created_at": encode_instant(stream.created_at),
        "writer_token": stream.writer_token,
        "stream": {
            **stream.unknown_stream_fields,
            "owner": stream.owner,
            "start": stream.start,
            "keys": [_encode_key(key) for key in stream.keys],
        },
    }
    if stream.revision:
        fields["stream"]["revision"] = stream.revision
    if stream.pages:
        fields["stream"] |= {
            "page_references": [page.to_fields() for page in stream.pages],
            "start_entry_id": stream.start_entry_id,
        }
    if stream.terms_skipped:
        fields["stream"]["terms_skipped"] = stream.terms_skipped
    if stream.full_copies is not None:
        fields["stream"]["full_copies"] = stream.full_copies.value
    if stream.private:
        fields["private"] = True
    if stream.fenced_at is not None:
        fields |= {"fenced_at": encode_instant(stream.fenced_at), "fenced_by": stream.fenced_by}
    return encode_object(fields, format_number=FORMAT)


def encoded_fragments_bytes(stream: StreamMetadata) -> int:
    """Bytes that the fragments take in the stored form, up to a few."""
    return fragments_bytes(stream.fragments)


def fragments_bytes(fragments: Iterable[StreamFragment]) -> int:
    """Bytes that these fragments take in the stored form, up to a few."""
    return len(encode_object({"fragments": [encode_fragment(one) for one in fragments]}, format_number=FORMAT))


def decode_stream(ledger_id: LedgerId, value: bytes) -> StreamMetadata:
    """The stream in ``value``, which is stored under ``ledger_id``.

    Raises :class:`MetadataError`, naming the stream, when it is damaged, of another ledger, of a newer format, or a
    ledger with one writer.
    """
    fields = decode_object(value, what=f"stream {ledger_id}", format_max=FORMAT, format_min=FORMAT)
    return stream_from(ledger_id, fields)


def stream_from(ledger_id: LedgerId, fields: Mapping[str, Any]) -> StreamMetadata:
    """The stream in decoded fields of :data:`FORMAT`. Raises as :func:`decode_stream`."""
    what = f"stream {ledger_id}"
    reader = FieldReader(fields, what)
    if reader.get("ledger_id", int) != ledger_id:
        raise reader.damaged(f"they are those of ledger {reader.get('ledger_id', int)}")
    part = FieldReader(reader.get("stream", dict), what)
    custom = reader.get("custom_metadata", dict)
    last_entry_id = reader.optional("last_entry_id", int)
    start_entry_id = part.added_later("start_entry_id", int, None)
    try:
        return StreamMetadata(
            ledger_id=ledger_id,
            state=StreamState(reader.get("state", str)),
            term=reader.get("term", int),
            owner=part.get("owner", str),
            terms_skipped=part.added_later("terms_skipped", int, 0),
            fragments=tuple(decode_fragment(entry, what) for entry in reader.get("fragments", list)),
            keys=tuple(_decode_key(entry, what) for entry in part.get("keys", list)),
            start=part.get("start", int),
            pages=_pages_from(json.dumps(part.added_later("page_references", list, []))),
            revision=part.added_later("revision", int, 0),
            start_entry_id=None if start_entry_id is None else EntryId(start_entry_id),
            last_entry_id=None if last_entry_id is None else EntryId(last_entry_id),
            length=reader.get("length", int),
            custom_metadata={key: FieldReader(custom, what).bytes_of(key) for key in custom},
            created_at=reader.instant("created_at"),
            private=reader.added_later("private", bool, False),
            full_copies=FullCopies(part.get("full_copies", str)) if "full_copies" in part else None,
            writer_token=reader.get("writer_token", str),
            fenced_at=reader.instant("fenced_at") if "fenced_at" in reader else None,
            fenced_by=reader.added_later("fenced_by", str, ""),
            unknown_fields=_unknown_fields(reader),
            unknown_stream_fields=_unknown_fields(part),
        )
    except (ValueError, TypeError) as error:
        raise reader.damaged(str(error)) from error


@lru_cache(maxsize=_PAGES_KEPT)
def _pages_from(stored: str) -> Pages:
    """The pages in their stored form. Clients read the metadata of a stream much more often than its pages change, and
    decoding a thousand references takes longer than everything else. Raises ValueError or TypeError."""
    return Pages(map(PageReference.from_fields, json.loads(stored)))


def encode_fragment(fragment: StreamFragment) -> dict[str, Any]:
    """The fields of a fragment."""
    return {
        **fragment.unknown_fields,
        "first_entry_id": fragment.first_entry_id,
        "first_position": fragment.first_position,
        "bookies": list(fragment.bookies),
        "write_quorum": fragment.write_quorum,
        "ack_quorum": fragment.ack_quorum,
        "key": fragment.key,
        "length_before": fragment.length_before,
        "opened_at_ms": fragment.opened_at_ms,
        **({"leader_term": fragment.leader_term} if fragment.leader_term else {}),
        **({} if fragment.debt is None else {"debt": stored_debt(fragment.debt)}),
    }


def decode_fragment(fields: object, what: str) -> StreamFragment:
    """From its fields. Raises :class:`MetadataError` naming ``what``."""
    reader = FieldReader(fields if isinstance(fields, dict) else {}, what)
    return StreamFragment(
        first_entry_id=EntryId(reader.get("first_entry_id", int)),
        first_position=reader.get("first_position", int),
        bookies=tuple(BookieId(_text(reader, name)) for name in reader.get("bookies", list)),
        write_quorum=reader.get("write_quorum", int),
        ack_quorum=reader.get("ack_quorum", int),
        key=reader.get("key", int),
        length_before=reader.get("length_before", int),
        opened_at_ms=reader.get("opened_at_ms", int),
        leader_term=reader.added_later("leader_term", int, 0),
        debt=_debt(reader),
        unknown_fields=_unknown_fields(reader),
    )


def _encode_key(key: StreamKey) -> dict[str, Any]:
    return {
        **key.unknown_fields,
        "digest": key.digest.value,
        "verifier": encode_bytes(key.verifier),
        "salt": encode_bytes(key.salt),
    }


def _decode_key(fields: object, what: str) -> StreamKey:
    reader = FieldReader(fields if isinstance(fields, dict) else {}, what)
    return StreamKey(
        digest=Digest(reader.get("digest", str)),
        verifier=reader.bytes_of("verifier"),
        salt=reader.bytes_of("salt"),
        unknown_fields=_unknown_fields(reader),
    )


def _debt(reader: FieldReader) -> Debt | None:
    if "debt" not in reader:
        return None
    try:
        return debt_from(reader.get("debt", list))
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def _text(reader: FieldReader, value: object) -> str:
    if not isinstance(value, str):
        raise reader.damaged(f"{value!r} is not a text")
    return value


def _unknown_fields(reader: FieldReader) -> Mapping[str, Any]:
    unknown = reader.unknown_fields()
    return MappingProxyType(unknown) if unknown else NO_FIELDS
