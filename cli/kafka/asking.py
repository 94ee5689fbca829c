"""Asks the gateways of a cluster what only they know: groups with their members, and offsets by time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from octavo.cli.kafka.connection import ClosedError, GatewayConnection
from octavo.cli.kafka.protection import Protection
from octavo.cli.session import CommandError, Session
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.gateways import GatewayAddress, registered
from octavo.gateway.wire.apis import Api
from octavo.gateway.wire.fields import MalformedError
from octavo.metadata import MetadataStore
from octavo.protocol.errors import UnauthorizedError

PATIENCE_SECONDS: Final = 15.0
"""A gateway that takes over from another one that was killed serves within ten seconds."""

_PAUSE_SECONDS: Final = 0.2

_END: Final = -1
"""A time that stands for the end of a partition."""

_LATER: Final = frozenset(
    {
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Refusals after which a client asks again."""

type Fields = Mapping[str, Any]


class Gateways:
    """The gateways of a cluster, with a connection to each that was asked. Made by :func:`asking`."""

    def __init__(
        self,
        addresses: Mapping[int, GatewayAddress],
        protection: Protection,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.addresses = addresses
        """By the numbers of the gateways."""
        self._protection = protection
        self._patience_seconds = patience_seconds
        self._open: dict[int, GatewayConnection] = {}

    async def ask(self, node_id: int, api: Api, fields: Fields) -> Any:
        """The answer of one gateway. Raises :class:`CommandError` if it does not answer."""
        if node_id not in self.addresses:
            raise CommandError(f"gateway {node_id} has come since this command began; run it again")
        address = self.addresses[node_id]
        try:
            if node_id not in self._open:
                self._open[node_id] = await GatewayConnection.open(address.host, address.port, self._protection)
            return await self._open[node_id].ask(api, fields)
        except (OSError, MalformedError, UnauthorizedError) as error:
            if (lost := self._open.pop(node_id, None)) is not None:
                lost.close()
            reason = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
            advice = self._protection.advice if isinstance(error, ClosedError) else ""
            raise CommandError(f"gateway {node_id} at {address.host}:{address.port}: {reason}{advice}") from error

    async def ask_any(self, api: Api, fields: Fields) -> Any:
        """The answer of one that answers. Raises :class:`CommandError` if none does."""
        *others, last = sorted(self.addresses)
        for node_id in others:
            with suppress(CommandError):  # it may have been killed a moment ago
                return await self.ask(node_id, api, fields)
        return await self.ask(last, api, fields)

    async def ask_coordinator(self, group_id: str, api: Api, fields: Fields) -> Any:
        """The answer of the gateway that coordinates a group. Raises :class:`RefusedError` where it has an error of its
        own; asks again for a while while there is no coordinator."""
        return await self._ask_again(lambda: self._ask_coordinator(group_id, api, fields))

    async def _ask_coordinator(self, group_id: str, api: Api, fields: Fields) -> Any:
        found = await self.ask_any(Api.FIND_COORDINATOR, {"key": group_id, "key_type": 0})
        _check(found.error_code, found.error_message)
        answer = await self.ask(found.node_id, api, fields)
        _check(first_code(answer))
        return answer

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        """The first offset with a time at or after this one, or else the end; -1: the end, -2: the beginning."""
        return int(await self._ask_again(lambda: self._offset_at(topic, partition, time_ms)))

    async def ends(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The ends of partitions, each a topic and a number: with one request to each leader.

        Raises:
            RefusedError: One has no leader, or is not there.
            CommandError: A gateway does not answer.
        """
        wanted = sorted(set(places))
        leaders = await self._leaders({topic for topic, _ in wanted}) if wanted else {}
        found: dict[tuple[str, int], int] = {}
        for node_id in sorted({leaders[place] for place in wanted if place in leaders}):
            asked: dict[str, list[Fields]] = {}
            for topic, partition in (place for place in wanted if leaders.get(place) == node_id):
                asked.setdefault(topic, []).append(_wanted_offset(partition, _END))
            answer = await self.ask(node_id, Api.LIST_OFFSETS, _list_offsets(asked))
            for topic in answer.topics:
                for one in topic.partitions:
                    if Code(one.error_code.value) is Code.NONE:
                        found[topic.name, one.partition_index] = int(one.offset)
        for place in wanted:
            if place not in found:  # its leader has just changed, or it is not there: once more, with patience
                found[place] = await self.offset_at(*place, _END)
        return found

    async def _leaders(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """The gateways that lead the partitions of topics, as far as they are known."""
        metadata = await self.ask_any(Api.METADATA, _metadata(sorted(topics)))
        return {
            (topic.name, one.partition_index): one.leader_id
            for topic in metadata.topics
            for one in topic.partitions
            if Code(one.error_code.value) is Code.NONE
        }

    async def _offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        metadata = await self.ask_any(Api.METADATA, _metadata([topic]))
        described = metadata.topics[0]
        _check(described.error_code, f"there is no topic {topic!r}")
        leaders = {one.partition_index: one for one in described.partitions}
        if partition not in leaders:
            raise CommandError(f"there is no partition {partition} of the topic {topic!r}")
        _check(leaders[partition].error_code)
        asked = _list_offsets({topic: [_wanted_offset(partition, time_ms)]})
        answer = await self.ask(leaders[partition].leader_id, Api.LIST_OFFSETS, asked)
        one = answer.topics[0].partitions[0]
        _check(one.error_code)
        return int(one.offset) if one.offset >= 0 else await self._offset_at(topic, partition, _END)

    async def _ask_again(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_seconds
        while True:
            try:
                return await attempt()
            except RefusedError as error:
                if error.code not in _LATER or loop.time() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """End all connections."""
        for one in self._open.values():
            one.close()


@asynccontextmanager
async def asking(session: Session) -> AsyncIterator[Gateways]:
    """The gateways of the cluster, for the time of a block. Raises :class:`CommandError` if there are none."""
    protection = Protection.from_environment()
    async with await session.open_metadata() as store:
        addresses = await addresses_in(store)
    gateways = Gateways(addresses, protection)
    try:
        yield gateways
    finally:
        gateways.close()


async def addresses_in(store: MetadataStore) -> dict[int, GatewayAddress]:
    """The gateways that take part, by their numbers. Raises :class:`CommandError` if there are none."""
    found = [one.address for one in await registered(store)]
    if not found:
        raise CommandError("no gateway runs: only gateways know the members of consumer groups; see `octavo gateway`")
    return {one.node_id: one for one in found}


def first_code(answer: Any) -> Any:
    """The first error in an answer, wherever it stands; the code of no error if there is none."""
    found = Code.NONE
    for name in getattr(answer, "__dataclass_fields__", {}):
        value = getattr(answer, name)
        if name == "error_code":
            found = Code(value.value)
        elif isinstance(value, tuple):
            found = next((code for one in value if (code := first_code(one)) is not Code.NONE), Code.NONE)
        if found is not Code.NONE:
            break
    return found


def _metadata(topics: list[str]) -> Fields:
    """The fields of a request for the leaders of topics."""
    return {
        "topics": [{"name": topic} for topic in topics],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def _wanted_offset(partition: int, time_ms: int) -> Fields:
    return {"partition_index": partition, "current_leader_epoch": -1, "timestamp": time_ms}


def _list_offsets(asked: Mapping[str, list[Fields]]) -> Fields:
    """The fields of a request for offsets of partitions, by topic."""
    topics = [{"name": topic, "partitions": partitions} for topic, partitions in asked.items()]
    return {"replica_id": -1, "isolation_level": 0, "topics": topics}


def _check(code: Any, text: str | None = None) -> None:
    """Raise :class:`RefusedError` for an error."""
    found = Code(code.value)
    if found is not Code.NONE:
        raise RefusedError(found, text or found.name)
