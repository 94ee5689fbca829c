"""The coordinators of consumer groups in this gateway: begun when a group of theirs is first asked for.

A group belongs to one of :data:`LOGS` logs by a hash of its id, and this gateway coordinates those whose log falls to
it (rule K9). While a coordinator reads its log, clients are told so and ask again. If its term ends, the next request
begins it again.
"""

import asyncio
import contextlib
import random
from collections.abc import Collection, Coroutine
from typing import Final
from zlib import crc32

from octavo.client.client import Client
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.coordinating.coordinator import GROUP_ID_CHARACTERS_MAX, Clocks, Coordinator, GroupLimits
from octavo.gateway.coordinating.group_log import GroupLog, read_commits
from octavo.gateway.groups.commits import Commits
from octavo.gateway.groups.sharing import TopicShape
from octavo.gateway.leading.gateways import GatewayAddress, Gateways
from octavo.gateway.leading.led_log import leading
from octavo.gateway.leading.openings import Openings
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.protocol.errors import OctavoError

TOPIC: Final = "__consumer_offsets"
"""Its partitions are the logs of coordinators."""

LOGS: Final = 16
"""Of a cluster; it never changes, since groups are found by it."""

TICK_SECONDS: Final = 0.25
"""Between two looks at the clocks: sessions last at least a second."""


def log_name(number: int) -> str:
    """One of the logs of coordinators."""
    return f"kafka/{TOPIC}/{number}"


def number_of(group_id: str) -> int:
    """The log of a group.

    Raises:
        RefusedError: No group can have this id.
    """
    if not 0 < len(group_id) <= GROUP_ID_CHARACTERS_MAX:
        text = f"the id of a group has 1 to {GROUP_ID_CHARACTERS_MAX} characters"
        raise RefusedError(Code.INVALID_GROUP_ID, text)
    return crc32(group_id.encode()) % LOGS


class Coordinators:
    """See the module."""

    def __init__(
        self,
        client: Client,
        catalogue: Catalogue,
        clocks: Clocks,
        *,
        name: str,
        gateways: Gateways,
        rng: random.Random,
        limits: GroupLimits,
    ) -> None:
        """``name`` shows people which gateway coordinates."""
        self._client = client
        self._catalogue = catalogue
        self._clocks = clocks
        self._name = name
        self._gateways = gateways
        self._rng = rng
        self._limits = limits
        self._running: dict[int, Coordinator] = {}
        self._openings = Openings[int, Coordinator]()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self.lost = 0
        """Terms that ended before they were given up."""

    @property
    def running(self) -> Collection[Coordinator]:
        """Those that coordinate now."""
        return self._running.values()

    async def find(self, group_id: str) -> GatewayAddress:
        """The gateway at which clients find the coordinator of a group. The logs of coordinators are made, if there
        are none yet.

        Raises:
            RefusedError: They cannot be made now, or no gateway takes part, or no group can have this id.
        """
        number = number_of(group_id)
        await self._topic()
        own = self._gateways.present.get(self._gateways.node_id)
        found = own if own is not None and number in self._running else self._gateways.choice(log_name(number))
        if found is None:
            raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, "no gateway takes part")
        return found

    async def get(self, group_id: str) -> Coordinator:
        """The coordinator of a group.

        Raises:
            RefusedError: It cannot coordinate now; the client is to try again. Or no group can have this id.
        """
        return await self._get(number_of(group_id))

    async def own(self) -> list[Coordinator]:
        """The coordinators that are in this gateway: clients that list groups ask all gateways.

        Raises:
            RefusedError: One cannot coordinate now.
        """
        if self._catalogue.find(TOPIC) is None:
            return []
        numbers = [one for one in range(LOGS) if one in self._running or self._gateways.is_own(log_name(one))]
        return await asyncio.gather(*(self._get(number) for number in numbers))

    async def _topic(self) -> Topic:
        try:
            return await self._catalogue.own(TOPIC, LOGS)
        except (RefusedError, OctavoError) as error:
            text = f"the logs of consumer groups cannot be made now: {error}"
            raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, text) from error

    async def _get(self, number: int) -> Coordinator:
        running = self._running.get(number)
        if running is not None:
            with contextlib.suppress(RefusedError):
                running.log.check_leads()
                return running
        if self._closed or not self._gateways.is_current:
            raise RefusedError(Code.NOT_COORDINATOR, "the gateway ends")
        if not self._gateways.is_own(log_name(number)):
            raise RefusedError(Code.NOT_COORDINATOR, "another gateway coordinates the group")
        try:
            opened = await self._openings.get(number, lambda: self._open(number), self._limits.opening_seconds_max)
        except OctavoError as error:
            text = f"the coordinator cannot begin now: {error}"
            raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, text) from error
        if opened is None:
            raise RefusedError(Code.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator reads its log")
        return opened

    async def _open(self, number: int) -> Coordinator:
        password = (await self._topic()).password_of_logs(self._catalogue.password)
        limits = self._limits
        async with leading(self._client, log_name(number), self._name, password) as (log, writer):
            commits = Commits(restate_bytes=limits.restate_bytes, bytes_max=limits.offsets_bytes_max)
            # A topic whose offsets were committed had been announced: its id is known afterwards.
            await self._catalogue.catch_up()
            await read_commits(log, writer.end, commits, self._catalogue.has_id)
        group_log = GroupLog(
            log,
            writer,
            commits,
            is_current=lambda: self._gateways.is_current,
            is_live=self._catalogue.has_id,
            on_lost=lambda: self._lost(number, coordinator),
        )
        coordinator = Coordinator(
            group_log, self._clocks, lambda: self._member_id(writer.term), limits, self._find_topic
        )
        if self._closed or not self._gateways.is_own(log.name):
            # It waited for the lead, and another gateway has become the choice meanwhile.
            await group_log.close()
            raise RefusedError(Code.NOT_COORDINATOR, "another gateway coordinates the group")
        self._running[number] = coordinator
        return coordinator

    def _find_topic(self, name: str) -> TopicShape | None:
        """A topic whose partitions members can share."""
        topic = self._catalogue.find(name)
        return None if topic is None or topic.is_internal else TopicShape(topic.topic_id, topic.partitions)

    def _member_id(self, term: int) -> str:
        """No coordinator gives an id that an earlier one of the group has given."""
        return f"member-{term}-{self._rng.getrandbits(128):032x}"

    def _lost(self, number: int, coordinator: Coordinator) -> None:
        assert coordinator.log.lost is not None, "it says why"
        coordinator.end(coordinator.log.lost)
        if self._running.get(number) is coordinator:
            self.lost += 1
            del self._running[number]
            self._spawn(coordinator.log.close())

    def give_up_others(self) -> None:
        """Begin to give the groups whose choice is another gateway to that one."""
        for number, coordinator in list(self._running.items()):
            if not self._gateways.is_own(log_name(number)):
                del self._running[number]
                self._spawn(coordinator.log.close())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def run(self) -> None:
        """Look at the clocks several times a second, until cancelled: without that no session and no wait ends."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.pass_time()

    def pass_time(self) -> None:
        """Look at the clocks now."""
        for coordinator in list(self._running.values()):
            coordinator.pass_time()

    async def close(self) -> None:
        """Give all logs back. What was handed over is waited for."""
        self._closed = True
        await self._openings.give_up_all()
        running, self._running = list(self._running.values()), {}
        for one in running:
            await one.log.close()
        if self._ending:
            await asyncio.wait(set(self._ending))
