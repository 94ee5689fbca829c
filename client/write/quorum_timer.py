"""The timer of the quorum timeout: lets :mod:`octavo.client.write.deadline` look at the adds that wait, and ends the
writer when they are too late (rules W6 and W8)."""

import asyncio
from collections.abc import Callable

from octavo.client.write.deadline import ChangeProgress, Deadline, LookAgain, TooLate, is_out_of_reach
from octavo.client.write.guard import Guard
from octavo.client.write.pipeline import Pipeline
from octavo.client.write.slots import Slots
from octavo.protocol.errors import UnauthorizedError
from octavo.protocol.quorums import Quorums


class QuorumTimer:
    """See the module. ``progress`` says how far the writer is with replacing bookies."""

    __slots__ = (
        "_deadline",
        "_guard",
        "_loop",
        "_pipeline",
        "_progress",
        "_quorums",
        "_slots",
        "_timer",
        "armed",
    )

    def __init__(
        self,
        pipeline: Pipeline,
        quorums: Quorums,
        slots: Slots,
        guard: Guard,
        progress: Callable[[], ChangeProgress],
        *,
        timeout_seconds: float,
    ) -> None:
        self._pipeline = pipeline
        self._quorums = quorums
        self._slots = slots
        self._guard = guard
        self._progress = progress
        self._deadline = Deadline(timeout_seconds)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.armed = False
        """Whether it runs. A plain attribute, because it is read at every push."""

    def begin(self, now: float) -> None:
        """Adds wait from now on. Only if not :attr:`armed`."""
        self._arm(self._deadline.begins(now))

    def watch(self) -> None:
        """Let the quorum timeout run, if anything is pending."""
        if not self.armed and self._pipeline.pending_since is not None:
            self.begin(self._loop.time())

    def _arm(self, look: LookAgain) -> None:
        self.armed = True
        self._timer = self._loop.call_at(look.at, self._guard.run, self._look)

    def _look(self) -> None:
        self.armed = False
        step = self._deadline.look(self._pipeline.pending_since, self._loop.time(), self._progress())
        if isinstance(step, LookAgain):
            self._arm(step)
        elif isinstance(step, TooLate):
            self._guard.fail(
                self._deadline.error(
                    self._guard.ledger_id,
                    self._progress(),
                    denied=self._is_denied,
                    answers=self._slots.describe(),
                )
            )

    @property
    def _is_denied(self) -> bool:
        """Every bookie that has not confirmed denies this client: another attempt cannot help."""
        waited_for = [
            position for position in range(self._quorums.ensemble_size) if self._pipeline.unconfirmed_at(position)
        ]
        return bool(waited_for) and self._slots.are_denied(waited_for)

    def fails_for_denials(self) -> bool:
        """Fail at once if adds wait that cannot be acknowledged without bookies that deny this client."""
        if self._pipeline.pending_since is None or not is_out_of_reach(self._quorums, self._slots.usable_mask):
            return False
        self._guard.fail(
            UnauthorizedError(f"ledger {self._guard.ledger_id}: its bookies deny this client; {self._slots.describe()}")
        )
        return True

    def stop(self) -> None:
        """Nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.armed = None, False
