"""One bookie's copy of a ledger, as that bookie returns it: for programs that check replicas."""

from typing import NamedTuple

from octavo.client.options import ClientOptions
from octavo.client.read.range_read import RANGE_BYTES_MAX
from octavo.client.wire.pool import ConnectionPool
from octavo.protocol.errors import InvalidArgumentError, ProtocolError
from octavo.protocol.ids import ID_MAX, BookieId, LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag


class ReplicaAnswer(NamedTuple):
    """The answer of a bookie about the ids asked for, up to ``last_covered``.

    An id is in ``sealed``, *unknown*, or else absent.

    Examples:
        >>> async with client.create_ledger(3, 3, 3) as ledger:
        ...     entry_id = await ledger.add(b"payload")
        >>> answer = await client.read_replica("b0", ledger.id, 0, 9)
        >>> answer.last_covered, len(answer.sealed), answer.unknown
        (9, 1, ())
    """

    last_covered: int
    sealed: list[bytes]
    """Sealed entries as the bookie sent them, not verified."""
    unknown: tuple[tuple[int, int], ...]
    """Runs of ids (both ends included) that the bookie cannot tell about: damaged, or it is in doubt."""


async def read_replica(
    pool: ConnectionPool,
    options: ClientOptions,
    *,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    ledger_key: bytes,
    first: int,
    last: int,
    modulus: int,
    residues: tuple[int, ...],
) -> ReplicaAnswer:
    """See :meth:`octavo.client.client.Client.read_replica`."""
    if type(first) is not int or type(last) is not int or not 0 <= first <= last <= ID_MAX:
        raise InvalidArgumentError(f"ledger {ledger_id}: there are no entries {first!r} to {last!r}")
    request = Read(
        ledger_id, ledger_key, ReadFlag.NONE, 0, first, last, modulus, residues, ENTRIES_PER_FRAME_MAX, RANGE_BYTES_MAX
    )
    answer = await pool.get(bookie_id).request(request, timeout_seconds=options.request_timeout_seconds)
    if not isinstance(answer, ReadAnswer) or answer.last_covered < first:
        raise ProtocolError(f"bookie {bookie_id} answered without any of the entries asked for")
    return ReplicaAnswer(min(answer.last_covered, last), list(answer.entries), answer.unknown)
