"""What a handle of the store knows of streams is what is stored, and is bounded."""

from dataclasses import replace

import pytest
from octavo.metadata.stream.any_metadata import encode_either
from octavo.metadata.stream.known_streams import KnownStreams
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import LedgerId
from support.metadata.paged_streams import paged_stream


def test_a_version_that_was_stored_or_read_is_not_decoded_again() -> None:
    stream = paged_stream(6, 2, 2)[0]
    known = KnownStreams()
    value = known.encoded(stream)
    assert value == encode_either(stream)
    assert known.decoded(stream.ledger_id, value) is stream
    other = KnownStreams()
    read = other.decoded(stream.ledger_id, value)
    assert read == stream
    assert read is not stream
    assert other.decoded(stream.ledger_id, bytes(bytearray(value))) is read


def test_what_another_client_has_stored_since_is_decoded() -> None:
    stream = paged_stream(6, 2, 2)[0]
    known = KnownStreams()
    known.encoded(stream)
    changed = replace(stream, writer_token="another")
    assert known.decoded(stream.ledger_id, encode_either(changed)) == changed
    assert known.decoded(stream.ledger_id, encode_either(stream)) == stream


def test_a_damaged_version_is_refused_whatever_is_known() -> None:
    stream = paged_stream(6, 2, 2)[0]
    known = KnownStreams()
    value = known.encoded(stream)
    with pytest.raises(MetadataError, match=str(stream.ledger_id)):
        known.decoded(stream.ledger_id, value[:-1])
    with pytest.raises(MetadataError, match="of ledger"):
        known.decoded(LedgerId(stream.ledger_id + 1), value)
    assert known.decoded(stream.ledger_id, value) == stream


def kept_after(streams: int, *, custom_bytes: int) -> bool:
    """Whether a stream is still known after this number of others, each with custom metadata of this size."""
    known = KnownStreams()
    first = replace(paged_stream(6, 2, 2)[0], custom_metadata={"padding": bytes(custom_bytes)})
    value = known.encoded(first)
    for number in range(1, streams + 1):
        known.encoded(replace(first, ledger_id=LedgerId(first.ledger_id + number)))
    return known.decoded(first.ledger_id, value) is first


def test_as_many_small_streams_are_kept_as_a_client_takes_over_at_once() -> None:
    assert kept_after(500, custom_bytes=0)
    assert not kept_after(1024, custom_bytes=0)


def test_few_large_streams_are_kept() -> None:
    assert kept_after(63, custom_bytes=30_000)
    assert not kept_after(64, custom_bytes=30_000)


def test_the_room_of_a_stream_that_is_stored_again_is_counted_once() -> None:
    known = KnownStreams()
    first, other = (replace(paged_stream(6, 2, 2)[0], ledger_id=LedgerId(number)) for number in (1, 2))
    value = known.encoded(first)
    for _ in range(3):
        for number in range(100):
            known.encoded(replace(other, custom_metadata={"padding": bytes(9_000 + number)}))
    assert known.decoded(first.ledger_id, value) is first
    for number in range(3, 70):
        known.encoded(replace(other, ledger_id=LedgerId(number), custom_metadata={"padding": bytes(9_000)}))
    assert known.decoded(first.ledger_id, value) is first, "two thirds of the room are taken"
