"""What the judge of many ledgers finds on disks."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.ids import EntryId, LedgerId
from simulation.campaign import Order
from simulation.engine.disk import Disk
from simulation.engine.inode import Inode
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.judge_of_many import JudgeOfMany, durable_entries
from simulation.world import World
from support.metadata.ledger_metadata import bookie_ids, open_ledger

LEDGER = LedgerId(7)
QUORUMS = (3, 3, 2)


@pytest.fixture
def world() -> Iterator[World]:
    """Three machines, whose bookies are a, b and c."""
    plan = Order(1, size="quick", settings={"packs": 1, "logs": 0}).plan()
    plan.quorums, plan.bookies, plan.unlucky = QUORUMS, 3, 0
    made = World(1, plan)
    for machine, name in zip(made.machines, bookie_ids(*"abc"), strict=True):
        machine.ids[name] = None
    yield made
    made.loop.close()


def acknowledged_ledger(digest: Digest, *payloads: bytes) -> LedgerHistory:
    """A ledger that is open, with these entries acknowledged."""
    ledger = LedgerHistory(LEDGER, QUORUMS, b"", digest, lambda: len(payloads) - 1)
    ledger.payloads, ledger.acknowledged = list(payloads), len(payloads) - 1
    ledger.versions.append(open_ledger(LEDGER))
    return ledger


def sealed(digest: Digest, *payloads: bytes, at_ms: int = 1) -> list[bytes]:
    sealer = Sealer(LEDGER, digest, derive_secrets(b"", LEDGER))
    return sealer.seal(EntryId(0), payloads, last_add_confirmed=None, length=0, sealed_at_ms=at_ms)


def store(disk: Disk, *pieces: bytes, durable: bool = True) -> None:
    """Write a file with these pieces among bytes that look like the beginning of entries."""
    inode = disk.names.setdefault(PurePosixPath("/data/entries"), Inode())  # type: ignore[arg-type]
    content = b"\1\1\0\0" + b"\1\2\0\0\0".join(pieces) + b"\1\1\0\0\0"
    (inode.durable if durable else inode.volatile).extend(content)


@pytest.mark.parametrize("digest", Digest)
def test_entries_that_are_whole_and_durable_are_found(world: World, digest: Digest) -> None:
    disk = world.machines[0].disk
    first, second = sealed(digest, b"first", b"second")
    store(disk, first, second[:-1] + bytes([second[-1] ^ 1]))
    store(disk, second, durable=False)
    assert durable_entries(disk) == {(LEDGER, 0): {first}}


def check(world: World, ledger: LedgerHistory) -> None:
    JudgeOfMany(world).check_copies(ledger, {one.name: durable_entries(one.disk) for one in world.machines})


@pytest.mark.parametrize("digest", Digest)
def test_acknowledged_entry_needs_as_many_copies_as_acknowledge_it(world: World, digest: Digest) -> None:
    ledger = acknowledged_ledger(digest, b"first", b"second")
    first, second = sealed(digest, b"first", b"second")
    for machine in world.machines[:2]:
        store(machine.disk, first)
    store(world.machines[0].disk, second)
    with pytest.raises(Violation, match="I5: ledger 7: entry 1 has 1 copies"):
        check(world, ledger)
    store(world.machines[2].disk, second)
    check(world, ledger)


def test_copies_on_a_machine_that_may_lose_data_count_as_present(world: World) -> None:
    ledger = acknowledged_ledger(Digest.CRC32C, b"first")
    store(world.machines[1].disk, *sealed(Digest.CRC32C, b"first"))
    world.unlucky = world.machines[:1]
    check(world, ledger)


def test_entry_with_another_payload_than_was_added_is_found(world: World) -> None:
    ledger = acknowledged_ledger(Digest.HMAC_SHA256, b"first")
    for machine in world.machines:
        store(machine.disk, *sealed(Digest.HMAC_SHA256, b"other"))
    with pytest.raises(Violation, match="I3: ledger 7: bookie a has"):
        check(world, ledger)


def test_bookies_with_different_bytes_of_an_entry_are_found(world: World) -> None:
    ledger = acknowledged_ledger(Digest.CRC32C, b"first")
    for at_ms, machine in enumerate(world.machines[:2]):
        store(machine.disk, *sealed(Digest.CRC32C, b"first", at_ms=at_ms))
    with pytest.raises(Violation, match="I3: ledger 7: bookie b has other bytes of entry 0"):
        check(world, ledger)
