"""Whether a candidate still holds the log's lock, while it takes the log over (rule P3).

A candidate that was paused, or whose metadata store did not answer, for longer than its lease does not know what came
meanwhile: another client may have got the lock, and lead. So the candidate asks its lease, whose clock counts pauses,
*after* each reading of the metadata, and before each step that depends on what was read. What it has read is then from
a time at which it held the lock, and so older than any takeover by a later holder. Each later step names what was read:
the term of a stream, the newest segment of a chain. It is refused if another client has taken the log over since, also
where the candidate is paused between the question and the step.
"""

from collections.abc import Callable

from octavo.client.log.writer.lock import LogLock
from octavo.protocol.errors import LeaseLostError

type CheckHeld = Callable[[], None]
"""Raises :class:`LeaseLostError` once the lock is not held any more."""


def held_by(lease: LogLock | None, log_name: str) -> CheckHeld:
    """The check for a candidate with this lock; without a lock there is nothing to lose."""

    def check() -> None:
        if lease is not None and lease.lost:
            raise LeaseLostError(
                f"log {log_name}: the lock of this candidate ended before it led; another client may lead by now",
                may_have_happened=False,
            )

    return check


def needs_no_lock() -> None:
    """The check for a client that takes over without a lock, or from itself."""
