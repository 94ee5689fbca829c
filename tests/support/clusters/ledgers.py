"""Sealed entries for tests of the storage: a writer without a network."""

from collections.abc import Iterable, Sequence

from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.ids import EntryId, LedgerId


class LedgerScript:
    """Seals entries of one ledger as its writer would; ``payload_of`` gives the payload of an entry id."""

    def __init__(self, ledger_id: int, *, payload_bytes: int = 40, password: bytes = b"secret") -> None:
        self.ledger_id = LedgerId(ledger_id)
        self.payload_bytes = payload_bytes
        secrets = derive_secrets(password, self.ledger_id)
        self.key = secrets.ledger_key
        self._sealer = Sealer(self.ledger_id, Digest.CRC32C, secrets)

    def payload_of(self, entry_id: int, version: int = 0) -> bytes:
        size = self.payload_bytes + entry_id % 3
        return (f"{self.ledger_id}/{entry_id}/{version} ".encode() * (size // 4 + 1))[:size]

    def entry(self, entry_id: int, *, lac: int | None = None, version: int = 0) -> bytes:
        """Sealed with that LAC, or the highest that an entry of this id can carry."""
        if lac is not None:
            lac = min(lac, entry_id - 1) if entry_id else None
        sealed = self._sealer.seal(
            EntryId(entry_id),
            [self.payload_of(entry_id, version)],
            last_add_confirmed=None if lac is None else EntryId(lac),
            length=100 * entry_id,
            sealed_at_ms=0,
        )
        return sealed[0]

    def entries(self, ids: Iterable[int], *, lac: int | None = None, version: int = 0) -> list[bytes]:
        return [self.entry(entry_id, lac=lac, version=version) for entry_id in ids]

    def explicit_lac(self, lac: int) -> bytes:
        return self._sealer.seal_explicit_lac(EntryId(lac), length=0, sealed_at_ms=0)


def ids_of(entries: Sequence[bytes]) -> list[int]:
    """The entry ids in sealed entries."""
    return [int.from_bytes(sealed[16:24], "big") for sealed in entries]
