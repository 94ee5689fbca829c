"""Topics and consumer groups for the console: one look at a time, however many pages show it.

Topics are read from the metadata, and the ends of their partitions from the logs, as `octavo topic` does; groups are
asked for at the gateways, as `octavo group` does, with the TLS and the key of this process. The console has no password
for private topics.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from octavo.bookie.admin.http_messages import HttpError
from octavo.cli.session import CommandError
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.cli.kafka.asking import Gateways
    from octavo.client.client import Client
    from octavo.metadata import MetadataStore

# ruff: noqa: PLC0415 - a console of a cluster without gateways needs none of it

TOPICS_MAX: Final = 200
"""In the list: the logs of each are looked at."""

GROUPS_MAX: Final = 100
"""In the list: each takes requests to gateways."""

PARTITIONS_MAX: Final = 100
"""Of a page: the log of each is read."""

LIST_SECONDS: Final = 10.0
"""A list that is not older answers the next page, too."""

ONE_SECONDS: Final = 2.0
"""The same, for one topic or group."""

KEPT_MAX: Final = 16
"""Looks that are remembered."""

PATIENCE_SECONDS: Final = 3.0
"""Where a group has no coordinator for the moment; the page asks again."""


class _Look:
    """The latest look at something. ``at``: when; below 0: never."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.at = -1.0
        self.seen: dict[str, Any] = {}


class KafkaWatch:
    """See the module. ``clock`` gives seconds and goes on evenly."""

    def __init__(self, client: "Client", store: "MetadataStore", clock: Callable[[], float]) -> None:
        self._client = client
        self._store = store
        self._clock = clock
        self._looks: dict[tuple[object, ...], _Look] = {}

    async def topics(self) -> dict[str, Any]:
        """The topics, up to :data:`TOPICS_MAX`. Raises :class:`OctavoError`."""
        return await self._fresh(("topics",), LIST_SECONDS, self._topics)

    async def topic(self, name: str, first: int) -> dict[str, Any]:
        """A topic, with its partitions from ``first`` on, up to :data:`PARTITIONS_MAX`. Raises :class:`HttpError` if
        there is none, and :class:`OctavoError`."""
        return await self._fresh(("topic", name, first), ONE_SECONDS, lambda: self._topic(name, first))

    async def groups(self) -> dict[str, Any]:
        """The groups, up to :data:`GROUPS_MAX`; ``trouble`` says why there are none to be seen."""
        return await self._fresh(("groups",), LIST_SECONDS, self._groups)

    async def group(self, name: str) -> dict[str, Any]:
        """A group with members and offsets. Raises :class:`HttpError` if there is none, or no gateway answers."""
        return await self._fresh(("group", name), ONE_SECONDS, lambda: self._group(name))

    async def _fresh(
        self, key: tuple[object, ...], seconds: float, look: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        found = self._looks.pop(key, None) or _Look()
        self._looks[key] = found
        while len(self._looks) > KEPT_MAX:
            del self._looks[next(iter(self._looks))]
        async with found.lock:
            if found.at < 0 or self._clock() - found.at > seconds:
                found.seen, found.at = await look(), self._clock()
        return found.seen

    # --- topics -------------------------------------------------------------------------------------------------------

    async def _topics(self) -> dict[str, Any]:
        from octavo.cli.kafka.topics import kept, overviews_of, topic_as_json
        from octavo.gateway.topics.reading import read_topics

        found = await read_topics(self._store)
        items = []
        for topic in found[:TOPICS_MAX]:
            size = sum(one.bytes for one in (await overviews_of(self._store, topic)).values())
            items.append(topic_as_json(topic) | {"bytes": size, "keeps": kept(topic), "private": topic.is_private})
        return {"items": items, "more": len(found) > TOPICS_MAX, "shown_max": TOPICS_MAX}

    async def _topic(self, name: str, first: int) -> dict[str, Any]:
        from octavo.cli.kafka.topics import kept, partitions_of, topic_as_json
        from octavo.gateway.codes import RefusedError
        from octavo.gateway.topics.reading import read_topic

        try:
            topic = await read_topic(self._store, name)
        except RefusedError as error:
            raise HttpError(404, "NoSuchTopic", error.text) from error
        numbers = range(first, min(topic.partitions, first + PARTITIONS_MAX))
        partitions = await partitions_of(self._client, self._store, topic, b"", numbers)
        return topic_as_json(topic) | {
            "keeps": kept(topic),
            "private": topic.is_private,
            "partition_list": [one._asdict() for one in partitions],
            "first": first,
            "shown_max": PARTITIONS_MAX,
        }

    # --- groups -------------------------------------------------------------------------------------------------------

    async def _groups(self) -> dict[str, Any]:
        empty = {"items": [], "more": False, "shown_max": GROUPS_MAX}
        try:
            async with self._asking() as gateways:
                return {**empty, **await _listed(gateways), "trouble": None}
        except HttpError as error:
            return {**empty, "trouble": error.message}

    async def _group(self, name: str) -> dict[str, Any]:
        async with self._asking() as gateways:
            from octavo.cli.kafka.groups import described_groups, member_as_json, offsets_of, protocol_of

            found = await described_groups(gateways, [name])
            if not found:
                raise HttpError(404, "NoSuchGroup", f"there is no group {name!r}")
            (group,) = found
            offsets = await offsets_of(gateways, name)
            return {
                "group": name,
                "protocol": await protocol_of(gateways, name),
                "state": group.group_state,
                "assignor": group.protocol_data or None,
                "members": [member_as_json(one) for one in group.members],
                "offsets": [one._asdict() for one in offsets],
            }

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator["Gateways"]:
        """The gateways of the cluster, for the time of a block."""
        with _told():
            from octavo.cli.kafka.asking import Gateways, addresses_in
            from octavo.cli.kafka.protection import Protection

            protection = Protection.from_environment()
            gateways = Gateways(await addresses_in(self._store), protection, patience_seconds=PATIENCE_SECONDS)
            try:
                yield gateways
            finally:
                gateways.close()


async def _listed(gateways: "Gateways") -> dict[str, Any]:
    from octavo.cli.kafka.groups import described_groups, group_ids, offsets_of, protocol_of

    names = await group_ids(gateways)
    items = [
        {
            "group": group.group_id,
            "protocol": await protocol_of(gateways, group.group_id),
            "state": group.group_state,
            "members": len(group.members),
            "lag": sum(one.lag for one in await offsets_of(gateways, group.group_id)),
        }
        for group in await described_groups(gateways, names[:GROUPS_MAX])
    ]
    return {"items": items, "more": len(names) > GROUPS_MAX}


@contextmanager
def _told() -> Iterator[None]:
    """Raises :class:`HttpError` where gateways do not say what is asked."""
    from octavo.gateway.codes import RefusedError

    try:
        yield
    except ModuleNotFoundError as error:
        text = f"consumer groups need {error.name}: install Octavo with its extra `kafka` where this console runs"
        raise HttpError(409, "NotInstalled", text) from error
    except RefusedError as error:
        raise HttpError(409, "Refused", error.text) from error
    except (CommandError, InvalidArgumentError) as error:
        raise HttpError(409, "Refused", str(error)) from error
