"""From a request to its endpoint: who may ask, for what, with which values."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from octavo.bookie.admin.authorization import Visitor, visitor_of
from octavo.bookie.admin.endpoints import Administration, Call, Endpoint
from octavo.bookie.admin.fields import FieldError, read_body, read_query
from octavo.bookie.admin.http_messages import JSON, HttpAnswer, HttpError, HttpRequest
from octavo.bookie.admin.ledger_view import Sight
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, OctavoError
from octavo.security.audit import Audit

_TARGET_CHARACTERS_MAX = 8192


class Router:
    """Answers requests with the endpoints of a table. ``hosts``: names under which clients over TCP may address the
    bookie, besides IP addresses and ``localhost``."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        admin: Administration,
        hosts: Sequence[str] = (),
        *,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit or Audit()
        self._admin = admin
        self._hosts = frozenset(host.lower() for host in hosts) | {"localhost"}
        self._endpoints = [(endpoint, endpoint.path.split("/")) for endpoint in endpoints]

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request. Raises :class:`HttpError`."""
        self._check_host(request)
        visitor = None if request.names is None else visitor_of(request, self._admin.subject)
        endpoint, names = self._find(request)
        self._check_rights(endpoint, visitor, request)
        values = self._values(endpoint, request, names)
        try:
            answer = await endpoint.handle(Call(self._admin, values, self._sight(visitor, request)))
        except (MetadataUnavailableError, MetadataError) as error:
            raise HttpError(503, type(error).__name__, error.message, retryable=error.retryable) from error
        except OctavoError as error:
            raise HttpError(409, type(error).__name__, error.message, retryable=error.retryable) from error
        if endpoint.guarded:
            name = None if visitor is None else visitor.name
            self._audit.note(
                "admin",
                principal=name, peer=request.peer,
                method=endpoint.method, path=endpoint.path, values=_described(values),
            )  # fmt: skip
        return answer

    def _check_rights(self, endpoint: Endpoint, visitor: Visitor | None, request: HttpRequest) -> None:
        what = f"{endpoint.method} {endpoint.path}"
        if visitor is not None:
            try:
                visitor.check(guarded=endpoint.guarded, what=what)
            except HttpError:
                self._audit.refused(
                    "admin", "role",
                    principal=visitor.name, peer=request.peer, method=endpoint.method, path=endpoint.path,
                )  # fmt: skip
                raise
        elif endpoint.guarded and not request.trusted:
            self._audit.refused("admin", "not on the socket", method=endpoint.method, path=endpoint.path)
            raise HttpError(
                403, "Forbidden",
                f"{what} is answered on the socket admin.sock in the data directory, and not over TCP without TLS",
            )  # fmt: skip

    def _sight(self, visitor: Visitor | None, request: HttpRequest) -> Sight:
        """How much of ledgers the client may see (rule S6)."""
        if request.trusted:
            return Sight.ALL
        if visitor is not None:
            return Sight.ALL if visitor.may_read else Sight.NONE
        ready = self._admin.subject.ready
        asks_no_client = ready is not None and ready.service.access is None
        return Sight.NOT_PRIVATE if asks_no_client else Sight.NONE

    def _check_host(self, request: HttpRequest) -> None:
        """A web page can let a name of its own point to this machine, and then read what the bookie answers to it (DNS
        rebinding). It cannot do that with an address; no web page reaches the socket of the file system; and with TLS
        the browser compares the name with the bookie's certificate."""
        if request.trusted or request.names is not None or "host" not in request.headers:
            return
        host = request.headers["host"]
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            if name.lower() not in self._hosts:
                raise HttpError(403, "Forbidden", f"this bookie is not {host[:100]!r}") from None

    def _find(self, request: HttpRequest) -> tuple[Endpoint, Mapping[str, str]]:
        path = request.target.partition("?")[0]
        if len(request.target) > _TARGET_CHARACTERS_MAX or not path.startswith("/"):
            raise HttpError(400, "BadRequest", "the target of the request must be a path")
        try:
            steps = [unquote_to_bytes(step).decode() for step in path.split("/")]
        except UnicodeDecodeError:
            raise HttpError(404, "NotFound", "there is no such path; see /openapi.json") from None
        method = "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for endpoint, pattern in self._endpoints:
            names = _match(pattern, steps)
            if names is None:
                continue
            if endpoint.method == method:
                return endpoint, names
            allowed += ["GET", "HEAD"] if endpoint.method == "GET" else [endpoint.method]
        if not allowed:
            raise HttpError(404, "NotFound", "there is no such path; see /openapi.json")
        methods = ", ".join(dict.fromkeys(allowed))
        raise HttpError(405, "MethodNotAllowed", f"{path[:200]} takes {methods}", headers={"Allow": methods})

    def _values(self, endpoint: Endpoint, request: HttpRequest, names: Mapping[str, str]) -> Mapping[str, Any]:
        if request.body and endpoint.in_body is None:
            raise HttpError(400, "InvalidArgument", f"{endpoint.method} {endpoint.path} takes no body")
        try:
            values = {field.name: field.read(names[field.name]) for field in endpoint.in_path}
            values |= read_query(request.target.partition("?")[2], endpoint.in_query)
            if endpoint.in_body is not None:
                # A web page can send a form to any host without being asked for permission, but no JSON.
                content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if content_type != JSON:
                    raise HttpError(415, "UnsupportedMediaType", f"send a JSON body with Content-Type: {JSON}")
                values |= read_body(request.body, endpoint.in_body)
        except FieldError as error:
            raise HttpError(400, "InvalidArgument", str(error)) from error
        return values


def _described(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value)[:200] for name, value in values.items() if value is not None}


def _match(pattern: Sequence[str], steps: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(steps):
        return None
    names: dict[str, str] = {}
    for wanted, step in zip(pattern, steps, strict=True):
        if wanted.startswith("{"):
            names[wanted.strip("{}")] = step
        elif wanted != step:
            return None
    return names
