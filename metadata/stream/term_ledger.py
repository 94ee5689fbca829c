"""A term of a stream as the ledger that it is to bookies, to its writer and to a recovery. Pure.

To bookies each term is a ledger with one writer, whose ids are places. What is known of that ledger is given here as
:class:`~octavo.metadata.ledger.model.LedgerMetadata`, so that everything that writes and recovers ledgers does the same
for terms (rule T3). It is never stored. Its first fragment, from entry 0 on, stands for the places below the term; it
holds nothing, and nothing is asked of it.
"""

from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.protocol.ids import EntryId

_STATES = {
    StreamState.OPEN: LedgerState.OPEN,
    StreamState.IN_RECOVERY: LedgerState.IN_RECOVERY,
    StreamState.AT_REST: LedgerState.CLOSED,
    StreamState.CLOSED: LedgerState.CLOSED,
}


def current_term(stream: StreamMetadata) -> LedgerMetadata:
    """The current term of a stream. All of its fragments have the quorums and the key of the last one."""
    fragments = [fragment for fragment in stream.fragments if fragment.term == stream.term]
    last = fragments[-1]
    key = stream.keys[last.key]
    return LedgerMetadata(
        ledger_id=stream.ledger_id,
        state=_STATES[stream.state],
        ensemble_size=len(last.bookies),
        write_quorum=last.write_quorum,
        ack_quorum=last.ack_quorum,
        fragments=(
            Fragment(EntryId(0), fragments[0].bookies),
            *map(ledger_fragment, fragments),
        ),
        last_entry_id=stream.last_entry_id,
        length=stream.length,
        digest=key.digest,
        created_at=stream.created_at,
        verifier=key.verifier,
        salt=key.salt,
        private=stream.private,
        full_copies=stream.full_copies,
        term=stream.term,
        writer_token=stream.owner,
        fenced_at=stream.fenced_at,
        fenced_by=stream.fenced_by,
    )


def ledger_fragment(fragment: StreamFragment) -> Fragment:
    """A fragment of a stream as one of the ledger that its term is."""
    return Fragment(fragment.first_entry_id, fragment.bookies, fragment.length_before)
