"""Shows any file of a bookie as lines of text. Changes nothing; damage is shown in its place."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.filesystem import FileSystem, read_file
from octavo.bookie.entrylog.format import HEADER_BYTES, TOTALS_MAGIC, Total, decode_totals, is_header
from octavo.bookie.entrylog.format import MAGIC as LOG_MAGIC
from octavo.bookie.entrylog.walk import DamagedStretch, DoubtfulEntry, IntactEntry, walk_log
from octavo.bookie.identity.cookie import decode_cookie
from octavo.bookie.index.format import MAGIC as INDEX_MAGIC
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.part import Part
from octavo.bookie.index.runs import Run, ranges_of, run_bytes
from octavo.bookie.journal.format import (
    DATA_START,
    KIND_SEGMENT_END,
    JournalCorruption,
    Record,
    RecordKind,
    decode_header,
    segment_number,
)
from octavo.bookie.journal.replay import DeliverRecord, JournalScan, ReadBytes, ReportCorruption
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    decode_add,
    decode_fenced_term,
    decode_first_kept,
    decode_ledger_record,
    decode_relieved_below,
)
from octavo.bookie.storage.manifest import EVERY_LEDGER, decode_manifest
from octavo.bookie.storage.manifest import MAGIC as MANIFEST_MAGIC
from octavo.protocol.entries import header_of
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.held_entries import Doubt

_RANGES_SHOWN = 8


class LedgerInLog(NamedTuple):
    """The amount that an entry log holds of one ledger. Entries that compaction has copied elsewhere count, too."""

    ledger_id: int
    entries: int
    first_entry_id: int
    """The lowest id."""
    last_entry_id: int
    """The highest id; there may be gaps."""
    bytes: int
    """Sealed bytes."""


async def ledgers_in_log(filesystem: FileSystem, path: Path) -> list[LedgerInLog]:
    """The ledgers in an entry log, in order of ids. Raises :class:`InvalidArgumentError` for another file, OSError."""
    found: dict[int, LedgerInLog] = {}
    file = await filesystem.open(path)
    try:
        if await file.read(0, len(LOG_MAGIC)) != LOG_MAGIC:
            raise InvalidArgumentError(f"{path} is not an entry log; only entry logs hold entries of many ledgers")
        async for entry in walk_log(file.read, stop=await file.size()):
            if not isinstance(entry, IntactEntry):
                continue
            header, size = header_of(entry.sealed), len(entry.sealed)
            entry_id = header.entry_id
            before = found.get(header.ledger_id, LedgerInLog(header.ledger_id, 0, entry_id, entry_id, 0))
            found[header.ledger_id] = LedgerInLog(
                header.ledger_id,
                before.entries + 1,
                min(before.first_entry_id, entry_id),
                max(before.last_entry_id, entry_id),
                before.bytes + size,
            )
    finally:
        await file.close()
    return [found[ledger_id] for ledger_id in sorted(found)]


async def inspect_file(filesystem: FileSystem, path: Path) -> AsyncIterator[str]:
    """The file, line by line. Raises :class:`InvalidArgumentError` for a file that is not a bookie's, OSError."""
    if segment_number(path.name) is not None:
        async for line in _journal_segment(filesystem, path):
            yield line
        return
    file = await filesystem.open(path)
    try:
        magic = await file.read(0, len(LOG_MAGIC))
    finally:
        await file.close()
    streams = {LOG_MAGIC: _entry_log, INDEX_MAGIC: _index_part}
    if path.suffix == ".log":
        magic = LOG_MAGIC  # a damaged header hides no entry
    if magic in streams:
        async for line in streams[magic](filesystem, path):
            yield line
        return
    for line in _small_file(path, magic, await read_file(filesystem, path)):
        yield line


def _small_file(path: Path, magic: bytes, content: bytes) -> list[str]:
    if magic == MANIFEST_MAGIC:
        return _manifest(content)
    if magic == TOTALS_MAGIC:
        totals = decode_totals(int(path.stem, 16), content)
        if totals is None:
            return ["damaged totals"]
        return ["totals of an entry log", *(_total(ledger_id, total) for ledger_id, total in totals.items())]
    if magic.startswith(b'{"format'):
        cookie = decode_cookie(content)
        return ["damaged cookie" if cookie is None else str(cookie)]
    raise InvalidArgumentError(
        f"{path} is not a bookie's file that can be shown: name a journal segment, an entry log, its totals, an "
        "index part, a manifest or a cookie"
    )


