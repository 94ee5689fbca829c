"""A request of the administration interface, its answer, and its errors. Pure."""

import json
from collections.abc import Mapping
from dataclasses import field

from octavo.protocol.light_dataclass import dataclass

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A complete request."""

    method: str
    target: str
    """As sent: path and query."""
    headers: Mapping[str, str] = field(repr=False)
    """Names in lower case. Of a header that came several times, the values joined by commas. One may be a key."""
    body: bytes = b""
    trusted: bool
    """It came through the socket of the file system, whose permissions say who may use it; not over TCP."""
    names: tuple[str, ...] | None = None
    """The names of ours in the client's certificate; None: the connection has no TLS."""
    peer: str | None = None
    """``HOST:PORT`` of a client over TCP."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """A request that is refused. ``error`` is a word for programs, ``message`` a sentence for people."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.retryable = retryable
        self.headers = dict(headers or {})

    def answer(self) -> HttpAnswer:
        """The answer that tells the client."""
        value = {"error": self.error, "message": self.message, "retryable": self.retryable}
        return HttpAnswer(self.status, encode(value), headers=self.headers)


def encode(value: object) -> bytes:
    """A JSON value and a newline, as shells like it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def json_answer(value: object, status: int = 200) -> HttpAnswer:
    """An answer that is one JSON value."""
    return HttpAnswer(status, encode(value))
