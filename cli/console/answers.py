"""The answers of the console's server: the page's own files, the state of the cluster, and what operators change."""

import mimetypes
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from octavo.bookie.admin.fields import Field, FieldError, read_body, read_query
from octavo.bookie.admin.http_messages import JSON, HttpAnswer, HttpError, HttpRequest, json_answer
from octavo.bookie.admin.ledger_view import STATES, list_page, show
from octavo.cli.console.access import HEADERS, carries_token
from octavo.cli.console.entries import ENTRIES_MAX, entries_as_json
from octavo.cli.console.kafka_watch import KafkaWatch
from octavo.cli.console.log_view import log_as_json
from octavo.cli.console.logs_watch import LogsWatch
from octavo.cli.console.observer import Observer
from octavo.cli.console.switches import Switches
from octavo.cli.own_host import Address, is_own_host
from octavo.metadata.cluster.repair_states import REASON_CHARACTERS_MAX
from octavo.protocol.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    OctavoError,
    UnauthorizedError,
)
from octavo.protocol.ids import ID_MAX, LedgerId
from octavo.repair.operate import operators

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.metadata import MetadataStore

LEDGERS_PER_PAGE = 50

_BOOKIE = Field(name="bookie", kind="string", text="Id of the bookie.", required=True, length_max=256)


class Cluster(NamedTuple):
    """The sources of the answers."""

    client: "Client"
    store: "MetadataStore"
    observer: Observer
    switches: Switches
    logs: LogsWatch
    kafka: KafkaWatch
    shows_entries: bool


type Values = Mapping[str, Any]
type Handler = Callable[[Cluster, Values], Awaitable[Any]]


class Endpoint(NamedTuple):
    """A path below /api, and the function that answers it. ``{...}`` in the path takes one step."""

    method: str
    path: str
    handle: Handler
    fields: Sequence[Field] = ()
    """Of the query, or of the body of a POST."""


async def _state(cluster: Cluster, values: Values) -> Any:
    return await cluster.observer.state(values.get("after"))


async def _ledgers(cluster: Cluster, values: Values) -> Any:
    page = await list_page(
        cluster.store,
        after=values.get("after"),
        limit=LEDGERS_PER_PAGE,
        state=values.get("state"),
        bookie=values.get("bookie"),
    )
    return {"items": page.ledgers, "next": page.after}


async def _ledger(cluster: Cluster, values: Values) -> Any:
    text = values["step"]
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > ID_MAX:
        raise HttpError(404, "NoSuchLedger", "the id of a ledger is a whole number")
    return await show(cluster.store, LedgerId(int(text)))


async def _logs(cluster: Cluster, values: Values) -> Any:
    return await cluster.logs.logs(values.get("prefix", ""))


async def _log(cluster: Cluster, values: Values) -> Any:
    return await log_as_json(cluster.client, cluster.store, values["step"])


async def _entries(cluster: Cluster, values: Values) -> Any:
    _check_shows_entries(cluster)
    name, count = values["step"], int(values.get("count", 50))
    keys = ("first", "last", "at", "contains", "field")
    asked = {key: values[key] for key in keys if values.get(key) not in {None, ""}}
    return await entries_as_json(cluster.client, name, count=count, **asked)


async def _topics(cluster: Cluster, _values: Values) -> Any:
    return await cluster.kafka.topics()


async def _topic(cluster: Cluster, values: Values) -> Any:
    return await cluster.kafka.topic(values["step"], int(values.get("first", 0)))


async def _records(cluster: Cluster, values: Values) -> Any:
    from octavo.cli.console.records import records_as_json  # noqa: PLC0415 - only where there are topics

    _check_shows_entries(cluster)
    asked = {key: values[key] for key in ("offset", "at") if values.get(key) not in {None, ""}}
    partition, count = int(values.get("partition", 0)), int(values.get("count", 50))
    return await records_as_json(cluster.client, cluster.store, values["step"], partition, count=count, **asked)


async def _groups(cluster: Cluster, _values: Values) -> Any:
    return await cluster.kafka.groups()


async def _group(cluster: Cluster, values: Values) -> Any:
    return await cluster.kafka.group(values["step"])


def _check_shows_entries(cluster: Cluster) -> None:
    if not cluster.shows_entries:
        raise HttpError(403, "Forbidden", "this console shows no entries; `octavo console --entries` does")


