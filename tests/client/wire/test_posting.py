"""What becomes of posted requests on a wire that is lost while they leave; test_packs.py has the rest, on real ones."""

import asyncio
from collections.abc import Sequence
from itertools import count

from octavo.client.wire.outcome import OnOutcome, Outcome
from octavo.client.wire.posting import Posting
from octavo.client.wire.turn import Turn
from octavo.protocol.errors import BookieUnavailableError, OctavoError
from octavo.protocol.packs import tail_of
from support.raw_client import add, seal


class LostByTheFirstFrame:
    """Frames of a connection that the first write ends, as a TLS transport does when it cannot encrypt."""

    writable = True
    error: OctavoError | None = None
    free = 100

    def __init__(self) -> None:
        self.written = 0

    def expect(self, request_id: int, on_outcome: OnOutcome, timeout_seconds: float) -> None:
        """The frame that is written fails with the wire, which is not looked at here."""

    def write_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        del pieces
        self.written += 1
        self.writable, self.error = False, BookieUnavailableError("lost")

    def take(self, request_id: int) -> object:
        raise AssertionError(f"frame {request_id} was not answered")

    def deliver(self, on_outcome: OnOutcome, outcome: Outcome) -> None:
        on_outcome(outcome)

    def report_defect(self, error: Exception) -> None:
        raise error

    def lost_error(self) -> OctavoError:
        return BookieUnavailableError("lost", may_have_happened=True)


async def test_requests_behind_the_frame_that_ended_the_connection_fail_when_the_flush_is_over() -> None:
    frames = LostByTheFirstFrame()
    posting = Posting(frames, Turn(), count(1).__next__)
    outcomes: dict[int, list[Outcome]] = {1: [], 2: [], 3: []}
    for ledger_id, outcome in outcomes.items():
        assert posting.post(tail_of(add(ledger_id, seal(ledger_id, 0, [b"x"]))), outcome.append, 10.0)
    posting.send_posted()
    assert (frames.written, list(outcomes.values())) == (1, [[], [], []]), "nothing has an outcome in the middle of it"
    await asyncio.sleep(0)
    assert {ledger_id: [type(one) for one in outcome] for ledger_id, outcome in outcomes.items()} == {
        1: [],
        2: [BookieUnavailableError],
        3: [BookieUnavailableError],
    }
    assert not posting.post(b"", outcomes[1].append, 10.0)
    assert posting.requests_without_frame == 0
