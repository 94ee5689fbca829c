"""Every error Octavo raises, and the table that carries refusals over the wire.

All derive from :class:`OctavoError`. Two attributes tell a caller what to do next:

* ``retryable``: the same call, on the same object and unchanged, may succeed later. A default on the class; False on
  the instances that a writer raises after it has failed, because such a writer never recovers (rule W7).
* ``may_have_happened``: the effect may exist although the call failed ("in doubt"). A default on the class, set per
  instance where more is known (rule W6): an add refused before it was sent did not happen.

:data:`ERROR_CODES` is the one table of wire code and class. Codes are permanent: a retired code is never reused.
"""

from typing import ClassVar, NamedTuple


class Doubt(NamedTuple):
    """Which add to a log an error is about. Of an ``add_many``, the payloads that were sent have the consecutive
    positions that end at ``position``."""

    log_id: str
    term: int
    """Of the writer that sent it."""
    position: int
    """Of its last payload that was sent."""
    sent: int = 1
    """Payloads that were sent, from its beginning: they may be in the log."""
    unsent: int = 0
    """Payloads behind them that were not sent and never will be."""


class OctavoError(Exception):
    """Base of all errors of this package."""

    retryable: bool = False
    may_have_happened_default: ClassVar[bool] = False
    doubt: "Doubt | None" = None
    """Of an add to a log that was sent: what ``log.outcome(error)`` needs to tell what became of it."""

    def __init__(
        self, message: str = "", *, may_have_happened: bool | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.may_have_happened = (
            type(self).may_have_happened_default if may_have_happened is None else may_have_happened
        )

    @property
    def message(self) -> str:
        """The text, without the class name."""
        return str(self.args[0]) if self.args else ""


# --- invalid requests of the caller ---------------------------------------------------------------


class InvalidArgumentError(OctavoError, ValueError):
    """An argument is out of its range: E < Qw, Qa < 1, a negative id, first > last, ..."""


class EntryTooLargeError(InvalidArgumentError):
    """A payload is over ``limits.ENTRY_PAYLOAD_BYTES_MAX``. Nothing was sent."""


class WouldBlock(OctavoError):  # noqa: N818 - the public name is fixed
    """The writer's window is full; nothing was queued. Wait for an earlier add and try again."""

    retryable = True


class ClientClosedError(OctavoError):
    """The client, writer or reader used has been closed."""


class ForkedError(OctavoError):
    """The object belongs to the process that this one was forked from: it can be used only there.

    Forks are made by ``os.fork``, multiprocessing's ``fork`` and preloading web servers. Nothing was sent and nothing
    changed. Connect in the child, after the fork (rule H1).
    """


class TasksCancelledError(OctavoError):
    """The program has cancelled tasks of the client's own, with all tasks of the event loop for example.

    What depended on them has ended. Adds that were in flight are in doubt. Close the client and connect again.
    """

    may_have_happened_default = True


class UnauthorizedError(OctavoError):
    """The client may not do this; nothing was changed.

    The password or digest type of the ledger is wrong, the client's principal lacks a role, or its certificate or key
    is refused.
    """


# --- ledgers -------------------------------------------------------------------------------------------------------


class NoSuchLedgerError(OctavoError):
    """The ledger does not exist, or has been deleted."""


class LedgerExistsError(OctavoError):
    """A ledger of this id exists already."""


class LedgerClosedError(OctavoError):
    """The ledger is closed; it takes no more entries."""


class LedgerFencedError(OctavoError):
    """A client recovers or has recovered this ledger: its writer can add no more.

    Adds that were in flight are in doubt.
    """

    may_have_happened_default = True


class TermOverError(LedgerFencedError):
    """A client has taken this ledger over, or is taking it over: the term of its writer is over (rule T7).

    Adds that were in flight are in doubt.
    """


class LedgerRecoveryError(OctavoError):
    """The ledger could not be recovered; the message names the bookies whose answers are missing. Try again later."""

    retryable = True


class NoSuchEntryError(OctavoError):
    """The id lies above the readable end of the ledger. Never raised for an entry that should be there."""


class DuplicateEntryError(OctavoError):
    """A bookie holds other bytes at this id (rule W11): two writers, or damage. The entry held is never overwritten."""


class DigestMismatchError(OctavoError):
    """An entry's bytes do not match its digest: damaged on disk or in transit, or sealed with another password."""


# --- logs ----------------------------------------------------------------------------------------------------------


class NoSuchLogError(OctavoError):
    """The log does not exist, or has been deleted."""


class LogExistsError(OctavoError):
    """A log of this name exists already. Nothing was created."""


class NotLeaderError(LedgerFencedError):
    """Another client has taken the log over, or this one gave it up: this writer adds nothing more.

    To become leader again, call ``log.lead()``. Adds that were in flight are in doubt; ``log.outcome(error)`` tells
    what became of one.
    """


class TruncatedError(OctavoError):
    """The position lies before the beginning of the log: it has been truncated. Continue at ``first_position``."""

    def __init__(self, message: str = "", *, first_position: int = 0, may_have_happened: bool | None = None) -> None:
        super().__init__(message, may_have_happened=may_have_happened)
        self.first_position = first_position
        """The first position that can be read."""


class CursorDeletedError(OctavoError):
    """The cursor has been deleted, by this client or another one.

    It holds nothing back any more and is not stored. ``log.cursor(name)`` makes it again, at the beginning of the log.
    """


class PositionMismatchError(OctavoError):
    """The end of the log is not the position that the add expected; the add was not sent.

    Read the log up to ``end``, decide again, and add.
    """

    def __init__(self, message: str = "", *, end: int = 0, may_have_happened: bool | None = None) -> None:
        super().__init__(message, may_have_happened=may_have_happened)
        self.end = end
        """The position that the next add would have got."""


class LogSealedError(LedgerClosedError):
    """The log was sealed with ``log.seal()``: no client can add to it any more. Read it, or continue in a new log."""


class LogDamagedError(OctavoError):
    """A ledger of the log is gone although the log was not truncated: it was deleted by hand.

    The log takes no adds: restore the ledger's metadata from a backup, or continue in a new log.
    """


# --- the cluster ---------------------------------------------------------------------------------------------------


class NotEnoughBookiesError(OctavoError):
    """Fewer usable bookies than the ensemble needs."""

    retryable = True


class QuorumLostError(OctavoError):
    """An add or a read could not reach its quorum; the message names each bookie and its answer."""

    retryable = True
    may_have_happened_default = True

    def __init__(
        self,
        message: str = "",
        *,
        may_have_happened: bool | None = None,
        retryable: bool | None = None,
        missing: range | None = None,
    ) -> None:
        super().__init__(message, may_have_happened=may_have_happened, retryable=retryable)
        self.missing = missing
        """The run of entry ids that a read could not get; None for anything else."""


class UnderReplicatedError(OctavoError):
    """A ledger with ``full_copies="required"`` was not closed, because entries of it have too few copies.

    The message names the bookies that lack them. Nothing is lost: every add that returned is in the ledger. Close it
    again when enough bookies are up.
    """

    retryable = True


class OctavoTimeoutError(OctavoError, TimeoutError):
    """No answer by the deadline. The request may have taken effect."""

    retryable = True
    may_have_happened_default = True


class MetadataUnavailableError(OctavoError):
    """The metadata store does not answer. A requested change may have happened."""

    retryable = True
    may_have_happened_default = True


class MetadataConflictError(OctavoError):
    """Another client changed the metadata in the meantime, in a way that cannot be merged with this change."""


class LeaseLostError(OctavoError):
    """A registration or lock in the metadata store is no longer held. Register or lock again."""


class MetadataError(OctavoError):
    """A record in the metadata store cannot be read: it is damaged, or of a newer version."""


class LedgerKindError(MetadataError):
    """The ledger is a stream and was asked for as a ledger with one writer, or the other way round.

    Several writers write a stream one after another. Nothing was changed.
    """


# --- one bookie ------------------------------------------------------------------------------------------------------


class BookieUnavailableError(OctavoError):
    """No connection to the bookie, or the connection broke before it answered."""

    retryable = True
    may_have_happened_default = True


class BookieReadOnlyError(OctavoError):
    """The bookie accepts no ordinary adds now (its disks are nearly full, or it is configured so)."""

    retryable = True


class BookieInDoubtError(OctavoError):
    """The bookie may have lost data of this ledger, and refuses ordinary adds to it (rule B4).

    Another bookie must replace it.
    """


class BookieOverloadedError(OctavoError):
    """A limit of the bookie is reached: unanswered requests, connections, or new ledgers. Nothing was done."""

    retryable = True


class BookieStorageError(OctavoError):
    """The bookie could not read or write its disk. The answer is unknown, never a negative (rule R2)."""

    may_have_happened_default = True


class BookieShuttingDownError(OctavoError):
    """The bookie is stopping and takes no new requests."""

    retryable = True


class ProtocolError(OctavoError):
    """Bytes that break the protocol: malformed, oversize, or against its order. The connection is closed."""


class UnsupportedVersionError(ProtocolError):
    """The two sides share no protocol version."""


class WrongClusterError(ProtocolError):
    """The two sides belong to different clusters, or another bookie answers at this address."""


class UnsupportedOperationError(OctavoError):
    """The bookie does not know this operation. The connection stays open."""


class InternalError(OctavoError):
    """A broken internal invariant: a defect of Octavo. The answer is unknown."""

    may_have_happened_default = True


ERROR_CODES: dict[int, type[OctavoError]] = {
    1: ProtocolError,
    2: UnsupportedVersionError,
    3: WrongClusterError,
    4: UnsupportedOperationError,
    5: InvalidArgumentError,
    6: EntryTooLargeError,
    7: UnauthorizedError,
    8: LedgerFencedError,
    9: DuplicateEntryError,
    10: DigestMismatchError,
    11: NoSuchLedgerError,
    12: BookieReadOnlyError,
    13: BookieInDoubtError,
    14: BookieOverloadedError,
    15: BookieStorageError,
    16: BookieShuttingDownError,
    17: InternalError,
    18: TermOverError,
}
"""Wire code -> class, for every refusal a bookie can send. 0 means success and has no class."""

CODE_OK = 0

_CODE_BY_CLASS = {error_class: code for code, error_class in ERROR_CODES.items()}


def code_of(error: OctavoError) -> int:
    """The wire code of ``error``: its own class's, or that of the nearest base in the table; ``InternalError``
    otherwise."""
    for error_class in type(error).__mro__:
        code = _CODE_BY_CLASS.get(error_class)
        if code is not None:
            return code
    return _CODE_BY_CLASS[InternalError]


def error_from_wire(code: int, message: str, *, may_have_happened: bool) -> OctavoError:
    """The exception for a refusal that arrived. An unknown code (of a newer bookie) is an :class:`InternalError`
    that names it."""
    error_class = ERROR_CODES.get(code)
    if error_class is None:
        return InternalError(f"unknown error code {code}: {message}", may_have_happened=may_have_happened)
    return error_class(message, may_have_happened=may_have_happened)
