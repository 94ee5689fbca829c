"""The ledger of the model: its id, its secrets, how its entries are sealed and opened. All with the real code."""

from datetime import UTC, datetime
from functools import cache
from typing import Final

from model.engine.renaming import bookie_id
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.protocol.entries import Digest, Opener, Sealer, derive_secrets
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.quorums import Quorums

LEDGER: Final = LedgerId(7)
_SECRETS = derive_secrets(b"", LEDGER)
_CREATED_AT = datetime(2024, 2, 29, tzinfo=UTC)

PAYLOADS: Final = (b"A", b"BB", b"CCC", b"DDDD")
"""Different lengths, so that a wrong cumulative length shows."""

sealer: Final = Sealer(LEDGER, Digest.CRC32C, _SECRETS)
opener: Final = Opener(LEDGER, Digest.CRC32C, _SECRETS)


@cache
def sealed(entry_id: int, last_add_confirmed: int) -> bytes:
    """Entry ``entry_id`` with its payload, sealed when the writer's LAC was this (-1: none)."""
    return sealer.seal(
        EntryId(entry_id),
        [PAYLOADS[entry_id]],
        last_add_confirmed=None if last_add_confirmed < 0 else EntryId(last_add_confirmed),
        length=length_up_to(entry_id - 1),
        sealed_at_ms=0,
    )[0]


@cache
def sealed_lac(last_add_confirmed: int) -> bytes:
    """An explicit LAC."""
    return sealer.seal_explicit_lac(
        EntryId(last_add_confirmed), length=length_up_to(last_add_confirmed), sealed_at_ms=0
    )


def length_up_to(entry_id: int) -> int:
    """The ledger's length at an entry; 0 for -1."""
    return sum(map(len, PAYLOADS[: entry_id + 1]))


def metadata(quorums: Quorums, *fragments: tuple[int, str]) -> LedgerMetadata:
    """An open ledger. A fragment is its first id and the letters of its bookies; without any: the first E letters."""
    first = "".join(bookie_id(number) for number in range(quorums.ensemble_size))
    return LedgerMetadata(
        ledger_id=LEDGER,
        ensemble_size=quorums.ensemble_size,
        write_quorum=quorums.write_quorum,
        ack_quorum=quorums.ack_quorum,
        fragments=tuple(
            Fragment(EntryId(start), tuple(map(bookie_id, map("abcdefgh".index, names))), length_up_to(start - 1))
            for start, names in fragments or ((0, first),)
        ),
        digest=Digest.CRC32C,
        created_at=_CREATED_AT,
        verifier=b"v" * 32,
        salt=b"s" * 16,
    )
