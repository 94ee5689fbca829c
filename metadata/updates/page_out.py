"""Makes pages of streams on a metadata store, and reads them. What is in them, and when they are made, is decided by
:mod:`octavo.metadata.stream.pages`; :mod:`octavo.metadata.updates.paging` has what else there is to do with pages."""

from typing import TYPE_CHECKING, Final

from octavo.metadata.ledger.decisions import Write
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import (
    Page,
    PageMissingError,
    check_page,
    decode_page,
    page_document,
    paging_is_due,
    plan_paging,
)
from octavo.metadata.updates.compare_and_set import ATTEMPTS_MAX, settle_change
from octavo.protocol.errors import MetadataConflictError, MetadataError
from octavo.protocol.ids import LedgerId

if TYPE_CHECKING:
    from octavo.metadata.stream.changes import PageOut

_MISSED_MAX: Final = 10
"""How often a page may be missing, and the metadata name another one instead, before that is damage. Each time means
that another client has paged out or repaired in the milliseconds between two reads."""


async def read_page(store: MetadataStore, stream: StreamMetadata, page: PageReference) -> StreamMetadata:
    """A page as a part of its stream (:func:`octavo.metadata.stream.pages.page_part`), the whole of it.

    Raises :class:`PageMissingError` if the metadata are out of date, :class:`MetadataError` for a damaged page, and
    :class:`MetadataUnavailableError`.
    """
    return decode_page(stream, page, await read_page_value(store, stream, page))


async def read_page_value(store: MetadataStore, stream: StreamMetadata, page: PageReference) -> bytes:
    """The value of a page's document. Raises :class:`PageMissingError`, :class:`MetadataUnavailableError`."""
    found = await store.read_document(page_document(stream.ledger_id, page))
    if found is None:
        raise PageMissingError(
            f"stream {stream.ledger_id}: page {page.name} does not exist; its metadata are out of date",
            may_have_happened=False,
        )
    return found.value


async def read_again(
    store: MetadataStore, stream: StreamMetadata, error: PageMissingError, missed: int
) -> StreamMetadata:
    """The metadata after a page was missing for the ``missed``-th time. Raises :class:`MetadataError` if they are still
    the same, and a page has really been lost; :class:`NoSuchLedgerError`."""
    again = (await store.read_stream(stream.ledger_id)).value
    if again.pages == stream.pages or missed > _MISSED_MAX:
        raise MetadataError(f"{error.message}, but they are the latest: the page is lost") from error
    return again


async def store_page(store: MetadataStore, ledger_id: LedgerId, page: Page) -> None:
    """Make the document of a page. It is nothing new if another client has made the same page for the same revision.
    Raises :class:`MetadataError` if another document has its name, :class:`MetadataUnavailableError`."""
    name = page_document(ledger_id, page.reference)
    try:
        await store.create_document(name, page.value)
    except MetadataConflictError as error:
        found = await store.read_document(name)
        if found is None:
            raise  # just deleted: other pages have been named since
        if found.value != page.value:
            raise MetadataError(f"{name}: another document has the name of a page") from error


async def page_out(
    store: MetadataStore,
    ledger_id: LedgerId,
    *,
    writer_token: str,
    known: Versioned[StreamMetadata] | None = None,
) -> Versioned[StreamMetadata]:
    """Move the oldest fragments of the tail into a page, once, and return what is then stored (rules U2 and U3). Where
    another client does so first, this one does nothing.

    Raises as :func:`octavo.metadata.update_stream`, and :class:`MetadataError` for a damaged page.
    """
    before = known
    from octavo.metadata.stream.changes import PageOut  # noqa: PLC0415 - readers make no changes

    for missed in range(ATTEMPTS_MAX):
        current = before or await store.read_stream(ledger_id)
        before = None
        stream = current.value
        try:
            last = await _last_page(store, stream)
        except PageMissingError as error:
            await read_again(store, stream, error, missed)
            continue
        plan = plan_paging(stream, last)
        if plan is None:
            return current
        try:
            await store_page(store, ledger_id, plan.page)
            change = PageOut(plan.moved, plan.replaced, plan.page.reference)
            after = await _make(store, ledger_id, change, writer_token, current)
        except MetadataConflictError:
            # The page that was made is of a revision that is over, or will be: it is swept (rule U2).
            current = await store.read_stream(ledger_id)
            if current.value.revision > stream.revision and not paging_is_due(current.value):
                return current
            before = current
            continue
        if plan.replaced is not None:
            await store.delete_document(page_document(ledger_id, plan.replaced))
        return after
    raise MetadataConflictError(
        f"stream {ledger_id} changed {ATTEMPTS_MAX} times while this client tried to page it out",
        may_have_happened=False,
    )


async def _last_page(store: MetadataStore, stream: StreamMetadata) -> bytes | None:
    """The value of the last page, which a few fragments more are put behind without a look at it."""
    if not stream.pages:
        return None
    value = await read_page_value(store, stream, stream.pages[-1])
    check_page(stream, stream.pages[-1], value)
    return value


async def _make(
    store: MetadataStore, ledger_id: LedgerId, change: "PageOut", writer_token: str, known: Versioned[StreamMetadata]
) -> Versioned[StreamMetadata]:
    async def write(decision: Write[StreamMetadata], expected: Version) -> Versioned[StreamMetadata]:
        wanted = decision.metadata.written_by(writer_token)
        return Versioned(wanted, await store.compare_and_set_stream(wanted, expected))

    return await settle_change(
        known,
        read=lambda: store.read_stream(ledger_id),
        decide=change.decide,
        write=write,
        what=f"stream {ledger_id}",
    )
