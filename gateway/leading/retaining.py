"""Retention of topics: from time to time, each gateway applies it to the partitions of its share (rule K15).

Entries grow old only while a client leads their log, and looks at it (rule P19). So a gateway leads each partition of
its share whose topic has a retention, whether or not a client has asked for it.
"""

import asyncio
import contextlib
from typing import Final

from octavo.client.log.documents.chain import Retention
from octavo.gateway.codes import RefusedError
from octavo.gateway.leading.gateways import Gateways
from octavo.gateway.leading.leaders import Leaders
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.gateway.topics.settings import KEEP_ALL, TopicRetention
from octavo.protocol.errors import OctavoError

LOOK_SECONDS: Final = 60.0
"""Between two looks at all partitions."""

AT_ONCE_MAX: Final = 4
"""Partitions that are looked at together: producers and consumers use the same bookies and the same store."""


def retention_of(retention: TopicRetention) -> Retention:
    """The retention of a topic, as the logs of its partitions understand it."""
    return Retention(None if retention.ms is None else retention.ms / 1000, retention.bytes)


class Retaining:
    """See the module."""

    def __init__(self, catalogue: Catalogue, leaders: Leaders, gateways: Gateways) -> None:
        self._catalogue = catalogue
        self._leaders = leaders
        self._gateways = gateways

    async def run(self) -> None:
        """Look at all partitions again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Apply the retention of each topic to the partitions of this gateway. What fails is done at the next look."""
        at_once = asyncio.Semaphore(AT_ONCE_MAX)
        topics = [topic for topic in self._catalogue.all() if topic.settings.retention != KEEP_ALL]
        own = [
            (topic, partition)
            for topic in topics
            for partition in range(topic.partitions)
            if self._gateways.is_own(topic.log_name(partition))
        ]
        await asyncio.gather(*(self._retain(topic, partition, at_once) for topic, partition in own))

    async def _retain(self, topic: Topic, partition: int, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            with contextlib.suppress(RefusedError, OctavoError):
                led = await self._leaders.get(topic, partition)
                # Another gateway may have changed the topic: by the settings as they are stored now.
                now = await self._catalogue.look_again(topic)
                if now is not None and now.settings.retention != KEEP_ALL:
                    await led.retain(retention_of(now.settings.retention))
