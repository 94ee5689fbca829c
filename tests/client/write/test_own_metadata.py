"""What a writer believes of its ledger's metadata: its own changes, and what its watch reports, late or not."""

from collections.abc import Callable
from typing import Any, Self

from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.own_metadata import OwnLedger
from octavo.metadata import LedgerMetadata, MetadataStore, Versioned
from octavo.metadata.ledger.debts import NO_DEBT
from octavo.protocol.errors import ClientClosedError, OctavoError, TasksCancelledError
from octavo.protocol.ids import EntryId
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger

type Reported = Versioned[LedgerMetadata] | None


class LateWatch:
    """A store's watch that reports what a test gives it."""

    def __init__(self) -> None:
        self.report: Callable[[Reported], object]
        self.end: Callable[[OctavoError], object]
        self.is_stopped = False

    def begin(self, on_value: Callable[[Reported], object], on_end: Callable[[OctavoError], object]) -> Self:
        self.report, self.end = on_value, on_end
        return self

    def stop(self) -> None:
        self.is_stopped = True


class StoreWithLateWatch:
    """A store; only its watches are late."""

    def __init__(self, store: MetadataStore, watch: LateWatch) -> None:
        self._store = store
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch_ledger(self, _ledger_id: int) -> LateWatch:
        return self._watch


async def test_metadata_from_before_the_writers_own_change_are_not_adopted(store: MetadataStore) -> None:
    """Rule W5: a late report must not take back the fragment that the writer has made."""
    ledger_id = await store.allocate_ledger_id()
    before = Versioned(open_ledger(ledger_id), await store.create_ledger(open_ledger(ledger_id)))
    watch = LateWatch()
    late: Any = StoreWithLateWatch(store, watch)
    own = OwnLedger(before, store=late, retry_seconds=0.01)
    taken: list[OctavoError] = []
    own.begin_watching(taken.append)
    assert await own.change_ensemble(Commit(EntryId(5), bookie_ids(*"abd"), 50), lambda: True)
    watch.report(before)
    assert own.stored.fragments == (fragment(0, "abc"), fragment(5, "abd", 50))
    assert taken == [], "the ledger is still the writer's"
    await own.close(EntryId(7), 70, NO_DEBT)
    closed = (await store.read_ledger(ledger_id)).value
    assert (closed.last_entry_id, closed.fragments) == (7, own.stored.fragments)
    own.stop_watching()
    assert watch.is_stopped


async def test_writer_learns_of_a_watch_that_the_program_has_cancelled(store: MetadataStore) -> None:
    """Rule H2; any other failure is met by the next change of the metadata."""
    ledger_id = await store.allocate_ledger_id()
    ledger = Versioned(open_ledger(ledger_id), await store.create_ledger(open_ledger(ledger_id)))
    watch = LateWatch()
    late: Any = StoreWithLateWatch(store, watch)
    own = OwnLedger(ledger, store=late, retry_seconds=0.01)
    taken: list[OctavoError] = []
    own.begin_watching(taken.append)
    watch.end(ClientClosedError("for a test"))
    assert taken == []
    watch.end(TasksCancelledError("for a test"))
    assert [type(error) for error in taken] == [TasksCancelledError]
