"""How a client loses the lead of a log: by losing the lock for good, or because another client has taken the log over.

**A lease that ran out is no loss where no other client wants the log** (rule P18). The leader asks for the lock again,
once. It gets it only if no other client holds it or waits for it. Then it reads the metadata: if its own term is still
the last one, no other client has led in between, and it goes on in the same term. Nothing is less safe than before:
bookies and compare-and-set decide who may add, and the lock only avoids needless takeovers (rule P4).

A metadata store that answers reads and takes no writes, because its disk is full, can note no holder at all. Then the
leader asks again, three times per lease, and leads on as long as what it reads says that no other client does.
"""

import asyncio
import contextlib
import enum
import logging
import re
from collections.abc import Callable
from typing import Final

from octavo.client.counts import ClientCounts, reason_of
from octavo.client.log.seam.lead import LogLead
from octavo.client.log.writer.lock import LogLock
from octavo.metadata.own_tasks import tasks_cancelled
from octavo.metadata.store.leases import RENEWALS_PER_LEASE
from octavo.protocol.errors import (
    ClientClosedError,
    InternalError,
    LogDamagedError,
    LogSealedError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotLeaderError,
    OctavoError,
    UnauthorizedError,
)

log = logging.getLogger("octavo.client")

FINAL: Final = (
    *(NotLeaderError, NoSuchLogError, LogSealedError, LogDamagedError),
    *(UnauthorizedError, ClientClosedError, InternalError),
)
"""Failures of a takeover after which trying again is no use."""

_LEASE: Final = "Lease"
"""Label of a loss of the lock, in place of the class of an error."""


class LeadLoss:
    """Says once that, and why, a client no longer leads: to the program, in the log, and in the metrics."""

    __slots__ = ("_counts", "_event", "_log_name", "is_over", "reason")

    def __init__(self, log_name: str, counts: ClientCounts) -> None:
        self._log_name = log_name
        self._counts = counts
        self._event: asyncio.Event | None = None
        self.is_over = False
        """Whether the client no longer leads, also because the program has closed the writer."""
        self.reason: str | None = None
        """Why it lost the lead; None while it leads, and where the program has closed the writer."""

    @property
    def event(self) -> asyncio.Event:
        """Set once the lead is over. Made when a program first asks for it, because each takes 800 bytes."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.is_over:
                self._event.set()
        return self._event

    def end(self) -> None:
        """The lead is over."""
        self.is_over = True
        if self._event is not None:
            self._event.set()

    def note(self, error: OctavoError, *, is_of_lock: bool = False) -> None:
        """It is lost. Only the first call counts."""
        if not self.is_over:
            self.reason = _why(self._log_name, error)
            self._counts.leads_lost[_LEASE if is_of_lock else reason_of(error)] += 1
            log.warning("log %s: this client does not lead any more: %s", self._log_name, self.reason)
            self.end()


async def wait_lock_lost(
    lock: LogLock, lead: LogLead, counts: ClientCounts, *, lease_seconds: float, leads: Callable[[], bool]
) -> OctavoError:
    """Return once the lock is lost for good, with the reason. ``leads``: whether the writer would go on."""
    patience = lease_seconds / RENEWALS_PER_LEASE
    while True:
        await lock.wait_lost()
        loss = lock.loss
        if loss is not None and loss.cancelled:
            return tasks_cancelled(f"leading log {lead.name}")
        reason = "its lock was lost" if loss is None else loss.reason
        if loss is None or not loss.ran_out:
            return not_leader(lead.name, reason)
        says_why = True
        while (outcome := await _get_again(lock, lead, reason, patience)) is _Outcome.CANNOT_BE_HELD:
            if says_why:
                log.warning("log %s: %s (no client can get the lock now, and this one leads on)", lead.name, reason)
                says_why = False
            await asyncio.sleep(patience)
            if not leads():
                return not_leader(lead.name, reason)
        if isinstance(outcome, OctavoError):
            return outcome
        counts.locks_got_again += 1
        log.warning("log %s: %s (no other client wanted the log, and this one leads on)", lead.name, reason)


class _Outcome(enum.Enum):
    """The outcome of asking for the lock again, where that does not end the lead."""

    HELD = "held"
    CANNOT_BE_HELD = "the store answers, and cannot note a holder"


async def _get_again(lock: LogLock, lead: LogLead, reason: str, seconds: float) -> _Outcome | OctavoError:
    """Ask for the lock once more; an error says why the client cannot lead on."""
    reason = reason if reason.endswith("?") else f"{reason}."
    try:
        async with asyncio.timeout(seconds):
            outcome = _Outcome.HELD
            try:
                is_ours = await lock.get_again()
            except MetadataUnavailableError:
                # A store without space still answers reads, and then no other client can get the lock either.
                outcome, is_ours = _Outcome.CANNOT_BE_HELD, await lock.is_free()
            if not is_ours:
                return not_leader(lead.name, f"{reason} Another client has the lock by now, or waits for it")
            await lead.check_lead()
            return outcome
    except NotLeaderError:
        error = not_leader(lead.name, f"{reason} Another client has taken the log over meanwhile")
    except TimeoutError:
        error = not_leader(lead.name, f"{reason} The metadata store does not answer")
    except OctavoError as failure:
        error = not_leader(lead.name, f"{reason} {failure.message}")
    with contextlib.suppress(OctavoError):
        await lock.release()
    return error


def not_leader(log_name: str, why: str = "") -> NotLeaderError:
    """The error of an add, or of a change, of a client that does not lead."""
    reason = f" ({why})" if why else ""
    return NotLeaderError(f"log {log_name}: this client no longer leads{reason}", may_have_happened=False)


def as_lost(name: str, error: OctavoError) -> OctavoError:
    """The failure of the segment of a client that does not lead any more, for its adds."""
    return error if isinstance(error, FINAL) else not_leader(name, error.message)


def _why(log_name: str, error: OctavoError) -> str:
    """The reason in an error, without what is said around it."""
    text = error.message.removeprefix(f"log {log_name}: ")
    found = re.fullmatch(r"this client no longer leads \((.*)\)", text, re.DOTALL)
    return text if found is None else found[1]
