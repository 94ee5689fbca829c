"""Canaries in logs that are streams: terms, pages, truncation and what it frees."""

from dataclasses import replace
from typing import Any

from octavo.bookie.journal.journal import RecordKind
from octavo.bookie.storage import replay
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.writes import EntryWriter
from octavo.bookie.upkeep.truncated import Trimmed, TruncatedStreams
from octavo.client.log.documents.reading import read_stream_log
from octavo.client.log.documents.stream import StreamLogDocument
from octavo.client.log.documents.terms import log_term
from octavo.client.log.stream.housekeeping import StreamHousekeeper
from octavo.client.log.stream.lead import StreamLead
from octavo.client.log.stream.view import StreamView
from octavo.client.recover.stream_taker import StreamTaker
from octavo.metadata.stream.changes import PageOut
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import page_document
from octavo.metadata.updates import page_out
from octavo.protocol.ids import EntryId
from octavo.protocol.places import place
from simulation.canaries.client import ack_during_change
from simulation.engine.patches import Patch, patch

roll_does_not_wait = ack_during_change
"""Adds are acknowledged while a roll is being stored."""


def term_not_compared() -> list[Patch]:
    @patch(EntryWriter, "add_then")
    def add_then(original: Any, self: Any, ledger_id: Any, *arguments: Any, term: int = 0, **keywords: Any) -> None:
        ledger = self._ledgers.get(ledger_id)
        if 0 < term <= ledger.fenced_term:
            term = ledger.fenced_term + 1
        original(self, ledger_id, *arguments, term=term, **keywords)

    return [add_then]


def fence_ends_doubt() -> list[Patch]:
    @patch(EntryWriter, "fence")
    def fence(original: Any, self: Any, ledger_id: Any, ledger_key: Any, term: int = 0) -> Any:
        durable = original(self, ledger_id, ledger_key, term)
        doubt = self._ledgers.doubt
        if term and doubt is not None and ledger_id < doubt.stop:
            self._ledgers.doubt = doubt.with_term_floors({ledger_id: term})
        return durable

    return [fence]


def time_falls() -> list[Patch]:
    @patch(StreamTaker, "take_over")
    async def take_over(original: Any, self: Any, *arguments: Any, **keywords: Any) -> Any:
        return await original(self, *arguments, **keywords | {"not_before_ms": 0})

    return [take_over]


def old_leader_heals() -> list[Patch]:
    @patch(StreamLead, "_read_own")
    async def read_own(_original: Any, self: Any) -> Any:
        return await self._read()

    return [read_own]


def outcome_too_early() -> list[Patch]:
    @patch(StreamView, "end_of_term")
    async def end_of_term(original: Any, self: Any, term: int) -> int | None:
        found: int | None = await original(self, term)
        last = self.root.value.last_fragment
        return last.first_position if found is None and term == log_term(last.first_term) else found

    return [end_of_term]


def pages_go_early() -> list[Patch]:
    @patch(page_out, "_make")
    async def make(original: Any, store: Any, ledger_id: Any, change: PageOut, *arguments: Any) -> Any:
        if change.replaced is not None:
            await store.delete_document(page_document(ledger_id, change.replaced))
        return await original(store, ledger_id, change, *arguments)

    return [make]


def pages_change() -> list[Patch]:
    @patch(page_out, "store_page")
    async def store_page(original: Any, store: Any, ledger_id: Any, page: Any) -> None:
        await original(store, ledger_id, page)
        name = page_document(ledger_id, page.reference)
        found = await store.read_document(name)
        if found is not None:
            await store.compare_and_set_document(name, found.value + b" ", found.version)

    return [store_page]


def truncates_last_fragment() -> list[Patch]:
    @patch(StreamMetadata, "truncated")
    def truncated(original: Any, self: Any, before: int, before_place: Any = None) -> Any:
        last = self.last_fragment
        if not self.has_end and before > last.first_position:
            place_of = EntryId(last.first_entry_id + before - last.first_position)
            moved = replace(last, first_entry_id=place_of, first_position=before)
            return replace(self, start=before, fragments=(moved,), pages=(), start_entry_id=None)
        return original(self, before, before_place)

    return [truncated]


def truncates_before_readers_know() -> list[Patch]:
    @patch(StreamHousekeeper, "truncate")
    async def truncate(original: Any, self: Any, before: int, *arguments: Any, **keywords: Any) -> Any:
        document = (await read_stream_log(self._store, self._name, log_id=self._log_id)).value
        await self.follow_document(replace(document, first_position=before))
        return await original(self, before, *arguments, **keywords)

    return [truncate]


def nothing_is_trimmed() -> list[Patch]:
    @patch(TruncatedStreams, "round")
    async def round_of_none(_original: Any, _self: Any) -> Trimmed:
        return Trimmed(0, 0, 0)

    return [round_of_none]


def trims_are_not_durable() -> list[Patch]:
    @patch(replay, "_replay_record")
    def replay_record(original: Any, kind: Any, *arguments: Any) -> Any:
        return None if kind is RecordKind.TRIM else original(kind, *arguments)

    @patch(LedgerState, "encode")
    def encode(original: Any, self: Any) -> bytes:
        first_kept, self.first_kept = self.first_kept, 0
        encoded: bytes = original(self)
        self.first_kept = first_kept
        return encoded

    return [replay_record, encode]


def trims_what_is_kept() -> list[Patch]:
    @patch(TruncatedStreams, "_start_of")
    async def start_of(original: Any, self: Any, ledger_id: Any) -> int:
        start = int(await original(self, ledger_id))
        return start + 1 if start > place(1, 0) else start

    return [start_of]


def retention_ignores_cursors() -> list[Patch]:
    @patch(StreamHousekeeper, "_retention_cut")
    async def retention_cut(original: Any, self: Any, document: Any, root: Any, _cursors: Any, ages: Any) -> int:
        free = replace(document, retention=replace(document.retention, cursors=False))
        return int(await original(self, free, root, {}, ages))

    @patch(StreamHousekeeper, "_agreed")
    async def agreed(_original: Any, _self: Any, _document: Any, _root: Any, cut: int) -> int:
        return cut

    return [retention_cut, agreed]


def deletion_keeps_stream() -> list[Patch]:
    @patch(StreamHousekeeper, "_delete")
    async def delete(_original: Any, _self: Any, _ledger_id: Any) -> bool:
        return True

    return [delete]


def abandoned_streams_are_forgotten() -> list[Patch]:
    @patch(StreamLogDocument, "in_place_of")
    def in_place_of(_original: Any, self: Any, _other: Any) -> Any:
        return self

    return [in_place_of]
