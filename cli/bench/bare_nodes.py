"""Measures how fast ZooKeeper creates bare nodes, as a yardstick for the creation of ledgers.

The nodes have the size of a ledger's metadata, are in folders like those of ledgers at a separate place below the
cluster's root, and are deleted afterwards.
"""

import asyncio
import random
import time
from collections.abc import Callable
from itertools import islice

from octavo.metadata.store.driver import Kind, ledger_key
from octavo.metadata.zookeeper.cluster import DELETES_AT_ONCE, OPERATION_SECONDS_DEFAULT, connect_records
from octavo.metadata.zookeeper.connection import AnswerLostError
from octavo.metadata.zookeeper.layout import Paths
from octavo.metadata.zookeeper.messages import ANY_VERSION, Answer, create, create_container, delete, multi
from octavo.protocol.errors import MetadataUnavailableError, OctavoError
from octavo.protocol.ids import LedgerId


class RawCreates:
    """Creates nodes of ``value_bytes`` each in the ZooKeeper at ``uri``. ``await open()`` first, ``await close()`` at
    the end."""

    def __init__(self, uri: str, value_bytes: int) -> None:
        self._records = connect_records(
            uri, lease_seconds=10.0, operation_seconds=OPERATION_SECONDS_DEFAULT, rng=random.SystemRandom()
        )
        self._place = f"{self._records.paths.root}/measure-{random.SystemRandom().getrandbits(64):016x}"
        self._paths = Paths(self._place)
        self._value = bytes(value_bytes)
        self._made = 0

    async def open(self) -> None:
        """Connect to the servers and create the place."""
        nodes = self._records.nodes
        await nodes.ensure(self._place)
        await nodes.ensure(self._paths.folder(Kind.LEDGER))

    async def measure(
        self, number: int, in_flight: int, *, together: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[float, float]:
        """Create ``number`` nodes, ``in_flight`` at a time, ``together`` of them in one transaction. Returns the times
        of the start and the end, without the creation of the folders. Raises :class:`MetadataUnavailableError`,
        :class:`MetadataError`."""
        paths = [self._paths.node(Kind.LEDGER, ledger_key(LedgerId(self._made + i))) for i in range(number)]
        self._made += number
        await self._make_folders(paths)
        session, nodes = self._records.session, self._records.nodes
        remaining = iter(paths)

        async def one_by_one() -> None:
            for path in remaining:
                nodes.expect(await session.call(create(path, self._value, nodes.acl)), path)

        async def by_transaction() -> None:
            while some := list(islice(remaining, together)):
                made = await session.call(multi(*[create(path, self._value, nodes.acl) for path in some]))
                nodes.expect(Answer(nodes.code_of(made)), some[0])

        begun = clock()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(max(1, in_flight // together)):
                    group.create_task(one_by_one() if together == 1 else by_transaction())
        except* AnswerLostError as errors:
            raise MetadataUnavailableError(f"ZooKeeper: {errors.exceptions[0]}") from None
        except* OctavoError as errors:
            raise errors.exceptions[0] from None
        return begun, clock()

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
        """Delete all the nodes and disconnect."""
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