def _total(ledger_id: int, total: Total) -> str:
    highest = "" if total.highest is None else f", highest entry {total.highest}"
    return f"ledger {ledger_id}: {total.bytes} bytes{highest}"


def _manifest(content: bytes) -> list[str]:
    try:
        manifest = decode_manifest(content)
    except ValueError as error:
        return [f"damaged manifest: {error}"]
    mark = "none" if manifest.mark is None else f"segment {manifest.mark[0]}, offset {manifest.mark[1]}"
    lines = [
        "manifest", f"mark: {mark}", f"next part: {manifest.next_part_id}", f"next log: {manifest.next_log_id}",
        f"parts, oldest first: {' '.join(f'{part_id}' for part_id in manifest.part_ids) or 'none'}",
    ]  # fmt: skip
    lines += [f"log {log_id}: {size} bytes in use" for log_id, size in manifest.logs]
    return lines + _doubt(manifest.doubt)


def _doubt(doubt: Doubt | None) -> list[str]:
    if doubt is None:
        return []
    if doubt.stop == EVERY_LEDGER:
        return ["in doubt: every ledger that exists at the next start"]
    lines = [f"in doubt: ledgers below {doubt.stop}"]
    if doubt.sure_below:
        lines.append(f"sure again: ledgers below {doubt.sure_below}, but for {len(doubt.exceptions)} of them")
    lines += [f"unsure: ledger {ledger_id} from entry {first} on" for ledger_id, first in doubt.exceptions.items()]
    lines += [f"in doubt up to term {term}: stream {ledger_id}" for ledger_id, term in doubt.term_floors.items()]
    return lines


async def _entry_log(filesystem: FileSystem, path: Path) -> AsyncIterator[str]:
    file = await filesystem.open(path)
    try:
        size = await file.size()
        header = await file.read(0, HEADER_BYTES)
        damaged = "" if is_header(_log_id(path), header) else ", with a damaged header"
        yield f"entry log, {size} bytes{damaged}"
        async for found in walk_log(file.read, stop=size):
            yield _log_line(found)
    finally:
        await file.close()


def _log_id(path: Path) -> int:
    """The number in a log's name. Raises :class:`InvalidArgumentError`."""
    try:
        return int(path.stem, 16)
    except ValueError:
        raise InvalidArgumentError(f"{path}: an entry log is named by its number in 16 hexadecimal digits") from None


def _log_line(found: IntactEntry | DoubtfulEntry | DamagedStretch) -> str:
    if isinstance(found, DamagedStretch):
        return f"{found.offset}: {found.size} bytes without an intact entry"
    header = header_of(found.sealed)
    lac = "none" if header.last_add_confirmed is None else header.last_add_confirmed
    return (
        f"{found.offset}: ledger {header.ledger_id} entry {header.entry_id}, {len(found.sealed)} bytes, "
        f"last add confirmed {lac}, cumulative length {header.length}, sealed at {header.sealed_at_ms} ms"
        + (" (after damage: maybe a part of a damaged entry's payload)" if isinstance(found, DoubtfulEntry) else "")
    )


async def _index_part(filesystem: FileSystem, path: Path) -> AsyncIterator[str]:
    part_id = int(path.name.partition(".")[0], 16)
    try:
        part = await Part.open(filesystem, path, part_id)
    except IndexDamagedError as error:
        yield f"damaged index part, offset {error.offset}: {error.what}"
        return
    try:
        yield f"index part {part_id}, {part.size} bytes"
        for block in part.run_blocks:
            try:
                for ledger_id, run in await part.runs_in(block):
                    place = f"log {run.place!r} offset {run.offset}"
                    yield f"ledger {ledger_id}: {_ids(run)}, {run_bytes(run)} bytes, {place}"
            except IndexDamagedError as error:
                yield f"offset {error.offset}: {error.what}"
        for block in part.state_blocks:
            try:
                for ledger_id, encoded in await part.states_in(block):
                    yield f"ledger {ledger_id}: {_state(LedgerState.decode(ledger_id, encoded))}"
            except IndexDamagedError as error:
                yield f"offset {error.offset}: {error.what}"
    finally:
        await part.retire()