async def _hold(cluster: Cluster, values: Values) -> Any:
    await operators.hold(
        cluster.store, values["bookie"], seconds=values["seconds"], reason=values.get("reason", ""), now_ms=_now_ms()
    )


async def _release(cluster: Cluster, values: Values) -> Any:
    await operators.release(cluster.store, values["bookie"], now_ms=_now_ms())


async def _drain(cluster: Cluster, values: Values) -> Any:
    await operators.drain(cluster.store, values["bookie"], now_ms=_now_ms())


async def _undrain(cluster: Cluster, values: Values) -> Any:
    await operators.undrain(cluster.store, values["bookie"])


async def _read_only(cluster: Cluster, values: Values) -> Any:
    await cluster.switches.switch(values["bookie"], values.get("reason", ""))


async def _writable(cluster: Cluster, values: Values) -> Any:
    await cluster.switches.switch(values["bookie"], None)


async def _pause(cluster: Cluster, _values: Values) -> Any:
    await operators.pause(cluster.store)


async def _resume(cluster: Cluster, _values: Values) -> Any:
    await operators.resume(cluster.store)


ENDPOINTS = (
    Endpoint(
        "GET", "/api/state", _state,
        (Field(name="after", kind="integer", text="Wait for a look after this one.", low=0, high=ID_MAX),),
    ),
    Endpoint(
        "GET", "/api/ledgers", _ledgers,
        (
            Field(name="after", kind="integer", text="Only ledgers with higher ids.", low=0, high=ID_MAX),
            Field(name="state", kind="string", text="Only these.", choices=STATES),
            Field(name="bookie", kind="string", text="Only ledgers that name this bookie.", length_max=256),
        ),
    ),
    Endpoint("GET", "/api/ledgers/{}", _ledger),
    Endpoint(
        "GET", "/api/logs", _logs,
        (Field(name="prefix", kind="string", text="Only names that start with it.", length_max=255),),
    ),
    Endpoint("GET", "/api/logs/{}", _log),
    Endpoint(
        "GET", "/api/logs/{}/entries", _entries,
        (
            Field(name="first", kind="integer", text="The first position.", low=0, high=ID_MAX),
            Field(name="last", kind="integer", text="The last position.", low=0, high=ID_MAX),
            Field(name="at", kind="string", text="Entries added at this time or later.", length_max=64),
            Field(name="contains", kind="string", text="Only entries that hold this text.", length_max=200),
            Field(
                name="field", kind="string", text="Only JSON with this field: customer.id = 17, or customer.id.",
                length_max=200,
            ),
            Field(name="count", kind="integer", text="How many.", low=1, high=ENTRIES_MAX),
        ),
    ),
    Endpoint("GET", "/api/topics", _topics),
    Endpoint(
        "GET", "/api/topics/{}", _topic,
        (Field(name="first", kind="integer", text="The first partition.", low=0, high=ID_MAX),),
    ),
    Endpoint(
        "GET", "/api/topics/{}/records", _records,
        (
            Field(name="partition", kind="integer", text="Of the topic.", low=0, high=ID_MAX),
            Field(name="offset", kind="integer", text="The first offset.", low=0, high=ID_MAX),
            Field(name="at", kind="string", text="Records added at this time or later.", length_max=64),
            Field(name="count", kind="integer", text="How many.", low=1, high=ENTRIES_MAX),
        ),
    ),
    Endpoint("GET", "/api/groups", _groups),
    Endpoint("GET", "/api/groups/{}", _group),
    Endpoint(
        "POST", "/api/jobs/hold", _hold,
        (
            _BOOKIE,
            Field(
                name="seconds", kind="number", text="How long.", required=True, low=1, high=operators.HOLD_SECONDS_MAX
            ),
            Field(name="reason", kind="string", text="For other operators.", length_max=REASON_CHARACTERS_MAX),
        ),
    ),
    Endpoint("POST", "/api/jobs/release", _release, (_BOOKIE,)),
    Endpoint("POST", "/api/jobs/drain", _drain, (_BOOKIE,)),
    Endpoint("POST", "/api/jobs/undrain", _undrain, (_BOOKIE,)),
    Endpoint(
        "POST", "/api/jobs/read-only", _read_only,
        (
            _BOOKIE,
            Field(name="reason", kind="string", text="For other operators.", length_max=REASON_CHARACTERS_MAX),
        ),
    ),
    Endpoint("POST", "/api/jobs/writable", _writable, (_BOOKIE,)),
    Endpoint("POST", "/api/jobs/pause", _pause),
    Endpoint("POST", "/api/jobs/resume", _resume),
)  # fmt: skip


