"""Connections of simulated clients to gateways, by the gateway's own codec: several requests may wait on each."""

import asyncio
import random
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Self

from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import Api, last_plain_version, request_frame
from octavo.gateway.wire.entities import decode_answer, encode_request
from simulation.world import World

PORT: Final = 9092

_SIZE: Final = struct.Struct(">i")


class NoAnswerError(Exception):
    """A gateway cannot be reached, or has not answered in time. What was asked may have happened."""


class Connection:
    """One connection. Answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: deque[tuple[Api, int, asyncio.Future[Any]]] = deque()
        self._reading = asyncio.ensure_future(self._read())
        self.is_open = True

    @classmethod
    async def connect(cls, address: str, seconds: float) -> Self:
        """Raises :class:`NoAnswerError`."""
        try:
            async with asyncio.timeout(seconds):
                return cls(*await asyncio.open_connection(address, PORT))
        except (OSError, TimeoutError) as error:
            raise NoAnswerError(f"{address} cannot be reached: {error!r}") from error

    def send(self, api: Api, values: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Send a request; the future of its answer, which fails with :class:`NoAnswerError`."""
        version = last_plain_version(api)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            answer.set_exception(NoAnswerError("the connection is closed"))
            answer.exception()  # its owner may have given up
            return answer
        self._number += 1
        self._waiting.append((api, version, answer))
        self._writer.write(request_frame(api, version, self._number, "simulated", encode_request(api, version, values)))
        return answer

    async def _read(self) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                whole = await self._reader.readexactly(size)
                api, version, answer = self._waiting.popleft()
                if not answer.done():
                    answer.set_result(decode_answer(api, version, whole[_SIZE.size :]))
        except (OSError, asyncio.IncompleteReadError):
            self.close()

    def close(self) -> None:
        """Break it off. What is under way may still reach the gateway."""
        if not self.is_open:
            return
        self.is_open = False
        self._writer.transport.abort()
        self._reading.cancel()
        for _, _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(NoAnswerError("the connection was lost"))
                answer.exception()  # its owner may have given up
        self._waiting.clear()


class Kafka:
    """The connections of one client process, by gateway and purpose: a request that waits holds up those behind it."""

    def __init__(self, world: World, rng: random.Random, addresses: list[str], seconds: float) -> None:
        """``seconds``: how long the client waits for an answer."""
        self.world = world
        self.rng = rng
        self.seconds = seconds
        self._addresses = addresses
        self._connections: dict[tuple[str, str], Connection] = {}
        self._leaders: dict[int, str] = {}
        """Of partitions, as long as they answer."""
        self._coordinator: str | None = None

    async def connection(self, address: str, purpose: str) -> Connection:
        """The connection for a purpose, made if there is none. Raises :class:`NoAnswerError`."""
        known = self._connections.get((address, purpose))
        if known is not None and known.is_open:
            return known
        made = self._connections[address, purpose] = await Connection.connect(address, self.seconds)
        return made

    async def answer(self, connection: Connection, asked: asyncio.Future[Any], extra_seconds: float = 0.0) -> Any:
        """Wait for an answer. Raises :class:`NoAnswerError`; the connection is over then."""
        try:
            async with asyncio.timeout(self.seconds + extra_seconds):
                return await asked
        except TimeoutError as error:
            connection.close()
            raise NoAnswerError("no answer came in time") from error

    async def ask(
        self, address: str, purpose: str, api: Api, values: Mapping[str, Any], extra_seconds: float = 0.0
    ) -> Any:
        """The answer to a request. Raises :class:`NoAnswerError`."""
        connection = await self.connection(address, purpose)
        return await self.answer(connection, connection.send(api, values), extra_seconds)

    def drop(self, address: str, purpose: str) -> None:
        """Break a connection off."""
        connection = self._connections.pop((address, purpose), None)
        if connection is not None:
            connection.close()

    def any_address(self) -> str:
        """One of the gateways."""
        return self.rng.choice(self._addresses)

    def close(self) -> None:
        """Break all connections off."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- where to ask -------------------------------------------------------------------------------------------------

    async def leader(self, topic: str, partition: int) -> str:
        """The gateway that leads a partition, as one of the gateways has told. The topic is made if there is none.
        Raises :class:`NoAnswerError`."""
        if partition not in self._leaders:
            await self._learn_leaders(topic)
        address = self._leaders.get(partition)
        if address is None:
            raise NoAnswerError(f"partition {partition} has no leader")
        return address

    def forget_leader(self, partition: int) -> None:
        """It does not answer as a leader; another one may lead."""
        self._leaders.pop(partition, None)

    async def _learn_leaders(self, topic: str) -> None:
        asked = {
            "topics": [{"name": topic}], "allow_auto_topic_creation": True,
            "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
        }  # fmt: skip
        answer = await self.ask(self.any_address(), "metadata", Api.METADATA, asked, extra_seconds=0.3)
        hosts = {one.node_id: one.host for one in answer.brokers}
        for one in answer.topics:
            for partition in one.partitions:
                if partition.leader_id in hosts:
                    self._leaders[int(partition.partition_index)] = hosts[partition.leader_id]

    async def coordinator(self, group: str) -> str:
        """The gateway that coordinates a group, as one of the gateways has told. Raises :class:`NoAnswerError`."""
        if self._coordinator is not None:
            return self._coordinator
        asked = {"key": group, "key_type": 0}
        answer = await self.ask(self.any_address(), "metadata", Api.FIND_COORDINATOR, asked, extra_seconds=0.3)
        if code_of(answer) is not Code.NONE:
            raise NoAnswerError(f"there is no coordinator: {code_of(answer).name}")
        self._coordinator = str(answer.host)
        return self._coordinator

    def forget_coordinator(self) -> None:
        """It does not answer as a coordinator; another one may be it."""
        self._coordinator = None


def code_of(answer: Any) -> Code:
    """The error code of an answer, or of a part of it."""
    return Code(answer.error_code.value)
