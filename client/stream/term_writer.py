"""The writer of one term of a stream.

It is the writer of the ledger that the term is to bookies (:mod:`octavo.client.stream.term_ledger`). Callers count in
positions, bookies in places: within a term the two differ by a constant, which is added once for each frame. Closing it
lays the stream to rest. A writer whose term is over fails, and writes nothing any more (rule T10).
"""

from collections.abc import Callable

from octavo.client.stream.own_term import OwnTerm
from octavo.client.write.write_path import EmptyPipeline
from octavo.client.write.writer import LedgerWriter, WriterTools
from octavo.metadata.store import Versioned
from octavo.metadata.stream_model import StreamMetadata, StreamState
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import OctavoError, TermOverError
from octavo.protocol.places import last_place, place


class TermWriter(LedgerWriter):
    """See the module. ``stream``: as just opened by this client. What adds return are positions."""

    def __init__(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        tools: WriterTools,
        *,
        on_close: Callable[[LedgerWriter], object] | None = None,
        on_failure: Callable[[OctavoError], object] | None = None,
    ) -> None:
        value, first = stream.value, stream.value.last_fragment
        assert value.state is StreamState.OPEN, "nothing is sent before the term stands (rule T6)"
        assert first.first_entry_id == place(value.term, 0), "nothing has been written in it"
        own = OwnTerm(
            stream, store=tools.store, retry_seconds=tools.options.resend_delay_seconds, clock_ms=tools.clock_ms
        )
        super().__init__(
            Versioned(own.value, stream.version),
            secrets,
            tools,
            on_close=on_close,
            on_failure=on_failure,
            own_metadata=own,
        )
        self._own_term = own
        self._term = value.term
        self._pipeline = EmptyPipeline(first.first_entry_id, first.length_before)
        self._last_place = last_place(self._term)
        self._position_shift = first.first_position - first.first_entry_id

    @property
    def term(self) -> int:
        """The term that it writes: a number that rises with each writer of the stream."""
        return self._term

    @property
    def stream(self) -> StreamMetadata:
        """The latest metadata of the stream that this writer has seen or written."""
        return self._own_term.stream

    @property
    def last_position(self) -> int:
        """The last position that is acknowledged; -1 while the stream is empty."""
        lac = self.last_add_confirmed
        assert lac is not None, "a term without entries has the LAC below its first place"
        return lac + self._position_shift

    def _send_turn(self) -> None:
        last = self._pipeline.next_entry_id + len(self._payloads) - 1
        if last > self._last_place:
            self._fail(
                TermOverError(
                    f"stream {self.id}: term {self._term} has no place left; take the stream over to go on in the next "
                    "one"
                )
            )
            return
        super()._send_turn()
