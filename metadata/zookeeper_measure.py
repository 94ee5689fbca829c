"""How fast the servers make nodes when nothing but the making is asked of them: what creating ledgers is compared with.

The nodes have the size of a ledger's metadata and stand in folders like those of ledgers, in a place of their own below
the cluster's root, and are deleted again.
"""

import asyncio
import random
import time
from collections.abc import Callable

from octavo.metadata.records import Kind, ledger_key
from octavo.metadata.zookeeper_connection import AnswerLostError
from octavo.metadata.zookeeper_layout import Paths
from octavo.metadata.zookeeper_messages import ANY_VERSION, create, create_container, delete
from octavo.metadata.zookeeper_open import DELETES_AT_ONCE, OPERATION_SECONDS_DEFAULT, connect_records
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import LedgerId


class RawCreates:
    """Makes nodes at ``uri``, ``value_bytes`` each. ``await open()`` first, ``await close()`` at the end."""

    def __init__(self, uri: str, value_bytes: int) -> None:
        self._records = connect_records(
            uri, lease_seconds=10.0, operation_seconds=OPERATION_SECONDS_DEFAULT, rng=random.SystemRandom()
        )
        self._place = f"{self._records.paths.root}/measure-{random.SystemRandom().getrandbits(64):016x}"
        self._paths = Paths(self._place)
        self._value = bytes(value_bytes)
        self._made = 0

    async def open(self) -> None:
        """Reach the servers and make the place."""
        nodes = self._records.nodes
        await nodes.ensure(self._place)
        await nodes.ensure(self._paths.folder(Kind.LEDGER))

    async def measure(self, number: int, in_flight: int, clock: Callable[[], float] = time.perf_counter) -> float:
        """Make so many nodes, so many at a time; the seconds it took, without making their folders."""
        paths = [self._paths.node(Kind.LEDGER, ledger_key(LedgerId(self._made + i))) for i in range(number)]
        self._made += number
        await self._make_folders(paths)
        session, acl = self._records.session, self._records.nodes.acl
        remaining = iter(paths)

        async def work() -> None:
            for path in remaining:
                await session.call(create(path, self._value, acl))

        begun = clock()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(work())
        except* AnswerLostError as errors:
            raise MetadataUnavailableError(f"ZooKeeper: {errors.exceptions[0]}") from None
        return clock() - begun

    async def _make_folders(self, paths: list[str]) -> None:
        folders: dict[str, None] = {}
        for path in paths:
            above = path.rpartition("/")[0]
            missing = []
            while above != self._paths.folder(Kind.LEDGER) and above not in folders:
                missing.append(above)
                above = above.rpartition("/")[0]
            folders.update(dict.fromkeys(reversed(missing)))
        for folder in folders:
            await self._records.session.call(create_container(folder, self._records.nodes.acl))

    async def close(self) -> None:
        """Delete everything and let go of the servers."""
        try:
            nodes = self._records.nodes
            keys = [ledger_key(LedgerId(i)) for i in range(self._made)]
            leaves = [self._paths.node(Kind.LEDGER, key) for key in keys]
            depth = len(leaves[0].split("/")) if leaves else 0
            groups = [leaves]
            above = leaves
            while depth > len(self._place.split("/")) + 2:
                depth -= 1
                above = list({path.rpartition("/")[0] for path in above})
                groups.append(above)
            groups += [[self._paths.folder(Kind.LEDGER)], [self._place]]
            for group in groups:
                for start in range(0, len(group), DELETES_AT_ONCE):
                    await nodes.ask(*(delete(path, ANY_VERSION) for path in group[start : start + DELETES_AT_ONCE]))
        finally:
            await self._records.close()
