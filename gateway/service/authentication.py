"""The answers to SaslHandshake and SaslAuthenticate (rule K14)."""

from contextlib import AsyncExitStack

from octavo.gateway.codes import Code
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import decode_request


class AuthenticationService:
    """See the module. The gate of the connection has the exchange."""

    async def handshake(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to SaslHandshake. After version 0, messages would have no header, as in Kafka before 1.0: it is
        offered because clients take a server without it for one that knows no SASL, and refused."""
        asked = decode_request(request.api, request.version, request.body)
        code, mechanisms = Code.UNSUPPORTED_VERSION, tuple[str, ...]()
        if request.version > 0:
            code, mechanisms = request.gate.choose(asked.mechanism)
        return answered(request, {"error_code": code, "mechanisms": mechanisms})

    async def authenticate(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to SaslAuthenticate."""
        asked = decode_request(request.api, request.version, request.body)
        code, text, message = request.gate.authenticate(asked.auth_bytes)
        answer = {"error_code": code, "error_message": text, "auth_bytes": message, "session_lifetime": 0}
        return answered(request, answer)
