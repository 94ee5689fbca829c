"""Looks at the lag of the groups that this gateway coordinates, from time to time, for its metrics.

The end of a partition that this gateway leads is at hand. That of any other one it reads from the bookies, as `octavo
topic show` does, so that no gateway needs an identity at another one, and a partition without a leader has a lag, too.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from octavo.client.client import Client
from octavo.gateway.codes import RefusedError
from octavo.gateway.coordinating.coordinator import Coordinator
from octavo.gateway.coordinating.coordinators import Coordinators
from octavo.gateway.groups.lag import GroupOffsets, Lag, Lags, watched
from octavo.gateway.groups.places import Place
from octavo.gateway.leading.anchors import Anchors
from octavo.gateway.leading.beginning import extent_of
from octavo.gateway.leading.leaders import Leaders
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.metadata import MetadataStore
from octavo.protocol.errors import OctavoError

LOOK_SECONDS: Final = 30.0
"""Between two looks."""

OFFSETS_MAX: Final = 1000
"""Offsets whose lag is watched: each is a series of Prometheus, and may need a read from the bookies at each look."""

AT_ONCE_MAX: Final = 4
"""Partitions whose ends are read together: producers and consumers use the same bookies."""


class PartitionLag(NamedTuple):
    """The lag of a group in a partition."""

    group_id: str
    topic: str
    partition: int
    records: int


class LagWatch:
    """See the module."""

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        catalogue: Catalogue,
        leaders: Leaders,
        coordinators: Coordinators,
        *,
        steady_ms: Callable[[], int],
        offsets_max: int = OFFSETS_MAX,
    ) -> None:
        self._client = client
        self._store = store
        self._catalogue = catalogue
        self._leaders = leaders
        self._coordinators = coordinators
        self._steady_ms = steady_ms
        self._offsets_max = offsets_max
        self._lags = Lags()
        self.lags: tuple[PartitionLag, ...] = ()
        """As the last look found them."""
        self.behind_seconds: Mapping[str, float] = {}
        """For how long each group has been behind in some partition."""
        self.left_out = 0
        """Offsets that are not watched, because there are too many."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look at all groups of this gateway. An end that cannot be read stays as it was known."""
        topics = {topic.topic_id: topic for topic in self._catalogue.all()}
        chosen = watched(
            [one for coordinator in list(self._coordinators.running) for one in _groups_of(coordinator)],
            self._offsets_max,
        )
        offsets = [one for one in chosen.offsets if one.place.topic_id in topics]
        ends = await self._ends({one.place for one in offsets}, topics)
        self._note(self._lags.look(offsets, ends, self._steady_ms()), topics)
        self.left_out = chosen.left_out

    def _note(self, found: list[Lag], topics: Mapping[str, Topic]) -> None:
        self.lags = tuple(
            PartitionLag(one.group_id, topics[one.place.topic_id].name, one.place.partition, one.records)
            for one in found
        )
        behind: dict[str, float] = {}
        for one in found:
            behind[one.group_id] = max(behind.get(one.group_id, 0.0), one.behind_ms / 1000)
        self.behind_seconds = behind

    async def _ends(self, places: set[Place], topics: Mapping[str, Topic]) -> dict[Place, int]:
        at_once = asyncio.Semaphore(AT_ONCE_MAX)

        async def end(place: Place) -> int | None:
            async with at_once:
                return await self._end(topics[place.topic_id], place.partition)

        ordered = sorted(places)
        found = await asyncio.gather(*(end(place) for place in ordered))
        return {place: one for place, one in zip(ordered, found, strict=True) if one is not None}

    async def _end(self, topic: Topic, partition: int) -> int | None:
        led = self._leaders.find(topic, partition)
        if led is not None:
            return led.high_watermark
        password = topic.password_of_logs(self._catalogue.password)
        try:
            async with self._client.open_log(topic.log_name(partition), password=password) as log:
                return (await extent_of(log, Anchors(self._store, log.log_id), await log.refresh())).next_offset
        except OctavoError:
            return None


def _groups_of(coordinator: Coordinator) -> list[GroupOffsets]:
    """None where another gateway may coordinate them."""
    try:
        coordinator.log.check_leads()
    except RefusedError:
        return []
    groups = coordinator.log.commits.records
    return [
        GroupOffsets(group_id, record, has_members=coordinator.has_members(group_id))
        for group_id, record in groups.items()
    ]
