"""Decides when adds have waited too long for their ack quorum, and with which error the writer fails then. Pure.

Theory of operation
-------------------

The oldest add that is not acknowledged may wait for the *quorum timeout*. Nothing else ends a writer whose bookies do
not answer (rule W8), with one exception: bookies deny this client, and without them what waits cannot be
acknowledged (:func:`is_out_of_reach`).

When the time is up, the metadata store may have been asked for the change that would help just now, and its answer may
be waiting to be read in this very turn of the event loop. So while the writer waits for the store the deadline is
postponed, once for each oldest add: the *grace*.

The error names each bookie and its last answer, and says whose fault it is: that of the metadata store, of this
client's identity, or of the bookies. The answers never decide when the time is up.

*How a harness drives it.* When adds begin to wait, call :meth:`Deadline.begins`; at the time that this returns, and at
each that follows, call :meth:`Deadline.look`, until it returns something else than :class:`LookAgain`. On
:class:`TooLate` the writer fails with :meth:`Deadline.error`.
"""

from typing import Final, NamedTuple

from octavo.client.write.ensemble_changes import Phase
from octavo.protocol.errors import MetadataUnavailableError, OctavoError, QuorumLostError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

_METADATA_GRACE: Final = 0.1
"""Share of the quorum timeout by which it is postponed, once, while the metadata store is being asked."""


class ChangeProgress(NamedTuple):
    """How far the writer is with replacing bookies."""

    phase: Phase
    asked_metadata_at: float | None
    """When the metadata store was asked for a spare; None: no answer is awaited."""
    no_spare: OctavoError | None
    """Why there was no spare, last time; None once bookies have been replaced."""

    @property
    def waits_for_metadata(self) -> bool:
        """Whether the metadata store is being asked, for a spare or for the change itself."""
        return self.asked_metadata_at is not None or self.phase is Phase.COMMITTING


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Not yet: call :meth:`Deadline.look` at this time."""

    at: float


@dataclass(frozen=True, slots=True)
class NothingWaits:
    """Everything is acknowledged: call :meth:`Deadline.begins` for the next add."""


@dataclass(frozen=True, slots=True)
class TooLate:
    """The writer cannot go on."""


type Step = LookAgain | NothingWaits | TooLate


class Deadline:
    """See the module. Times are the shell's clock, in seconds."""

    __slots__ = ("_grace_since", "_grace_started_at", "_timeout_seconds")

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._grace_since: float | None = None
        """Push time of the oldest add for which the deadline was postponed; None: it never was."""
        self._grace_started_at = 0.0
        """When the deadline was postponed last."""

    def begins(self, now: float) -> LookAgain:
        """Adds wait from now on."""
        return LookAgain(now + self._timeout_seconds)

    def look(self, pending_since: float | None, now: float, progress: ChangeProgress) -> Step:
        """It is the time to look. ``pending_since``: when the oldest add that is not acknowledged was pushed; None if
        there is none."""
        if pending_since is None:
            return NothingWaits()
        deadline = pending_since + self._timeout_seconds
        if deadline > now:
            return LookAgain(deadline)
        if progress.waits_for_metadata and self._grace_since != pending_since:
            self._grace_since, self._grace_started_at = pending_since, now
            return LookAgain(now + _METADATA_GRACE * self._timeout_seconds)
        return TooLate()

    def error(self, ledger_id: LedgerId, progress: ChangeProgress, *, denied: bool, answers: str) -> OctavoError:
        """Why adds did not reach their ack quorum in time: for lack of bookies, or because the metadata store did not
        answer. ``denied``: every bookie that has not confirmed denies this client, so another attempt cannot help.
        ``answers``: each bookie and its last answer."""
        message = (
            f"ledger {ledger_id}: adds did not reach their ack quorum within {self._timeout_seconds:g} s; {answers}"
        )
        if metadata_did_not_answer(progress, self._grace_started_at):
            return MetadataUnavailableError(f"{message}; the metadata store did not confirm the change of the ensemble")
        no_spare = progress.no_spare
        if isinstance(no_spare, MetadataUnavailableError):
            return MetadataUnavailableError(f"{message}; {no_spare.message}")
        if denied:
            return UnauthorizedError(message)
        return QuorumLostError(message if no_spare is None else f"{message}; {no_spare.message}")


def metadata_did_not_answer(progress: ChangeProgress, grace_started_at: float) -> bool:
    """Whether the metadata store is why adds were not acknowledged in time: it left a question for a spare, or the
    change itself, without an answer for all of the grace. The writer asks again and again: a question asked after the
    grace began is one more of them, and the answer to the one before tells why there is no spare."""
    if progress.asked_metadata_at is not None:
        return progress.asked_metadata_at <= grace_started_at
    return progress.phase is Phase.COMMITTING


def is_out_of_reach(quorums: Quorums, usable_mask: int) -> bool:
    """Whether entries cannot be acknowledged without the bookies outside this mask of slots."""
    stripes = range(quorums.ensemble_size)
    return not all(quorums.can_be_acknowledged(entry_id, usable_mask) for entry_id in stripes)
