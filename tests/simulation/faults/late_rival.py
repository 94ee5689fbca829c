"""A rival of the leader of a stream: it takes the stream over, and fences terms that were over long ago.

A fence may arrive at any time once a takeover of its term has begun (rule T2): the client that sends it may have stood
still meanwhile. One of an earlier term changes nothing (rule T7), and tells a bookie in doubt nothing about what it has
lost (rule T12).
"""

from octavo.protocol.entries import derive_secrets
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.messages import ReadFlag, ReadLac
from simulation.judges.stream_history import StreamLogHistory
from simulation.workload.log_workload import PASSWORD
from simulation.world import ClientHost, Machine
from support.inside import connections_of


def take_over(rival: ClientHost, history: StreamLogHistory) -> None:
    """Have the process take a log over, and add nothing."""

    async def take(host: ClientHost) -> None:
        client = await host.connect()
        try:
            log = await client.open_log(history.name, password=PASSWORD)
            writer = await log.take_over()
            history.leads(host.name, writer.term, lambda: writer.end)
            await writer.close()
        except OctavoError as error:
            host.world.note(host.name, "takeover: %s", f"{type(error).__name__} {error.message}")
        await client.close()

    rival.run(take, "takeover")


def fence_late(rival: ClientHost, machine: Machine, ledger_id: LedgerId, term: int) -> None:
    """Have the process fence the term of a stream at one bookie."""
    bookie_id = BookieId(next(reversed(machine.ids)))
    key = derive_secrets(PASSWORD, ledger_id).ledger_key

    async def fence(host: ClientHost) -> None:
        client = await host.connect()
        request = ReadLac(ledger_id, key, ReadFlag.FENCE, term, None, 0, 0, 0)
        try:
            await connections_of(client).get(bookie_id).request(request, timeout_seconds=5.0)
        except OctavoError as error:
            host.world.note(host.name, "fence of term %d: %s", term, f"{type(error).__name__} {error.message}")
        else:
            host.world.trace.count("stream: fenced late")
            host.world.note(host.name, "fenced term %d at %s", term, machine.name)
        await client.close()

    rival.run(fence, "late fence")