class Answerer:
    """Answers requests for the console at ``address``. ``changes``: whether operators may change anything."""

    def __init__(self, cluster: Cluster, address: Address, token: str, *, changes: bool) -> None:
        self._cluster = cluster
        self._address = address
        self._token = token
        self._changes = changes
        self._files = _read_page()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request. Raises :class:`HttpError`."""
        try:
            found = await self._answer(request)
        except HttpError as error:
            error.headers.update(HEADERS)
            raise
        return HttpAnswer(found.status, found.body, found.content_type, {**found.headers, **HEADERS})

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if not is_own_host(request.headers.get("host"), self._address):
            raise HttpError(403, "Forbidden", "this console is not that host")
        path, _, query = request.target.partition("?")
        method = "GET" if request.method == "HEAD" else request.method
        if not path.startswith("/api/"):
            file = self._files.get(path)
            if file is None:
                raise HttpError(404, "NotFound", "there is no such page")
            if method != "GET":
                raise HttpError(405, "MethodNotAllowed", f"{path} takes GET", headers={"Allow": "GET, HEAD"})
            return file
        if not carries_token(request.headers.get("authorization"), self._token):
            raise HttpError(401, "Unauthorized", "open the address that `octavo console` printed")
        endpoint, values = _find(method, path)
        if method == "POST" and not self._changes:
            raise HttpError(403, "Forbidden", "this console was started with --read-only")
        return await self._handle(endpoint, request, query, values)

    async def _handle(self, endpoint: Endpoint, request: HttpRequest, query: str, values: dict[str, Any]) -> HttpAnswer:
        try:
            if endpoint.method == "POST":
                if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
                    raise HttpError(415, "UnsupportedMediaType", f"send a JSON body with Content-Type: {JSON}")
                values |= read_body(request.body, endpoint.fields)
            else:
                values |= read_query(query, endpoint.fields)
            value = await endpoint.handle(self._cluster, values)
        except (FieldError, InvalidArgumentError) as error:
            raise HttpError(400, "InvalidArgument", str(error)) from error
        except UnauthorizedError as error:
            raise HttpError(403, type(error).__name__, error.message) from error
        except (NoSuchLedgerError, NoSuchLogError) as error:
            raise HttpError(404, type(error).__name__, error.message) from error
        except MetadataUnavailableError as error:
            raise HttpError(503, type(error).__name__, error.message, retryable=True) from error
        except OctavoError as error:
            raise HttpError(409, type(error).__name__, error.message, retryable=error.retryable) from error
        if endpoint.method == "POST":
            self._cluster.observer.look_now()
        if endpoint.path == "/api/state":
            value["changes"], value["entries"] = self._changes, self._cluster.shows_entries
        return json_answer(value)


def _find(method: str, path: str) -> tuple[Endpoint, dict[str, Any]]:
    steps = path.split("/")
    others = False
    for endpoint in ENDPOINTS:
        pattern = endpoint.path.split("/")
        if len(pattern) != len(steps) or any(
            want not in {"{}", step} for want, step in zip(pattern, steps, strict=True)
        ):
            continue
        if endpoint.method == method:
            try:
                return endpoint, _step(pattern, steps)
            except UnicodeDecodeError:
                break
        others = True
    if others:
        raise HttpError(405, "MethodNotAllowed", f"{path[:200]} does not take {method[:20]}")
    raise HttpError(404, "NotFound", "there is no such path")


def _step(pattern: Sequence[str], steps: Sequence[str]) -> dict[str, Any]:
    return {"step": unquote_to_bytes(steps[pattern.index("{}")]).decode()} if "{}" in pattern else {}


def _read_page() -> dict[str, HttpAnswer]:
    """The files of the page, by path."""
    found: dict[str, HttpAnswer] = {}
    for file in resources.files("octavo.cli.console").joinpath("page").iterdir():
        kind = "text/javascript" if file.name.endswith(".js") else mimetypes.guess_type(file.name)[0]
        charset = "" if kind == "image/png" else "; charset=utf-8"
        found[f"/{file.name}"] = HttpAnswer(200, file.read_bytes(), f"{kind}{charset}")
    found["/"] = found["/index.html"]
    return found


def _now_ms() -> int:
    return round(time.time() * 1000)
