"""Joins retention with the cursors that it looks at (rule P20).

Retention decides by cursors, and then truncates another document. A cursor that is made or touched in between would be
passed. So before it truncates, it writes its decision where the cursors stand, into the very version by which it has
decided: the *floor*. Whatever stores a cursor changes that document, too. So either the cursor comes first: then the
floor is not written, and retention decides anew. Or the floor comes first: then a cursor that is made sees it, and is
made there.
"""

from collections.abc import Awaitable, Callable, Mapping

from octavo.client.log.cursors.reading import read_cursors_document
from octavo.client.log.documents.cursors import CursorState, encode_cursors
from octavo.client.log.documents.names import cursors_document
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.updates.compare_and_set import ATTEMPTS_MAX
from octavo.protocol.errors import MetadataConflictError


async def agree_on_cut(
    store: MetadataStore,
    log_id: str,
    beginning: int,
    cut_of: Callable[[Mapping[str, CursorState]], Awaitable[int]],
) -> int:
    """The position up to which entries may go now, as far as cursors are concerned. ``cut_of`` gives it for these
    cursors; ``beginning`` is where the log begins: nothing goes.

    A conflict means that a consumer has stored something, which consumers do about once a second: the next attempt
    follows at once. Raises :class:`MetadataConflictError` when the document is being changed in a loop; the next round
    tries again.
    """
    for _ in range(ATTEMPTS_MAX):
        known = await read_cursors_document(store, log_id)
        if known is None:
            return beginning  # no consumer has begun, or the log has been deleted
        cut = await cut_of(known.value.cursors)
        if cut <= beginning:
            return beginning
        value = encode_cursors(known.value.with_floor(cut))
        try:
            # Also if the floor was as high before: a cursor may have been touched since the look.
            await store.compare_and_set_document(cursors_document(log_id), value, known.version)
        except MetadataConflictError:
            continue
        return cut
    raise MetadataConflictError(f"the cursors of log {log_id} are being changed in a loop", may_have_happened=False)
