"""A log at a glance: what lists show of it, read from its document. Pure.

As for streams (:mod:`octavo.metadata.stream.glance`): a glance verifies the checksum and the fields that it reads, and
nothing may be decided or changed by it. Chains are decoded in full: few clusters have many of them.
"""

from typing import TYPE_CHECKING, NamedTuple

from octavo.client.log.documents.formats import CHAIN_FORMAT, STREAM_FORMAT_WITH_KEYS, STREAM_LAYOUT
from octavo.client.log.documents.states import LogState
from octavo.metadata.encoding import FieldReader, open_object
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import LedgerId

if TYPE_CHECKING:
    from octavo.client.log.documents.chain import LogDocument


class StreamLogGlance(NamedTuple):
    """See the module."""

    log_id: str
    ledger_id: LedgerId
    """Of the stream."""
    created_at_ms: int
    first_position: int
    active: bool
    """False while it is being created or deleted."""


def glance_at_log(value: bytes, name: str) -> "StreamLogGlance | LogDocument":
    """The log called ``name`` from its stored form. Raises :class:`MetadataError` when it cannot be understood."""
    what = f"log {name}"
    format_number, fields = open_object(value, what=what, format_max=STREAM_FORMAT_WITH_KEYS)
    if format_number == CHAIN_FORMAT:
        from octavo.client.log.documents.chain import log_from  # noqa: PLC0415 - most lists meet no chain

        return log_from(fields, name)
    reader = FieldReader(fields, what)
    layout = reader.get("layout", str)
    if layout != STREAM_LAYOUT:
        raise MetadataError(f"{what} has the layout {layout!r}, which this version does not know; upgrade Octavo")
    try:
        state = LogState(reader.get("state", str))
    except ValueError as error:
        raise reader.damaged(str(error)) from error
    return StreamLogGlance(
        log_id=reader.get("log_id", str),
        ledger_id=LedgerId(reader.get("ledger_id", int)),
        created_at_ms=reader.get("created_at_ms", int),
        first_position=reader.get("first_position", int),
        active=state is LogState.ACTIVE,
    )


def is_active(log: "StreamLogGlance | LogDocument") -> bool:
    """Whether clients can use the log."""
    return log.active if isinstance(log, StreamLogGlance) else log.state is LogState.ACTIVE
