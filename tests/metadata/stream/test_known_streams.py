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


def test_few_streams_are_kept() -> None:
    known = KnownStreams()
    first = paged_stream(6, 2, 2)[0]
    value = known.encoded(first)
    for number in range(1, 65):
        known.encoded(replace(first, ledger_id=LedgerId(first.ledger_id + number)))
    assert known.decoded(first.ledger_id, value) is not first
