"""The streams that one handle of the metadata store knows: their latest versions that it has stored or read, decoded.

A client meets the same version again and again: it watches what it has stored itself, and takes over what it has
watched. Decoding a stream with many pages takes longer than reading it.
"""

from typing import Final

from octavo.metadata.stream.any_metadata import EitherMetadata, decode_either, encode_either
from octavo.protocol.ids import LedgerId

_STREAMS_MAX: Final = 64


class KnownStreams:
    """See the module. Ledgers with one writer pass through: they are small, and seldom read twice."""

    def __init__(self) -> None:
        self._versions: dict[LedgerId, tuple[bytes, EitherMetadata]] = {}
        """The stored form, and what it says. The latest is the last."""

    def encoded(self, metadata: EitherMetadata) -> bytes:
        """The stored form."""
        value = encode_either(metadata)
        self._keep(metadata.ledger_id, value, metadata)
        return value

    def decoded(self, ledger_id: LedgerId, value: bytes) -> EitherMetadata:
        """The metadata in ``value``, which is stored under ``ledger_id``. Raises as
        :func:`octavo.metadata.stream.any_metadata.decode_either`."""
        known = self._versions.get(ledger_id)
        if known is not None and known[0] == value:
            return known[1]
        metadata = decode_either(ledger_id, value)
        self._keep(ledger_id, value, metadata)
        return metadata

    def _keep(self, ledger_id: LedgerId, value: bytes, metadata: EitherMetadata) -> None:
        from octavo.metadata.ledger.model import LedgerMetadata  # noqa: PLC0415 - the metadata came from it

        if isinstance(metadata, LedgerMetadata):
            return
        self._versions.pop(ledger_id, None)
        if len(self._versions) >= _STREAMS_MAX:
            del self._versions[next(iter(self._versions))]
        self._versions[ledger_id] = value, metadata
