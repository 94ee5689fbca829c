"""Replays the journal into cache and ledger states at a start."""

from collections.abc import Awaitable, Callable

import structlog
from octavo.bookie.index.runs import run_bytes
from octavo.bookie.journal.journal import Journal, RecordKind
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    decode_add,
    decode_fenced_term,
    decode_first_kept,
    decode_ledger_record,
    decode_relieved_below,
)
from octavo.bookie.storage.ledgers import LedgerTable, apply_explicit_lac
from octavo.protocol.entries import header_of
from octavo.protocol.errors import BookieStorageError, OctavoError

log = structlog.get_logger()


class JournalUnreadableError(BookieStorageError):
    """The disk failed to read a part of the journal; another attempt may get it."""


async def replay_journal(
    journal: Journal,
    cache: WriteCache,
    ledgers: LedgerTable,
    *,
    flush: Callable[[], Awaitable[None]],
    unreadable_is_lost: bool,
) -> None:
    """Put every record into the cache and the ledger states, which become dirty. ``flush`` is called when the cache is
    full. Damage is logged and is in ``journal.corruption``.

    What the disk fails to read is not lost yet, but would be when the journal is trimmed after this start. Only a
    bookie that is in doubt of every ledger anyway goes on without it (``unreadable_is_lost``).

    Raises :class:`JournalUnreadableError`, :class:`BookieStorageError` for a record that verifies but cannot be
    decoded, OSError.
    """
    records = 0
    async for kind, body, position in journal.replay():
        try:
            ledger = _replay_record(kind, body, cache, ledgers)
        except (ValueError, OctavoError) as error:
            raise BookieStorageError(
                f"the journal record before {position} verifies but cannot be decoded: {error}"
            ) from error
        if ledger is not None:
            ledgers.dirty[ledger.ledger_id] = ledger
        records += 1
        if cache.is_full:
            await flush()
    unreadable = [place for place in journal.corruption if place.unreadable]
    if unreadable and not unreadable_is_lost:
        more = f", and {len(unreadable) - 1} more places" if len(unreadable) > 1 else ""
        raise JournalUnreadableError(f"{unreadable[0].path}, offset {unreadable[0].offset}: cannot be read{more}")
    for place in journal.corruption:
        log.error("journal damaged", path=str(place.path), offset=place.offset, reason=place.what)
    log.info("journal replayed", records=records)


def _replay_record(kind: RecordKind, body: bytes, cache: WriteCache, ledgers: LedgerTable) -> LedgerState | None:
    if kind is RecordKind.ADD:
        return _replay_add(body, cache, ledgers)
    ledger_id, rest = decode_ledger_record(body)
    if kind is RecordKind.LEDGER_KEY and not rest:
        return None  # a barrier
    ledger = ledgers.get(ledger_id)
    if kind is RecordKind.TOMBSTONE:
        ledger.mark_deleted()
    elif kind is RecordKind.REVIVAL:
        ledger.revive()
    elif ledger.deleted:
        return None  # the deletion was checkpointed, and this is from before it
    elif kind is RecordKind.LEDGER_KEY:
        ledger.ledger_key = rest
    elif kind is RecordKind.FENCE:
        ledger.fence(0)
    elif kind is RecordKind.TERM_FENCE:
        ledger.fence(decode_fenced_term(rest))
    elif kind in {RecordKind.TRIM, RecordKind.RELIEF}:
        _replay_bound(kind, rest, ledger)
    elif kind is RecordKind.DROP:
        ledger.dropped = True
    elif kind is RecordKind.PRIVATE:
        ledger.private = True
    else:
        apply_explicit_lac(ledger, rest, header_of(rest).entry_id)
    return ledger


def _replay_bound(kind: RecordKind, rest: bytes, ledger: LedgerState) -> None:
    if kind is RecordKind.TRIM:
        ledger.trim(decode_first_kept(rest))
    else:
        ledger.relieve(decode_relieved_below(rest))


def _replay_add(body: bytes, cache: WriteCache, ledgers: LedgerTable) -> LedgerState | None:
    ledger_id, run, lac_plus_one = decode_add(body)
    ledger = ledgers.get(ledger_id)
    if ledger.deleted:
        return None
    ledger.bring_back()
    cache.put(ledger_id, run, run_bytes(run))
    ledger.highest_plus_one = max(ledger.highest_plus_one, run.last + 1)
    ledger.lac_plus_one = max(ledger.lac_plus_one, lac_plus_one)
    return ledger
