"""Helpers of a writer for single adds: check payloads, fail their futures, name failures."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from octavo.protocol.errors import (
    EntryTooLargeError,
    InternalError,
    InvalidArgumentError,
    OctavoError,
    TasksCancelledError,
)
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

type Payload = bytes | bytearray | memoryview


class _EmptyDeque(deque[Any]):
    """A deque to which nothing can be appended."""

    def append(self, _item: object) -> NoReturn:
        raise AssertionError("a deque is made before anything is appended")


EMPTY_DEQUE: Final[deque[Any]] = _EmptyDeque()
"""Stands in for the deques of a writer that has nothing queued. A client may have thousands of ledgers open that are
seldom written; deques of their own would be much of their memory and of the garbage collector's work."""


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


def internal_error(ledger_id: LedgerId, error: BaseException) -> OctavoError:
    """The error that callers get for a defect found while the ledger was being written, or for tasks that the program
    has cancelled (rule H2)."""
    if isinstance(error, TasksCancelledError):
        return TasksCancelledError(f"ledger {ledger_id}: {error.message}")
    failure = InternalError(f"ledger {ledger_id}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
