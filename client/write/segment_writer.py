"""A ledger that is a segment of a log: the log's writer brings adds in runs, and keeps their futures itself.

What a :class:`~octavo.client.write.writer.LedgerWriter` does below its window (sealing, sending, ensemble changes, the
close) happens here unchanged. Payloads and futures stay with the log's writer, which sends adds again to another
segment when this one fails.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from octavo.client.write.front.adds import frames_of, internal_error
from octavo.client.write.writer import LedgerWriter
from octavo.client.write.writer_life import WriterState
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.errors import ClientClosedError


def created_at_ms(metadata: LedgerMetadata) -> int:
    """When the ledger was created, by its creator's clock: a segment has no entry that was sealed before."""
    return int(metadata.created_at.timestamp() * 1000)


class SegmentWriter(LedgerWriter):
    """See the module. ``on_acknowledged`` is called with the last acknowledged entry id each time it rises;
    ``on_failure`` of the base class is called once, if the segment fails. Entries are not sealed with a time before
    ``sealed_at_ms_min``, nor before the ledger was created."""

    def __init__(
        self, *arguments: Any, on_acknowledged: Callable[[int], None], sealed_at_ms_min: int, **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self._report_acknowledged = on_acknowledged
        self._sealed_at_ms = max(sealed_at_ms_min, created_at_ms(self.metadata))

    @property
    def length_pushed(self) -> int:
        """Payload bytes handed to this segment, acknowledged or not."""
        path = self._write_path
        return 0 if path is None else path.replication.pipeline.length_pushed

    @property
    def is_written(self) -> bool:
        """Whether anything was handed to this segment; always of a term of a stream."""
        return self._pipeline.next_entry_id > 0

    @property
    def sealed_at_ms(self) -> int:
        """The time of the last sealing, in milliseconds since 1970."""
        return self._sealed_at_ms

    def seal_not_before(self, sealed_at_ms: int) -> None:
        """Seal no further entry with an earlier time."""
        self._sealed_at_ms = max(self._sealed_at_ms, sealed_at_ms)

    def push(self, payloads: Sequence[bytes]) -> None:
        """Send entries under the next ids; nothing happens once the segment has failed or is closing."""
        if self._life.state is not WriterState.OPEN:
            return
        try:
            path = self._write_path if self._write_path is not None else self._set_up_write_path()
            frames = frames_of(payloads)
            if len(frames) == 1:
                self._push(path, payloads)
            else:
                for start, stop in frames:
                    self._push(path, payloads[start:stop])
        except Exception as error:  # a broken invariant: nothing may be added any more
            self._fail(internal_error(self.id, error))
            raise

    def _on_acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        del first, payload_bytes
        path = self._write_path
        assert path is not None, "only what was pushed is acknowledged"
        while self._flushes and self._flushes[0][0] <= last:
            acknowledged = self._flushes.popleft()[1]
            if not acknowledged.done():
                acknowledged.set_result(None)
        if path.lac_sender.timer is None and not self._pipeline.pending:
            path.lac_sender.arm()
        self._report_acknowledged(last)

    async def abandon(self) -> None:
        """Stop writing and leave the ledger as a crash would, for a recovery to close. Does nothing to a closed
        ledger."""
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait([self._closing])
            return
        self._own_metadata.stop_watching()
        self._fail(ClientClosedError(f"ledger {self.id}: the writer of its log has abandoned it"))
        await self._tear_down_write_path()
        if self._on_close is not None:
            self._on_close(self)
