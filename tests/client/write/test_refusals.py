"""What it means to a writer that a bookie refused an add: a row for every answer, and what error messages say of it."""

from typing import Final

import pytest
from octavo.client.write.refusals import ends_unnoticed, failure_of, is_reason_to_replace, last_answer
from octavo.protocol.errors import (
    ERROR_CODES,
    BookieInDoubtError,
    BookieOverloadedError,
    BookieReadOnlyError,
    BookieShuttingDownError,
    BookieStorageError,
    BookieUnavailableError,
    DigestMismatchError,
    DuplicateEntryError,
    EntryTooLargeError,
    InternalError,
    InvalidArgumentError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    OctavoTimeoutError,
    ProtocolError,
    TermOverError,
    UnauthorizedError,
    UnsupportedOperationError,
    UnsupportedVersionError,
    WrongClusterError,
)
from octavo.protocol.ids import BookieId, LedgerId

OF_THE_CLIENT: Final = (BookieUnavailableError, OctavoTimeoutError)
"""Outcomes of a request that no bookie sends."""

ENDS: Final[dict[type[OctavoError], str]] = {
    DuplicateEntryError: "ledger 7: bookie b1: no",
    LedgerFencedError: "ledger 7 is fenced: a client has opened it for recovery, which ends this writer (bookie b1: "
    "no). Go on in a new ledger. A client that only reads opens the ledger with recover=False",
    NoSuchLedgerError: "ledger 7: bookie b1: no",
    TermOverError: "stream 7: term 3, which this writer has opened, is over: bookie b1: no",
    UnauthorizedError: "ledger 7: bookie b1: no",
}
"""The answers that end a writer -> what its error says."""

GOES_ON: Final[dict[type[OctavoError], tuple[bool, bool]]] = {
    BookieInDoubtError: (True, True),
    BookieOverloadedError: (False, True),
    BookieReadOnlyError: (True, True),
    BookieShuttingDownError: (True, True),
    BookieStorageError: (True, True),
    BookieUnavailableError: (False, False),
    DigestMismatchError: (True, True),
    EntryTooLargeError: (True, True),
    InternalError: (True, True),
    InvalidArgumentError: (True, True),
    OctavoTimeoutError: (True, True),
    ProtocolError: (True, True),
    UnsupportedOperationError: (True, True),
    UnsupportedVersionError: (True, True),
    WrongClusterError: (True, True),
}
"""The others -> whether the bookie is to be replaced, and whether the slot pauses, because nothing tells when the
bookie takes adds again."""


def failure(refusal: OctavoError) -> OctavoError | None:
    return failure_of(refusal, BookieId("b1"), ledger_id=LedgerId(7), term=3)


def test_the_tables_have_every_answer_once() -> None:
    assert {*ERROR_CODES.values(), *OF_THE_CLIENT} == ENDS.keys() | GOES_ON.keys()
    assert not ENDS.keys() & GOES_ON.keys()


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.__name__)
def test_an_answer_that_holds_for_all_bookies_ends_the_writer_with_its_name(kind: type[OctavoError]) -> None:
    refusal = kind("no")
    error = failure(refusal)
    assert error is not None
    assert (type(error), error.message) == (kind, ENDS[kind])
    assert error.__cause__ is refusal


@pytest.mark.parametrize("kind", GOES_ON, ids=lambda kind: kind.__name__)
def test_any_other_answer_concerns_this_bookie_alone(kind: type[OctavoError]) -> None:
    refusal = kind("no")
    assert failure(refusal) is None
    assert (is_reason_to_replace(refusal), ends_unnoticed(refusal)) == GOES_ON[kind]


BROKEN: Final = BookieUnavailableError("it hung up")
FULL: Final = BookieReadOnlyError("its disk is full")


@pytest.mark.parametrize(
    ("refusal", "connected", "connection_error", "lacks", "expected"),
    [
        (None, True, None, False, "has confirmed everything"),
        (None, True, None, True, "no answer yet"),
        (None, False, None, False, "not connected"),
        (None, False, None, True, "not connected"),
        (None, False, BROKEN, True, "not connected (it hung up)"),
        (FULL, True, None, False, "BookieReadOnlyError: its disk is full"),
        (FULL, True, None, True, "BookieReadOnlyError: its disk is full"),
        (FULL, False, None, True, "BookieReadOnlyError: its disk is full"),
        (FULL, False, BROKEN, True, "not connected (it hung up)"),
    ],
)
def test_an_error_message_has_what_is_known_last_of_a_bookie(
    refusal: OctavoError | None, connected: bool, connection_error: OctavoError | None, lacks: bool, expected: str
) -> None:
    said = last_answer(refusal, connected=connected, connection_error=connection_error, lacks=lacks)
    assert said == expected
