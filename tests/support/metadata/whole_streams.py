"""Streams whose members hold all that they should, for tests of repair."""

from dataclasses import replace

from octavo.metadata.stream.model import StreamFragment, StreamState
from octavo.metadata.stream.pages import page_document
from octavo.protocol.entries import derive_secrets, header_of, make_verifier
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import term_of
from support.clusters.ledgers import LedgerScript
from support.clusters.repair_cluster import RepairCluster
from support.metadata.paged_streams import paged
from support.metadata.stream_metadata import KEY, open_stream, stream_fragment


def length_up_to(entry_id: int) -> int:
    """The length that :class:`LedgerScript` seals into an entry."""
    return header_of(LedgerScript(0).entry(entry_id)).length


async def written(
    cluster: RepairCluster,
    *fragments: StreamFragment,
    last: int,
    start: int = 0,
    rest: bool = False,
    pages: tuple[int, ...] = (),
    password: bytes = b"secret",
) -> LedgerId:
    """A stream with these fragments, whose members hold all that they should of it, up to the place ``last``."""
    ledger_id = await cluster.store.allocate_ledger_id()
    before = fragments[-1].length_before
    length = length_up_to(last) if last >= fragments[-1].first_entry_id else before
    key = replace(KEY, verifier=make_verifier(derive_secrets(password, ledger_id), KEY.digest, KEY.salt))
    full = replace(open_stream(*fragments).at_rest(EntryId(last), length), ledger_id=ledger_id, keys=(key,))
    full = full.truncated(start)
    script = LedgerScript(ledger_id, password=password)
    for settled in full.settled_ranges():
        quorums = full.quorums_at(settled.first)
        for entry_id in range(settled.first, settled.last + 1):
            for position, name in enumerate(settled.bookies):
                if quorums.write_mask(entry_id) >> position & 1:
                    writer = cluster.bookie(name).service.storage.writer
                    entry = script.entry(entry_id, lac=entry_id - 1)
                    await writer.add(ledger_id, script.key, [entry], recovery=True, term=term_of(entry_id))
    whole = full if rest else replace(full, state=StreamState.OPEN, last_entry_id=None, length=0)
    # As a client does it: repair, which runs, deletes the pages of a stream that does not exist.
    version = await cluster.store.create_stream(whole)
    root, made = paged(whole, *pages)
    for page in made:
        await cluster.store.create_document(page_document(ledger_id, page.reference), page.value)
    if made:
        await cluster.store.compare_and_set_stream(root, version)
    return ledger_id


def on(term: int, offset: int, position: int, names: str, before: int | None, *, quorum: int = 3) -> StreamFragment:
    """A fragment on bookies ``b0``, ``b1``, ...; ``before`` is the place before it."""
    return replace(
        stream_fragment(term, offset, position, length_before=0 if before is None else length_up_to(before)),
        bookies=tuple(BookieId(f"b{name}") for name in names), write_quorum=quorum, ack_quorum=2,
    )  # fmt: skip
