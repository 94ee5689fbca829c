"""Helpers of a writer for single adds: check payloads, queue them, cut them into frames, fail their futures."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from octavo.protocol.errors import (
    EntryTooLargeError,
    InternalError,
    InvalidArgumentError,
    LedgerFencedError,
    OctavoError,
    TasksCancelledError,
)
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.limits import ADD_ENTRIES_TARGET, ENTRY_PAYLOAD_BYTES_MAX, FRAME_PAYLOAD_BYTES_TARGET

type Payload = bytes | bytearray | memoryview


class Queued:
    """Payloads that wait for room; those before ``at`` have been let in. ``future`` is that of the last one."""

    __slots__ = ("at", "future", "payloads")

    def __init__(self, payloads: Sequence[bytes], future: asyncio.Future[EntryId]) -> None:
        self.payloads = payloads
        self.future = future
        self.at = 0


def checked_payload(payload: Payload) -> bytes:
    """The payload as bytes. Raises :class:`InvalidArgumentError`, :class:`EntryTooLargeError`."""
    if type(payload) is not bytes:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"a payload is bytes, not {type(payload).__name__}")
        payload = bytes(payload)
    if len(payload) > ENTRY_PAYLOAD_BYTES_MAX:
        raise EntryTooLargeError(f"a payload of {len(payload)} bytes is over the limit of {ENTRY_PAYLOAD_BYTES_MAX}")
    return payload


def checked_payloads(payloads: Iterable[Payload]) -> list[bytes]:
    """All payloads as bytes. Raises as :func:`checked_payload`, and :class:`InvalidArgumentError` for no iterable."""
    if not isinstance(payloads, Iterable):
        raise InvalidArgumentError(f"payloads are an iterable of bytes, not {payloads!r}")
    return [checked_payload(payload) for payload in payloads]


def frames_of(payloads: Sequence[bytes]) -> list[tuple[int, int]]:
    """Cut payloads into frames, as ``(start, stop)``: each within both limits, or a single larger entry."""
    if 0 < len(payloads) <= ADD_ENTRIES_TARGET and sum(map(len, payloads)) <= FRAME_PAYLOAD_BYTES_TARGET:
        return [(0, len(payloads))]
    ends = list(accumulate(map(len, payloads)))
    frames = []
    start = below = 0
    while start < len(payloads):
        stop = bisect_right(ends, below + FRAME_PAYLOAD_BYTES_TARGET, start, len(ends))
        stop = max(min(stop, start + ADD_ENTRIES_TARGET), start + 1)
        frames.append((start, stop))
        start, below = stop, ends[stop - 1]
    return frames


def copy_error(error: OctavoError, *, may_have_happened: bool | None = None) -> OctavoError:
    """A copy of a writer's failure: an exception that is raised twice would collect both tracebacks. Not retryable,
    whatever its class: the writer never recovers (rule W7)."""
    doubt = error.may_have_happened if may_have_happened is None else may_have_happened
    fresh = type(error)(error.message, may_have_happened=doubt, retryable=False)
    fresh.__cause__ = error
    return fresh


def reject[T](future: asyncio.Future[T], error: OctavoError, *, may_have_happened: bool) -> None:
    """Fail a future, unless it has been cancelled, with a copy of the error."""
    if not future.done():
        future.set_exception(copy_error(error, may_have_happened=may_have_happened))
        # Closing the writer reports the failure. The loop need not log it if the application dropped the future.
        future.exception()


def fenced(ledger_id: LedgerId, evidence: str) -> LedgerFencedError:
    """The error of a writer whose ledger another client has opened for recovery. ``evidence``: how it is known."""
    return LedgerFencedError(
        f"ledger {ledger_id} is fenced: a client has opened it for recovery, which ends this writer ({evidence}). "
        "Go on in a new ledger. A client that only reads opens the ledger with recover=False"
    )


def internal_error(ledger_id: LedgerId, error: BaseException) -> OctavoError:
    """The error that callers get for a defect found while the ledger was being written, or for tasks that the program
    has cancelled (rule H2)."""
    if isinstance(error, TasksCancelledError):
        return TasksCancelledError(f"ledger {ledger_id}: {error.message}")
    failure = InternalError(f"ledger {ledger_id}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
