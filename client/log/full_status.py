"""Status of a log: that of its layout, with its leader and its cursors."""

from collections.abc import Callable

from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.names import lock_name
from octavo.client.log.layout import LogLayout
from octavo.client.log.seam.status import LogStatus
from octavo.client.log.seam.view import LogView
from octavo.metadata.store.store import MetadataStore


async def full_status(view: LogView, layout: LogLayout, store: MetadataStore, *, end: Callable[[], int]) -> LogStatus:
    """The status by the metadata that ``view`` has just read; ``end`` as the handle knows it."""
    holder = await store.read_lock(lock_name(view.log_id))
    cursors = await read_cursors(store, view.log_id)
    stored = await layout.status(cursors)
    return LogStatus(
        name=view.name,
        log_id=view.log_id,
        layout=stored.layout,
        first_position=view.first_position,
        end=end(),
        term=view.term,
        leader=None if holder is None else holder.holder,
        retention=stored.retention,
        drops_below=stored.drops_below,
        segments=stored.segments,
        paged_segments=stored.paged_segments,
        bytes=stored.bytes,
        cursors=cursors,
        idle_cursors=stored.idle_cursors,
        gaps=stored.gaps,
        quorums=stored.quorums,
        full_copies=stored.full_copies,
        sealed=view.is_sealed,
        clocks=stored.clocks,
    )
