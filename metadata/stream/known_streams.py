"""The streams that one handle of the metadata store knows: their latest versions that it has stored or read, decoded.

A client meets the same version again and again: it watches what it has stored itself, and takes over what it has
watched. Decoding a stream with many pages takes longer than reading it.
"""

from typing import Final

from octavo.metadata.stream.any_metadata import EitherMetadata, decode_either, encode_either
from octavo.protocol.ids import LedgerId

_STREAMS_MIN: Final = 64
"""Streams that are kept however large they are."""

_STREAMS_MAX: Final = 1024
"""As many as a client that leads many logs takes over and begins to watch within a moment."""

_BYTES_MAX: Final = 1024 * 1024
"""Of the stored forms of more than the least number of streams."""


class KnownStreams:
    """See the module. Ledgers with one writer pass through: they are small, and seldom read twice."""

    def __init__(self) -> None:
        self._versions: dict[LedgerId, tuple[bytes, EitherMetadata]] = {}
        """The stored form, and what it says. The latest is the last."""
        self._bytes = 0
        """Of the stored forms."""

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
        self._forget(ledger_id)
        self._versions[ledger_id] = value, metadata
        self._bytes += len(value)
        while (kept := len(self._versions)) > _STREAMS_MIN and (kept > _STREAMS_MAX or self._bytes > _BYTES_MAX):
            self._forget(next(iter(self._versions)))

    def _forget(self, ledger_id: LedgerId) -> None:
        known = self._versions.pop(ledger_id, None)
        if known is not None:
            self._bytes -= len(known[0])
