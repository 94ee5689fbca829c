"""Options of ledgers, which other commands have, too."""

from enum import StrEnum
from typing import Annotated, Literal

import typer
from octavo.protocol.ids import ID_MAX


class DigestName(StrEnum):
    """Digest types, as options spell them."""

    CRC32C = "crc32c"
    HMAC_SHA256 = "hmac-sha256"


class SyncName(StrEnum):
    """When entries are durable, as options spell it."""

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"

    @property
    def mode(self) -> Literal["immediate", "deferred"]:
        """As :meth:`~octavo.Client.create_ledger` takes it."""
        return "deferred" if self is SyncName.DEFERRED else "immediate"


class FullCopiesName(StrEnum):
    """The promise of a ledger about all of its copies, as options spell it."""

    NONE = "none"
    RECORDED = "recorded"
    REQUIRED = "required"

    @property
    def kind(self) -> Literal["recorded", "required"] | None:
        """As :meth:`~octavo.Client.create_ledger` takes it."""
        match self:
            case FullCopiesName.RECORDED:
                return "recorded"
            case FullCopiesName.REQUIRED:
                return "required"
        return None


class StateName(StrEnum):
    """States of a ledger or a stream, as options and output spell them."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    AT_REST = "at-rest"
    CLOSED = "closed"


LedgerArgument = Annotated[int, typer.Argument(metavar="ID", min=0, max=ID_MAX, help="Id of the ledger.")]
EnsembleOption = Annotated[
    int, typer.Option("-E", "--ensemble", metavar="N", help="Ensemble size: number of bookies that share the entries.")
]
WriteQuorumOption = Annotated[
    int, typer.Option("-W", "--write-quorum", metavar="N", help="Number of bookies that store each entry.")
]
AckQuorumOption = Annotated[
    int,
    typer.Option(
        "-A", "--ack-quorum", metavar="N", help="Number of bookies that must have an entry on disk to acknowledge it."
    ),
]
DigestOption = Annotated[
    DigestName,
    typer.Option(
        "--digest", metavar="TYPE", help="Digest that protects each entry against damage: crc32c or hmac-sha256."
    ),
]
SyncOption = Annotated[
    SyncName,
    typer.Option(
        "--sync",
        metavar="MODE",
        help="When entries are on disk: when their add is acknowledged (immediate), or when the writer forces them, at"
        " the latest when it closes the ledger (deferred).",
    ),
]
FullCopiesOption = Annotated[
    FullCopiesName,
    typer.Option(
        "--full-copies",
        metavar="KIND",
        help="What becomes of entries with fewer copies than the write quorum: recorded (the metadata name them, and"
        " repair makes their copies), required (the writer waits until they have all copies), or none (no promise).",
    ),
]
PrivateOption = Annotated[
    bool,
    typer.Option("--private", help="Bookies give the entries only to readers with the password. Needs a password."),
]
CustomOption = Annotated[
    list[str] | None,
    typer.Option(
        "--custom",
        metavar="KEY=VALUE",
        help="Store this key and value in the ledger's custom metadata. May be given several times.",
    ),
]
