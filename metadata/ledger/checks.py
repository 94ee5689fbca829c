"""Checks of quorums, of ids of bookies, and of what is noted beside the entries, for ledgers and streams. Pure."""

from datetime import datetime

from octavo.metadata.ledger.stored import StoredLedger
from octavo.protocol.limits import E_MAX

CUSTOM_METADATA_BYTES_MAX = 64 * 1024
"""Largest total size of custom metadata, keys and values together: ZooKeeper stores at most 1 MiB in a node, and
fragments need space, too."""

WRITER_TOKEN_CHARACTERS_MAX = 64
"""Longest token of a writer: room for a UUID in any spelling."""

CLIENT_NAME_CHARACTERS_MAX = 128
"""Longest name of a client: room for a host's name and what the application calls itself."""


def quorum_problem(ensemble_size: int, write_quorum: int, ack_quorum: int) -> str | None:
    """Describes what is wrong with these sizes; None when E_MAX >= E >= Qw >= Qa >= 1."""
    if ack_quorum < 1:
        return f"the ack quorum is {ack_quorum}; it must be at least 1"
    if write_quorum < ack_quorum:
        return f"the write quorum {write_quorum} is smaller than the ack quorum {ack_quorum}"
    if ensemble_size < write_quorum:
        return f"the ensemble size {ensemble_size} is smaller than the write quorum {write_quorum}"
    if ensemble_size > E_MAX:
        return f"the ensemble size {ensemble_size} exceeds the limit of {E_MAX}"
    return None


def notes_problem(metadata: StoredLedger) -> str | None:
    """Describes what is wrong with what is noted beside the entries of a ledger or a stream: times, names, tokens and
    custom metadata; None when nothing is."""
    custom_bytes = 0
    for key, value in metadata.custom_metadata.items():
        custom_bytes += len(key.encode("utf-8", "surrogatepass")) + len(value)
    if metadata.created_at.tzinfo is None:
        return "created_at needs a time zone"
    if len(metadata.writer_token) > WRITER_TOKEN_CHARACTERS_MAX:
        return f"a writer's token has at most {WRITER_TOKEN_CHARACTERS_MAX} characters"
    if custom_bytes > CUSTOM_METADATA_BYTES_MAX:
        return f"custom metadata of {custom_bytes} bytes exceed the limit of {CUSTOM_METADATA_BYTES_MAX}"
    return _fencing_problem(metadata.fenced_at, metadata.fenced_by)


def _fencing_problem(fenced_at: datetime | None, fenced_by: str) -> str | None:
    if fenced_at is None:
        return "fenced_by needs fenced_at" if fenced_by else None
    if fenced_at.tzinfo is None:
        return "fenced_at needs a time zone"
    if len(fenced_by) > CLIENT_NAME_CHARACTERS_MAX:
        return f"the name of a client has at most {CLIENT_NAME_CHARACTERS_MAX} characters"
    return None
