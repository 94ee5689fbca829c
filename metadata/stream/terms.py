"""How a term is made from fragments of a stream. Pure."""

from collections.abc import Mapping
from typing import Final

from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.ledger.term import Term, TermKey, TermState
from octavo.metadata.stream.fragment import StreamFragment
from octavo.metadata.stream.states import StreamState
from octavo.protocol.ids import EntryId

TERM_STATES: Final[Mapping[StreamState, TermState]] = {
    StreamState.OPEN: TermState.OPEN,
    StreamState.IN_RECOVERY: TermState.IN_RECOVERY,
    StreamState.AT_REST: TermState.ENDED,
    StreamState.CLOSED: TermState.ENDED,
}


def term_from(
    stream: StoredLedger,
    fragments: tuple[StreamFragment, ...],
    state: TermState,
    last_entry_id: EntryId | None,
    length: int,
) -> Term:
    """The term that has these fragments, which have one term, the same quorums and one key (rule T13)."""
    last = fragments[-1]
    key = stream.keys[last.key]
    return Term(
        ledger_id=stream.ledger_id,
        number=last.term,
        state=state,
        quorums=last.quorums,
        fragments=fragments,
        last_entry_id=last_entry_id,
        length=length,
        key=TermKey(key.digest, key.verifier, key.salt),
        private=stream.private,
        full_copies=stream.full_copies,
    )
