"""Decides what it means to a writer that a bookie has not done what it was sent. Pure.

Some refusals end the writer at once, whatever the other bookies answer (:data:`FATAL`). The others leave it to the
quorum timeout (:mod:`octavo.client.write.deadline`) whether the writer fails. Most of them are a reason to replace the
bookie (:mod:`octavo.client.write.ensemble_changes`); those of a busy bookie are not.
"""

from typing import Final

from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieUnavailableError,
    DuplicateEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    TermOverError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId, LedgerId

FATAL: Final = (LedgerFencedError, UnauthorizedError, DuplicateEntryError, NoSuchLedgerError)
"""Answers of one bookie that hold for all of them: this writer may not go on."""

_BUSY: Final = (BookieUnavailableError, BookieOverloadedError)
"""Answers that are no reason to replace the bookie: after the first the connection's listener reports what follows, and
the second passes."""


def failure_of(refusal: OctavoError, bookie_id: BookieId, *, ledger_id: LedgerId, term: int) -> OctavoError | None:
    """The error with which the writer ends because this bookie refused an add so; None if it goes on."""
    if not isinstance(refusal, FATAL):
        return None
    if isinstance(refusal, TermOverError):
        failure: OctavoError = TermOverError(
            f"stream {ledger_id}: term {term}, which this writer has opened, is over: bookie {bookie_id}: "
            f"{refusal.message}"
        )
    elif isinstance(refusal, LedgerFencedError):
        failure = fenced(ledger_id, f"bookie {bookie_id}: {refusal.message}")
    else:
        failure = type(refusal)(f"ledger {ledger_id}: bookie {bookie_id}: {refusal.message}")
    failure.__cause__ = refusal
    return failure


def is_reason_to_replace(refusal: OctavoError) -> bool:
    """Whether the bookie is to be replaced, unless it confirms something soon."""
    return not isinstance(refusal, _BUSY)


def ends_unnoticed(refusal: OctavoError) -> bool:
    """Whether nothing tells when the bookie takes adds again: its connection is up, so no listener will be called."""
    return not isinstance(refusal, BookieUnavailableError)


def last_answer(
    refusal: OctavoError | None, *, connected: bool, connection_error: OctavoError | None, lacks: bool
) -> str:
    """The last answer of a bookie, for an error message. ``connection_error``: why there is no connection. ``lacks``:
    an entry waits for the bookie."""
    if not connected and connection_error is not None:
        return f"not connected ({connection_error.message})"
    if refusal is not None:
        return f"{type(refusal).__name__}: {refusal.message}"
    if not connected:
        return "not connected"
    return "no answer yet" if lacks else "has confirmed everything"


def fenced(ledger_id: LedgerId, evidence: str) -> LedgerFencedError:
    """The error of a writer whose ledger another client has opened for recovery. ``evidence``: how it is known."""
    return LedgerFencedError(
        f"ledger {ledger_id} is fenced: a client has opened it for recovery, which ends this writer ({evidence}). "
        "Go on in a new ledger. A client that only reads opens the ledger with recover=False"
    )
