"""The anchor of a partition in the metadata store: it is raised before entries are removed (rule K2)."""

from octavo.gateway.records.names import anchor_document
from octavo.gateway.records.offsets import NO_ANCHOR, Anchor, decode_anchor, encode_anchor
from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataConflictError


class Anchors:
    """That of one partition."""

    def __init__(self, store: MetadataStore, log_id: str) -> None:
        self._store = store
        self._log_id = log_id

    async def read(self) -> Anchor:
        """The anchor as it is stored.

        Raises:
            OctavoError: The metadata store does not answer, or the anchor is damaged.
        """
        stored = await self._store.read_document(anchor_document(self._log_id))
        return NO_ANCHOR if stored is None else decode_anchor(stored.value, self._log_id)

    async def raise_to(self, *, position: int, base_offset: int, start_offset: int) -> Anchor:
        """Store a higher anchor; no number falls. Gives the anchor as it then stands.

        Raises:
            OctavoError: The metadata store does not answer, or the anchor is damaged.
        """
        name = anchor_document(self._log_id)
        while True:
            stored = await self._store.read_document(name)
            before = NO_ANCHOR if stored is None else decode_anchor(stored.value, self._log_id)
            raised = before.raised(position=position, base_offset=base_offset, start_offset=start_offset)
            if raised == before:
                return before
            version = None if stored is None else stored.version
            try:
                await self._store.put_document(name, encode_anchor(raised, self._log_id), version)
            except MetadataConflictError:
                continue
            return raised

    async def delete(self) -> None:
        """The partition is being deleted.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        await self._store.delete_document(anchor_document(self._log_id))
