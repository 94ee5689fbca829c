"""The compare-and-set loop by which clients change what the store holds (rules M1, W5, W9, F1 and F6)."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from octavo.metadata.changes import MetadataChange, Refuse, Settled, Write
from octavo.metadata.model import LedgerMetadata
from octavo.metadata.store import MetadataStore, Version, Versioned
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import LedgerId

if TYPE_CHECKING:
    from octavo.metadata.stream_changes import StreamChange, WriteStream
    from octavo.metadata.stream_model import StreamMetadata

ATTEMPTS_MAX: Final = 100
"""Attempts of one update. Every lost attempt means that another client made progress, and few clients change the same
ledger or log: that many conflicts in a row mean that something writes it in a loop."""


async def settle_change[T, W](
    known: Versioned[T] | None,
    *,
    read: Callable[[], Awaitable[Versioned[T]]],
    decide: Callable[[T], W | Settled | Refuse],
    write: Callable[[W, Version], Awaitable[Versioned[T]]],
    what: str,
) -> Versioned[T]:
    """Decide on what is stored and compare-and-set, until a decision is carried out; returns what is then stored.

    ``known`` is what the caller believes to be stored; a write may be decided on it, a refusal or a settled change
    only on what ``read`` returns. ``write`` raises :class:`MetadataConflictError` when another version is stored.
    ``what`` names the thing in errors.

    Raises the error of a refusal, what ``read`` and ``write`` raise, and :class:`MetadataConflictError` after
    :data:`ATTEMPTS_MAX` lost rounds.
    """
    for _ in range(ATTEMPTS_MAX):
        current = known if known is not None else await read()
        decision = decide(current.value)
        if isinstance(decision, Settled | Refuse) and known is not None:
            known = None  # decide on what is stored, not on what the caller believes
            continue
        if isinstance(decision, Refuse):
            raise decision.error
        if isinstance(decision, Settled):
            return current
        known = None
        with contextlib.suppress(MetadataConflictError):
            return await write(decision, current.version)
    raise MetadataConflictError(
        f"{what} changed {ATTEMPTS_MAX} times while this client tried to change it",
        may_have_happened=False,
    )


async def update_ledger(
    store: MetadataStore,
    ledger_id: LedgerId,
    change: MetadataChange,
    *,
    writer_token: str,
    known: Versioned[LedgerMetadata] | None = None,
) -> Versioned[LedgerMetadata]:
    """Make ``change``, or find that it has been made; returns what is then stored.

    ``known`` is what the caller believes to be stored. It saves a read and may be out of date. ``writer_token`` is
    written with the change.

    Raises the error with which the change refuses, :class:`NoSuchLedgerError` when the ledger has been deleted, and
    :class:`MetadataUnavailableError` when the store did not answer. In the last case the change may have been made;
    calling again settles it.
    """

    async def write(decision: Write, expected: Version) -> Versioned[LedgerMetadata]:
        wanted = decision.metadata.written_by(writer_token)
        return Versioned(wanted, await store.compare_and_set_ledger(wanted, expected))

    return await settle_change(
        known,
        read=lambda: store.read_ledger(ledger_id),
        decide=change.decide,
        write=write,
        what=f"ledger {ledger_id}",
    )


async def update_stream(
    store: MetadataStore,
    ledger_id: LedgerId,
    change: "StreamChange",
    *,
    writer_token: str,
    known: "Versioned[StreamMetadata] | None" = None,
) -> "Versioned[StreamMetadata]":
    """As :func:`update_ledger`, for a stream (rules T1, T2, T5 and T8 to T11)."""

    async def write(decision: "WriteStream", expected: Version) -> "Versioned[StreamMetadata]":
        wanted = decision.metadata.written_by(writer_token)
        return Versioned(wanted, await store.compare_and_set_stream(wanted, expected))

    return await settle_change(
        known,
        read=lambda: store.read_stream(ledger_id),
        decide=change.decide,
        write=write,
        what=f"stream {ledger_id}",
    )
