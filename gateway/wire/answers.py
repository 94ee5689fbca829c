"""An answer of a service, encoded in the version of its request, and noted in the request's outcome. Pure."""

from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.entities import Answer, encode_answer
from octavo.gateway.wire.outcome import codes_in


def answered(request: Request, answer: Answer) -> list[bytes | bytearray]:
    """The answer behind its header. ``kio`` encodes it."""
    request.outcome.note(codes_in(answer))
    return [encode_answer(request.api, request.version, answer)]
