"""The table of errors: codes for ever, every class with its place, and what crosses the wire comes back the same."""

import copy
import inspect
import pickle

import pytest
from octavo.protocol import errors
from octavo.protocol.errors import ERROR_CODES, OctavoError, code_of, error_from_wire

CONTRACT_NAMES = [
    "LedgerFencedError",
    "LedgerClosedError",
    "NoSuchLedgerError",
    "NoSuchEntryError",
    "LedgerExistsError",
    "NotEnoughBookiesError",
    "QuorumLostError",
    "UnauthorizedError",
    "DigestMismatchError",
    "EntryTooLargeError",
    "MetadataConflictError",
    "MetadataUnavailableError",
    "LedgerRecoveryError",
    "OctavoTimeoutError",
    "ClientClosedError",
    "DuplicateEntryError",
    "WouldBlock",
    "InvalidArgumentError",
]

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, OctavoError) and value.__module__ == errors.__name__
]

RAISED_BY_CLIENTS_ONLY = {
    "OctavoError",
    "WouldBlock",
    "ClientClosedError",
    "ForkedError",
    "TasksCancelledError",
    "LedgerExistsError",
    "LedgerClosedError",
    "LedgerRecoveryError",
    "NoSuchEntryError",
    "NotEnoughBookiesError",
    "QuorumLostError",
    "UnderReplicatedError",
    "OctavoTimeoutError",
    "MetadataUnavailableError",
    "MetadataConflictError",
    "MetadataError",
    "LedgerKindError",
    "LeaseLostError",
    "BookieUnavailableError",
    "NoSuchLogError",
    "LogExistsError",
    "TruncatedError",
    "PositionMismatchError",
    "NotLeaderError",
    "CursorDeletedError",
    "LogDamagedError",
    "LogSealedError",
}

RETRYABLE = {
    "WouldBlock",
    "LedgerRecoveryError",
    "NotEnoughBookiesError",
    "QuorumLostError",
    "UnderReplicatedError",
    "OctavoTimeoutError",
    "MetadataUnavailableError",
    "BookieUnavailableError",
    "BookieReadOnlyError",
    "BookieOverloadedError",
    "BookieShuttingDownError",
}

MAY_HAVE_HAPPENED_BY_DEFAULT = {
    "LedgerFencedError",
    "NotLeaderError",
    "TermOverError",
    "QuorumLostError",
    "OctavoTimeoutError",
    "MetadataUnavailableError",
    "BookieUnavailableError",
    "BookieStorageError",
    "TasksCancelledError",
    "InternalError",
}

CODES_FOR_EVER = {
    1: "ProtocolError",
    2: "UnsupportedVersionError",
    3: "WrongClusterError",
    4: "UnsupportedOperationError",
    5: "InvalidArgumentError",
    6: "EntryTooLargeError",
    7: "UnauthorizedError",
    8: "LedgerFencedError",
    9: "DuplicateEntryError",
    10: "DigestMismatchError",
    11: "NoSuchLedgerError",
    12: "BookieReadOnlyError",
    13: "BookieInDoubtError",
    14: "BookieOverloadedError",
    15: "BookieStorageError",
    16: "BookieShuttingDownError",
    17: "InternalError",
    18: "TermOverError",
}


def test_codes_keep_the_meaning_they_were_given() -> None:
    assert {code: error_class.__name__ for code, error_class in ERROR_CODES.items()} == CODES_FOR_EVER


def test_every_class_has_one_code_or_never_crosses_the_wire() -> None:
    on_the_wire = [error_class.__name__ for error_class in ERROR_CODES.values()]
    assert len(on_the_wire) == len(set(on_the_wire))
    assert errors.CODE_OK not in ERROR_CODES
    assert {error_class.__name__ for error_class in CLASSES} == RAISED_BY_CLIENTS_ONLY | set(on_the_wire)
    assert not RAISED_BY_CLIENTS_ONLY & set(on_the_wire)


def test_retryable_and_the_default_of_may_have_happened_are_as_written() -> None:
    assert {c.__name__ for c in CLASSES if c.retryable} == RETRYABLE
    assert {c.__name__ for c in CLASSES if c("text").may_have_happened} == MAY_HAVE_HAPPENED_BY_DEFAULT


@pytest.mark.parametrize("name", CONTRACT_NAMES)
def test_names_of_the_contract_exist_and_derive_from_octavo_error(name: str) -> None:
    assert issubclass(getattr(errors, name), OctavoError)


def test_errors_that_have_a_builtin_meaning_are_caught_by_it() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.EntryTooLargeError, errors.InvalidArgumentError)
    assert issubclass(errors.OctavoTimeoutError, TimeoutError)
    assert issubclass(errors.UnsupportedVersionError, errors.ProtocolError)
    with pytest.raises(TimeoutError, match="no answer"):
        raise errors.OctavoTimeoutError("no answer", may_have_happened=False)


@pytest.mark.parametrize("error_class", CLASSES)
def test_whether_it_may_have_happened_is_set_per_instance(error_class: type[OctavoError]) -> None:
    for known in (True, False):
        error = error_class("ledger 7: why", may_have_happened=known)
        assert (error.may_have_happened, error.message, str(error)) == (known, "ledger 7: why", "ledger 7: why")
    assert error_class().message == ""


@pytest.mark.parametrize("error_class", CLASSES)
def test_errors_survive_copying_and_pickling(error_class: type[OctavoError]) -> None:
    error = error_class("why", may_have_happened=not error_class.may_have_happened_default)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is error_class
        assert (twin.message, twin.may_have_happened) == (error.message, error.may_have_happened)


@pytest.mark.parametrize(("code", "error_class"), ERROR_CODES.items())
def test_refusals_come_back_as_they_were_sent(code: int, error_class: type[OctavoError]) -> None:
    for known in (True, False):
        arrived = error_from_wire(code_of(error_class("why")), "why", may_have_happened=known)
        assert type(arrived) is error_class
        assert code_of(arrived) == code
        assert (arrived.message, arrived.may_have_happened) == ("why", known)


def test_subclasses_travel_as_their_nearest_base_and_strangers_as_internal_errors() -> None:
    class FullDiskError(errors.BookieReadOnlyError):
        pass

    assert code_of(FullDiskError("why")) == 12
    assert code_of(errors.QuorumLostError("why")) == 17
    assert code_of(OctavoError("why")) == 17


@pytest.mark.parametrize("code", [0, 19, 999, -1])
def test_unknown_codes_become_internal_errors_that_name_them(code: int) -> None:
    error = error_from_wire(code, "from a newer bookie", may_have_happened=False)
    assert type(error) is errors.InternalError
    assert error.message == f"unknown error code {code}: from a newer bookie"
    assert error.may_have_happened is False
