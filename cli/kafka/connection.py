"""A connection to a gateway for a program that asks it something: one request at a time."""

import asyncio
import ssl
from typing import Any, Final, Self

from octavo.cli.kafka.protection import Protection
from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import (
    FRAME_PREFIX_BYTES,
    Api,
    answer_header_size,
    frame_size,
    last_plain_version,
    request_frame,
)
from octavo.gateway.wire.entities import Answer, decode_answer, encode_request
from octavo.protocol.errors import UnauthorizedError
from octavo.security.loopback import is_loopback
from octavo.security.salted_keys import MECHANISM

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

ANSWER_SECONDS_MAX: Final = 30.0
"""A gateway that does not answer for so long hangs, or cannot be reached."""

_CLIENT: Final = "octavo"


class ClosedError(ConnectionError):
    """The gateway has closed the connection instead of an answer: also the way in which it refuses strangers."""

    def __str__(self) -> str:
        return "the gateway has closed the connection"


class GatewayConnection:
    """See the module. Made by :meth:`open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, host: str, port: int, protection: Protection) -> Self:
        """Connect, and authenticate where the gateway asks who its clients are.

        Raises:
            OSError: The gateway cannot be reached, or its certificate is not accepted; TimeoutError is one.
            UnauthorizedError: It refuses the key, or has not proved that it knows it.
            MalformedError: It does not answer as a gateway.
        """
        connection = await cls._connected(host, port, protection.context())
        try:
            await connection._authenticate(host, protection)
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    async def _connected(cls, host: str, port: int, context: ssl.SSLContext | None) -> Self:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            if context is not None:
                try:
                    return cls(*await asyncio.open_connection(host, port, ssl=context, server_hostname=host))
                except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError) as error:
                    # It closes what does not begin as a request does. Within this host no other host reads along.
                    if not is_loopback(host):
                        raise ConnectionError(
                            "the gateway has ended the TLS handshake: it may not speak TLS"
                        ) from error
            return cls(*await asyncio.open_connection(host, port))

    @property
    def over_tls(self) -> bool:
        """Whether the gateway alone can read what is said."""
        return self._writer.get_extra_info("ssl_object") is not None

    async def _authenticate(self, host: str, protection: Protection) -> None:
        if protection.key_file is None or not (self.over_tls or is_loopback(host)):
            return  # a key is used over TLS or within one host only
        login = protection.login()
        chosen = await self.ask(Api.SASL_HANDSHAKE, {"mechanism": MECHANISM})
        if chosen.error_code.value == Code.ILLEGAL_SASL_STATE:
            return  # it asks no client who it is, or knows this one by its certificate
        if chosen.error_code.value != Code.NONE:
            raise UnauthorizedError(f"the gateway does not offer {MECHANISM}")
        login.check(await self._said(login.last(await self._said(login.first()))))

    async def _said(self, message: bytes) -> bytes:
        """The answer to a message of the exchange."""
        answer = await self.ask(Api.SASL_AUTHENTICATE, {"auth_bytes": message})
        if answer.error_code.value != Code.NONE:
            raise UnauthorizedError(answer.error_message or Code(answer.error_code.value).name)
        return bytes(answer.auth_bytes)

    async def ask(self, api: Api, fields: Answer) -> Any:
        """The answer to a request, of the newest version without tagged fields, if there is one.

        Raises:
            OSError: The gateway does not answer.
            MalformedError: The answer is not one.
        """
        version = last_plain_version(api)
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
            raise ClosedError from error
        return decode_answer(api, version, answer[answer_header_size(api, version) :])

    def close(self) -> None:
        """End the connection."""
        self._writer.close()
