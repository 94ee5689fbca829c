"""Metadata of streams for tests."""

from octavo.metadata.stream.model import StreamFragment, StreamKey, StreamMetadata
from octavo.protocol.entries import Digest
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import CREATED_AT, bookie_ids

KEY = StreamKey(digest=Digest.CRC32C, verifier=b"v" * 32, salt=b"s" * 16)


def stream_fragment(
    term: int,
    offset: int,
    position: int,
    names: str = "abc",
    length_before: int = 0,
    *,
    opened_at_ms: int = 0,
    leader_term: int = 0,
) -> StreamFragment:
    """A fragment with Qw = 3 and Qa = 2 on the bookies named by the letters of ``names``."""
    return StreamFragment(
        first_entry_id=place(term, offset),
        first_position=position,
        bookies=bookie_ids(*names),
        write_quorum=3,
        ack_quorum=2,
        length_before=length_before,
        opened_at_ms=opened_at_ms,
        leader_term=leader_term,
    )


def open_stream(*fragments: StreamFragment, owner: str = "first", start: int = 0) -> StreamMetadata:
    """Stream 7, open in the term of its last fragment."""
    fragments = fragments or (stream_fragment(1, 0, 0),)
    return StreamMetadata(
        ledger_id=LedgerId(7),
        term=fragments[-1].term,
        owner=owner,
        fragments=fragments,
        keys=(KEY,),
        start=start,
        custom_metadata={"app": b"orders"},
        created_at=CREATED_AT,
    )