def _ids(run: Run) -> str:
    ranges: list[str] = []
    for first, last in ranges_of([run]):
        if len(ranges) == _RANGES_SHOWN:
            return f"{len(run.ids)} entries from {run.first} to {run.last}"
        ranges.append(str(first) if first == last else f"{first}-{last}")
    return f"entries {', '.join(ranges)}"


def _state(state: LedgerState) -> str:
    facts = [
        name
        for name, true in (
            (f"fenced up to term {state.fenced_term}" if state.fenced_term else "fenced", state.fenced),
            ("deleted", state.deleted),
            ("in doubt", state.in_doubt),
            ("dropped", state.dropped),
            ("private", state.private),
            ("known to be public", state.public),
            (f"trimmed below entry {state.first_kept}", state.first_kept > 0),
            (f"may have given up entries below {state.relieved_below}", state.relieved_below > 0),
        )
        if true
    ]
    facts.append("has a key" if state.ledger_key is not None else "no key")
    facts.append(f"highest entry {state.highest if state.highest is not None else 'none'}")
    facts.append(f"last add confirmed {'none' if state.last_add_confirmed is None else state.last_add_confirmed}")
    return ", ".join(facts)


async def _journal_segment(filesystem: FileSystem, path: Path) -> AsyncIterator[str]:
    number = segment_number(path.name)
    assert number is not None
    file = await filesystem.open(path)
    try:
        header = decode_header(await file.read(0, DATA_START), number)
        if header is None:
            yield f"journal segment {number} with a damaged header"
            return
        cut = "none" if header.cut is None else f"segment {header.cut.segment}, offset {header.cut.offset}"
        yield (
            f"journal segment {number} of incarnation {header.incarnation}, {header.segment_bytes} bytes, seed "
            f"{header.seed:08x}; the log before its incarnation ends at: {cut}"
        )
        scan = JournalScan(path.parent, {number: await file.size()}, None).run()
        answer: bytes | None = None
        while True:
            try:
                effect = scan.send(answer)
            except StopIteration as finished:
                end = finished.value
                yield f"the log ends at {end.position}{', in a torn tail' if end.torn else ''}"
                return
            answer = None
            if isinstance(effect, ReadBytes):
                answer = await file.read(effect.offset, effect.size)
            elif isinstance(effect, ReportCorruption):
                yield _corruption(effect.corruption)
            elif isinstance(effect, DeliverRecord):
                yield _record(effect.record)
    finally:
        await file.close()


def _corruption(corruption: JournalCorruption) -> str:
    return f"{corruption.offset}: damaged: {corruption.what}"


def _record(record: Record) -> str:
    place = f"{record.offset}:"
    if record.kind == KIND_SEGMENT_END:
        return f"{place} end of the segment"
    try:
        kind = RecordKind(record.kind)
    except ValueError:
        return f"{place} a record of unknown kind {record.kind}, {len(record.body)} bytes"
    if kind is RecordKind.ADD:
        ledger_id, run, _ = decode_add(record.body)
        return f"{place} ADD ledger {ledger_id}, {_ids(run)}, {run_bytes(run)} bytes"
    ledger_id, rest = decode_ledger_record(record.body)
    if kind is RecordKind.LEDGER_KEY and not rest:
        return f"{place} barrier"
    name, detail = kind.name, ""
    if kind is RecordKind.TERM_FENCE:
        name, detail = "FENCE", f" up to term {decode_fenced_term(rest)}"
    elif kind is RecordKind.TRIM:
        detail = f" below entry {decode_first_kept(rest)}"
    elif kind is RecordKind.RELIEF:
        detail = f" below entry {decode_relieved_below(rest)}"
    return f"{place} {name} ledger {ledger_id}{detail}"
