"""Checks every change of the metadata by which repair names a bookie: its disk holds all that it should (rule N1).

The checker looks at the bytes that a power cut would leave, when the change arrives at the metadata service. It finds
an entry by its header and believes it if its checksum is right, wherever it lies: in the journal or in an entry log.
"""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.entries import CHECKSUM, HEADER, MAC_BYTES, RESIDUE
from octavo.protocol.ids import BookieId, LedgerId
from simulation.engine.disk import Disk
from simulation.judges.history import Violation

if TYPE_CHECKING:
    from simulation.world import World

_IDS = struct.Struct(">QQ")
_IDS_AT = 8
"""Where ledger id and entry id are in a sealed entry."""


class Naming(NamedTuple):
    """A bookie has taken a slot in a settled range, which should hold these entries."""

    bookie_id: BookieId
    entry_ids: list[int]


def namings(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[Naming]:
    """The places that repair has given to other bookies: those of fragments that were settled before (rule C2)."""
    known = {fragment.first_entry_id: fragment for fragment in before.fragments}
    size = after.ensemble_size
    for at, fragment in enumerate(after.fragments):
        earlier = known.get(fragment.first_entry_id)
        is_last = earlier is before.last_fragment
        if earlier is None or (is_last and not before.is_closed):
            continue
        if at + 1 < len(after.fragments):
            stop = int(after.fragments[at + 1].first_entry_id)
        else:
            stop = 0 if after.last_entry_id is None else after.last_entry_id + 1
        for position, (old, new) in enumerate(zip(earlier.bookies, fragment.bookies, strict=True)):
            if old != new:
                residues = {(position - step) % size for step in range(after.write_quorum)}
                yield Naming(new, [i for i in range(fragment.first_entry_id, stop) if i % size in residues])


class NamingJudge:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def check(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Check a new version of a ledger's metadata. Raises :class:`Violation`."""
        for bookie_id, entry_ids in namings(before, after):
            self.check_member(after.ledger_id, bookie_id, entry_ids)

    def check_member(self, ledger_id: LedgerId, bookie_id: BookieId, entry_ids: list[int]) -> None:
        """Check that a bookie which has taken a slot has these entries on its disk. Raises :class:`Violation`."""
        self._world.trace.count("repair: bookie took a place")
        machine = next((one for one in self._world.machines if bookie_id in one.ids), None)
        # Machines of the fault budget may have lost copies since.
        if machine is None or machine in self._world.unlucky:
            return
        lacking = [entry_id for entry_id in entry_ids if not _is_durable(machine.disk, ledger_id, entry_id)]
        if lacking:
            raise Violation("N1", f"ledger {ledger_id}: {bookie_id} took a place and lacks {lacking}")
        self._world.trace.count("repair: entries found where they are named", len(entry_ids))


def _is_durable(disk: Disk, ledger_id: int, entry_id: int) -> bool:
    ids = _IDS.pack(ledger_id, entry_id)
    for inode in dict.fromkeys(disk.names.values()):
        content = bytes(inode.durable)
        at = content.find(ids)
        while at >= 0:
            if _is_entry(content, at - _IDS_AT):
                return True
            at = content.find(ids, at + 1)
    return False


def _is_entry(content: bytes, start: int) -> bool:
    if start < 0 or start + HEADER.size > len(content):
        return False
    _, digest, flags, length, *_ = HEADER.unpack_from(content, start)
    size = HEADER.size + (MAC_BYTES if digest == 2 else 0) + length + CHECKSUM.size
    if flags != 0 or start + size > len(content):
        return False
    return int(google_crc32c.value(content[start : start + size])) == RESIDUE
