"""The judge of a universe with many ledgers: it looks at all of them on the disks, and at some as a client does.

A client that recovers and reads a ledger takes a hundred steps of the loop. The bytes that a power cut would leave on
every disk tell at once which bookie has which entry.
"""

import re
from collections import Counter
from typing import Final

import google_crc32c
from octavo.protocol.entries import CHECKSUM, HEADER, MAC_BYTES, RESIDUE, header_of
from simulation.engine.disk import Disk
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.judge import Judge, shares
from simulation.judges.judge_of_logs import JudgeOfLogs
from simulation.world import ClientHost, World

READ_BY_CLIENT: Final = 8
"""Ledgers of each kind (those with an end, and those without) that a client recovers and reads."""

_ENTRY = re.compile(rb"(?=\x01[\x01\x02]\x00\x00\x00)")
"""Where a sealed entry may begin: its format, its digest, no flags, and a length below 16 MiB."""

_HMAC_SHA256 = 2

type Copies = dict[tuple[int, int], set[bytes]]
"""Ledger and entry id -> the sealed entries with these ids."""


def durable_entries(disk: Disk) -> Copies:
    """The entries that a power cut would leave on a disk, in journals and entry logs."""
    found: Copies = {}
    for inode in dict.fromkeys(disk.names.values()):
        content = bytes(inode.durable)
        for match in _ENTRY.finditer(content):
            start = match.start()
            if start + HEADER.size > len(content):
                break
            _, digest, _, length, ledger_id, entry_id, *_ = HEADER.unpack_from(content, start)
            stop = start + HEADER.size + (MAC_BYTES if digest == _HMAC_SHA256 else 0) + length + CHECKSUM.size
            sealed = content[start:stop]
            if stop <= len(content) and google_crc32c.value(sealed) == RESIDUE:
                found.setdefault((ledger_id, entry_id), set()).add(sealed)
    return found


class JudgeOfMany:
    """Checks every ledger, and every log, at the end of a universe. Raises :class:`Violation`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng_for("judge of many")

    async def run(self, host: ClientHost) -> None:
        """Check the disks, then some of the ledgers, then the logs."""
        world = self._world
        ledgers = [one for one in world.history.ledgers.values() if not (one.deleted or one.delete_asked)]
        disks = {machine.name: durable_entries(machine.disk) for machine in world.machines}
        for ledger in ledgers:
            self.check_copies(ledger, disks)
        client = await host.connect()
        judge = Judge(world)
        for with_end in (True, False):
            kind = [one for one in ledgers if (one.end is not None) is with_end]
            for ledger in self._rng.sample(kind, min(READ_BY_CLIENT, len(kind))):
                await judge.examine(host, client, ledger)
        await client.close()
        world.history.check_all()
        if world.plan.logs:
            await JudgeOfLogs(world).run(host)

    def check_copies(self, ledger: LedgerHistory, disks: dict[str, Copies]) -> None:
        """Check that every entry that was acknowledged, or is in a closed ledger, has Qa identical copies with its
        payload (rules I1, I3 and I5). Copies on unlucky machines count as present."""
        world, end = self._world, ledger.acknowledged if ledger.end is None else ledger.end
        machine_of = {name: machine for machine in world.machines for name in machine.ids}
        copies: Counter[int] = Counter()
        for share in shares(ledger, end):
            machine = machine_of[share.bookie_id]
            for entry_id in share.entry_ids:
                found = disks[machine.name].get((ledger.ledger_id, entry_id), set())
                copies[entry_id] += bool(found) or machine in world.unlucky
                for sealed in found:
                    world.history.replica(ledger, entry_id, sealed, share.bookie_id)
                    if _payload_of(sealed) != ledger.payloads[entry_id]:
                        raise Violation(
                            "I3", f"ledger {ledger.ledger_id}: bookie {share.bookie_id} has {sealed[:80]!r}"
                        )
        for entry_id in range(end + 1):
            if copies[entry_id] < ledger.quorums[2]:
                raise Violation("I5", f"ledger {ledger.ledger_id}: entry {entry_id} has {copies[entry_id]} copies")
        world.trace.count("packs: ledgers judged on the disks")


def _payload_of(sealed: bytes) -> bytes:
    header = header_of(sealed)
    start = HEADER.size + (MAC_BYTES if header.digest_code == _HMAC_SHA256 else 0)
    return sealed[start : start + header.payload_bytes]
