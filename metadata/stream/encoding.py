"""The stored form of a stream's metadata: the document of its ledger, in format 2. Pure.

Ledgers with one writer stay in format 1, byte for byte. A version or a function that knows nothing of streams reads
format 1 only, and refuses this one: it would take a stream for a ledger whose end is one compare-and-set away.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from octavo.metadata.encoding import (
    NO_FIELDS,
    FieldReader,
    decode_object,
    encode_bytes,
    encode_instant,
    encode_text,
    encode_texts,
    object_text,
    value_text,
)
from octavo.metadata.ledger.archive_word import ArchiveWords, words_from, words_text
from octavo.metadata.ledger.debts import Debt, FullCopies, debt_from, stored_debt
from octavo.metadata.ledger.formats import ARCHIVED_STREAM_FORMAT, STREAM_FORMAT
from octavo.metadata.stream.fragment import Fragments
from octavo.metadata.stream.model import StreamFragment, StreamKey, StreamMetadata, StreamState
from octavo.metadata.stream.page_reference import PageReference, Pages
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId

_FRAGMENTS_FEW: Final = 8
"""The stored form of so few is made quickly, and seldom asked for: most clients read a stream and leave it as it is."""

_PAGES_KEPT: Final = 16
"""Streams whose pages are kept in decoded form, for the next time that their metadata are read."""

_NO_PAGES: Final = Pages()
"""Of nearly all streams."""


def encode_stream(stream: StreamMetadata) -> bytes:
    """The stored form. The same metadata give the same bytes."""
    fields: dict[str, Any] = {
        **stream.unknown_fields,
        "ledger_id": stream.ledger_id,
        "state": stream.state.value,
        "term": stream.term,
        "last_entry_id": stream.last_entry_id,
        "length": stream.length,
        "custom_metadata": {key: encode_bytes(value) for key, value in stream.custom_metadata.items()},
        "created_at": encode_instant(stream.created_at),
        "writer_token": stream.writer_token,
    }
    if stream.private:
        fields["private"] = True
    if stream.fenced_at is not None:
        fields |= {"fenced_at": encode_instant(stream.fenced_at), "fenced_by": stream.fenced_by}
    texts = {name: value_text(value) for name, value in fields.items()}
    return encode_texts(
        {**texts, "fragments": fragments_text(stream.fragments), "stream": _encode_part(stream)},
        format_number=STREAM_FORMAT if stream.archived_before is None else ARCHIVED_STREAM_FORMAT,
    )


def _encode_part(stream: StreamMetadata) -> str:
    """The fields that only streams have."""
    fields: dict[str, Any] = {
        **stream.unknown_stream_fields,
        "owner": stream.owner,
        "start": stream.start,
        "keys": [_encode_key(key) for key in stream.keys],
    }
    if stream.revision:
        fields["revision"] = stream.revision
    if stream.terms_skipped:
        fields["terms_skipped"] = stream.terms_skipped
    if stream.full_copies is not None:
        fields["full_copies"] = stream.full_copies.value
    if stream.archived_before is not None:
        fields["archived_before"] = stream.archived_before
    texts = {name: value_text(value) for name, value in fields.items()}
    if isinstance(stream.pages, Pages) and stream.pages:
        texts |= {"page_references": _pages_text(stream.pages), "start_entry_id": value_text(stream.start_entry_id)}
    return object_text(texts)


def _pages_text(pages: Pages) -> str:
    if pages.text is None:
        pages.text = value_text([page.to_fields() for page in pages])
    return pages.text


def encoded_fragments_bytes(stream: StreamMetadata) -> int:
    """Bytes that the fragments take in the stored form, up to a few."""
    return fragments_bytes(stream.fragments)


def fragments_bytes(fragments: Iterable[StreamFragment]) -> int:
    """Bytes that these fragments take in the stored form, up to a few."""
    return len(fragments_text(fragments))


def fragments_text(fragments: Iterable[StreamFragment]) -> str:
    """The stored form of some fragments."""
    if not isinstance(fragments, Fragments):
        return f"[{','.join(map(fragment_text, fragments))}]"
    if fragments.text is None:
        before = fragments.text_before
        fragments.text = (
            f"[{','.join(map(fragment_text, fragments))}]"
            if before is None
            else f"{before.removesuffix(']')},{fragment_text(fragments[-1])}]"
        )
    return fragments.text


def decode_stream(ledger_id: LedgerId, value: bytes) -> StreamMetadata:
    """The stream in ``value``, which is stored under ``ledger_id``.

    Raises :class:`MetadataError`, naming the stream, when it is damaged, of another ledger, of a newer format, or a
    ledger with one writer.
    """
    fields = decode_object(
        value, what=f"stream {ledger_id}", format_max=ARCHIVED_STREAM_FORMAT, format_min=STREAM_FORMAT
    )
    return stream_from(ledger_id, fields)


def stream_from(ledger_id: LedgerId, fields: Mapping[str, Any]) -> StreamMetadata:
    """The stream in decoded fields of a format of streams. Raises as :func:`decode_stream`."""
    what = f"stream {ledger_id}"
    reader = FieldReader(fields, what)
    if reader.get("ledger_id", int) != ledger_id:
        raise reader.damaged(f"they are those of ledger {reader.get('ledger_id', int)}")
    part = FieldReader(reader.get("stream", dict), what)
    custom = FieldReader(reader.get("custom_metadata", dict), what)
    last_entry_id = reader.optional("last_entry_id", int)
    start_entry_id = part.added_later("start_entry_id", int, None)
    archived_before = part.added_later("archived_before", int, None)
    try:
        return StreamMetadata(
            ledger_id=ledger_id,
            state=StreamState(reader.get("state", str)),
            term=reader.get("term", int),
            owner=part.get("owner", str),
            terms_skipped=part.added_later("terms_skipped", int, 0),
            fragments=_fragments_from(reader.get("fragments", list), what),
            keys=tuple(_decode_key(entry, what) for entry in part.get("keys", list)),
            start=part.get("start", int),
            pages=_pages_of(part.added_later("page_references", list, [])),
            revision=part.added_later("revision", int, 0),
            start_entry_id=None if start_entry_id is None else EntryId(start_entry_id),
            archived_before=None if archived_before is None else EntryId(archived_before),
            last_entry_id=None if last_entry_id is None else EntryId(last_entry_id),
            length=reader.get("length", int),
            custom_metadata={key: custom.bytes_of(key) for key in reader.get("custom_metadata", dict)},
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


def _fragments_from(entries: list[Any], what: str) -> Fragments:
    fragments = Fragments(decode_fragment(entry, what) for entry in entries)
    if len(fragments) > _FRAGMENTS_FEW:
        fragments.text = value_text(entries)
    return fragments


def _pages_of(references: list[Any]) -> Pages:
    return _pages_from(value_text(references)) if references else _NO_PAGES


@lru_cache(maxsize=_PAGES_KEPT)
def _pages_from(stored: str) -> Pages:
    """The pages in their stored form. Clients read the metadata of a stream much more often than its pages change, and
    decoding a thousand references takes longer than everything else. Raises ValueError or TypeError."""
    pages = Pages(map(PageReference.from_fields, json.loads(stored)))
    pages.text = stored
    return pages


def fragment_text(fragment: StreamFragment) -> str:
    """The stored form of a fragment. Written out by hand, in the order of the names: most of the work of a takeover of
    a long stream is to encode its fragments."""
    debt = "" if fragment.debt is None else f'"debt":{value_text(stored_debt(fragment.debt))},'
    archive = f'"archive":"{words_text(fragment.archive)}",' if fragment.archive else ""
    leader_term = f'"leader_term":{fragment.leader_term},' if fragment.leader_term else ""
    bookies = ",".join(map(encode_text, fragment.bookies))
    text = (
        f'{{"ack_quorum":{fragment.ack_quorum},{archive}"bookies":[{bookies}],{debt}'
        f'"first_entry_id":{fragment.first_entry_id},"first_position":{fragment.first_position},'
        f'"key":{fragment.key},{leader_term}"length_before":{fragment.length_before},'
        f'"opened_at_ms":{fragment.opened_at_ms},"write_quorum":{fragment.write_quorum}}}'
    )
    return value_text({**fragment.unknown_fields, **json.loads(text)}) if fragment.unknown_fields else text


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
        archive=_words(reader),
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


def _words(reader: FieldReader) -> ArchiveWords:
    stored = reader.added_later("archive", str, None)
    try:
        return () if stored is None else words_from(stored)
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def _text(reader: FieldReader, value: object) -> str:
    if not isinstance(value, str):
        raise reader.damaged(f"{value!r} is not a text")
    return value


def _unknown_fields(reader: FieldReader) -> Mapping[str, Any]:
    unknown = reader.unknown_fields()
    return MappingProxyType(unknown) if unknown else NO_FIELDS
