"""The answers to look-ups: from the storage's reader to a reply, within the limits of a frame."""

from octavo.bookie.storage.ledger_reader import LedgerReader
from octavo.protocol.entries import header_of
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import (
    EntryList,
    LacAnswer,
    ListEntries,
    Missing,
    MissingAnswer,
    Read,
    ReadAnswer,
    ReadLac,
)
from octavo.protocol.places import last_place

REPLY_ENTRY_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024
"""Entry bytes in one answer; the rest of a frame is room for what msgpack and the other fields need."""

RUNS_PER_ANSWER_MAX = 4096
"""Runs in one answer: what a decoder accepts. The client continues above the last id covered."""


LIST_BYTES_MAX = 128 * 1024
"""About the size of the largest list of runs: two ids of at most nine bytes for each."""


MISSING_BYTES_MAX = 2 * LIST_BYTES_MAX
"""The same for two lists."""


async def answer_read(reader: LedgerReader, request: Read, bytes_max: int) -> ReadAnswer:
    """The entries asked for; each id of the interval is found, absent or unknown (rule R2). At most ``bytes_max``,
    and no more than the request and a frame allow; but one at least, if there is one."""
    ledger_id = LedgerId(request.ledger_id)
    result = await reader.read(
        ledger_id,
        request.first,
        request.last,
        stripe=(request.modulus, request.residues),
        entries_max=request.entries_max,
        bytes_max=min(request.bytes_max, bytes_max, REPLY_ENTRY_BYTES_MAX),
    )
    lac = reader.last_add_confirmed(ledger_id).last_add_confirmed
    entries, unknown, last_covered = result.entries, tuple(result.unknown), result.last_covered
    if len(unknown) > RUNS_PER_ANSWER_MAX:
        unknown = unknown[:RUNS_PER_ANSWER_MAX]
        last_covered = unknown[-1][1]
        entries = [sealed for sealed in entries if header_of(sealed).entry_id <= last_covered]
    return ReadAnswer(last_covered, entries, unknown, lac)


async def answer_list_entries(reader: LedgerReader, request: ListEntries) -> EntryList:
    """Which of the ids asked for are held."""
    ledger_id = LedgerId(request.ledger_id)
    runs = await reader.list_entries(ledger_id, request.first, request.last, ranges_max=RUNS_PER_ANSWER_MAX)
    if len(runs) > RUNS_PER_ANSWER_MAX:
        runs = runs[:RUNS_PER_ANSWER_MAX]
        return EntryList(runs[-1][1], tuple(runs))
    return EntryList(request.last, tuple(runs))


async def answer_missing(reader: LedgerReader, request: Missing) -> MissingAnswer:
    """Which of the ids asked for are not held."""
    stripe = (request.modulus, request.residues)
    holdings = await reader.missing(LedgerId(request.ledger_id), request.first, request.last, stripe=stripe)
    last_covered = holdings.last_covered
    for runs in (holdings.missing, holdings.unknown):
        if len(runs) > RUNS_PER_ANSWER_MAX:
            last_covered = min(last_covered, runs[RUNS_PER_ANSWER_MAX - 1][1])
    missing, unknown = (
        tuple((low, min(high, last_covered)) for low, high in runs if low <= last_covered)
        for runs in (holdings.missing, holdings.unknown)
    )
    return MissingAnswer(last_covered, missing, unknown)


async def answer_read_lac(reader: LedgerReader, request: ReadLac, bytes_max: int) -> LacAnswer:
    """The evidence of the highest LAC known, and as many of the entries asked for up to it as fit into the same frame:
    about ``bytes_max``, perhaps none."""
    ledger_id = LedgerId(request.ledger_id)
    view = reader.last_add_confirmed(ledger_id, request.term)
    entry = await reader.last_add_confirmed_entry(ledger_id)
    entries: list[bytes] = []
    first = 0 if request.above is None else request.above + 1
    lac = view.last_add_confirmed
    if lac is not None and request.term:
        lac = min(lac, last_place(request.term))  # entries of a later term would say nothing about this one's end
    if request.entries_max and lac is not None and first <= lac:
        result = await reader.read(
            ledger_id,
            first,
            lac,
            stripe=(1, (0,)),
            entries_max=request.entries_max,
            bytes_max=min(request.bytes_max, bytes_max, REPLY_ENTRY_BYTES_MAX),
        )
        entries = _fitting(result.entries, REPLY_ENTRY_BYTES_MAX - len(entry or b""))
    return LacAnswer(view.known, view.fenced, view.in_doubt, view.explicit, entry, entries)


def _fitting(entries: list[bytes], bytes_max: int) -> list[bytes]:
    """The first of the entries, as many as fit into ``bytes_max``."""
    for count, sealed in enumerate(entries):
        bytes_max -= len(sealed)
        if bytes_max < 0:
            return entries[:count]
    return entries
