"""A connection to a gateway for a program that asks it something: one request at a time."""

import asyncio
from typing import Any, Final, Self

from octavo.gateway.wire.apis import FRAME_PREFIX_BYTES, VERSIONS, Api, frame_size, request_frame
from octavo.gateway.wire.entities import Answer, decode_answer, encode_request

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

ANSWER_SECONDS_MAX: Final = 30.0
"""A gateway that does not answer for so long hangs, or cannot be reached."""

_CLIENT: Final = "octavo"


class GatewayConnection:
    """See the module. Made by :meth:`open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect.

        Raises:
            OSError: The gateway cannot be reached; TimeoutError is one.
        """
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return cls(*await asyncio.open_connection(host, port))

    async def ask(self, api: Api, fields: Answer) -> Any:
        """The answer to a request, of the newest version that gateways offer.

        Raises:
            OSError: The gateway does not answer.
            MalformedError: The answer is not one.
        """
        version = VERSIONS[api].last
        self._number += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                self._writer.write(
                    request_frame(api, version, self._number, _CLIENT, encode_request(api, version, fields))
                )
                await self._writer.drain()
                size = frame_size(await self._reader.readexactly(FRAME_PREFIX_BYTES))
                if not FRAME_PREFIX_BYTES <= size <= ANSWER_BYTES_MAX:
                    raise ConnectionError(f"the gateway has sent a frame of {size} bytes")
                answer = await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the gateway has closed the connection") from error
        return decode_answer(api, version, answer[FRAME_PREFIX_BYTES:])

    def close(self) -> None:
        """End the connection."""
        self._writer.close()
