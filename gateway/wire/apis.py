"""The requests that a gateway understands, their versions, and the headers of requests and answers. Pure.

A frame is an int32 with the number of bytes that follow, then a header, then the request. A request's header is its
key, its version, a number that the answer repeats, and the client's name for itself; flexible versions have tagged
fields behind it. An answer's header is that number, with tagged fields in flexible versions. The one exception is
ApiVersions: its answers never have tagged fields in the header, because the client does not know yet which versions
there are.
"""

from dataclasses import field
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from octavo.gateway.access.gate import OPEN_GATE, Gate
from octavo.gateway.codes import Code
from octavo.gateway.wire import fetch, produce
from octavo.gateway.wire.entities import encode_answer
from octavo.gateway.wire.fields import MalformedError, Reader
from octavo.gateway.wire.outcome import Outcome
from octavo.protocol.light_dataclass import dataclass

_HEADER: Final = Struct(">hhi")
_NUMBER: Final = Struct(">i")
_LENGTH: Final = Struct(">h")


class Api(IntEnum):
    """The keys of requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


class Versions(NamedTuple):
    """The versions of a request, both inclusive."""

    first: int
    last: int


VERSIONS: Final[dict[Api, Versions]] = {
    Api.PRODUCE: Versions(produce.VERSION_FIRST, produce.VERSION_LAST),
    Api.FETCH: Versions(fetch.VERSION_FIRST, fetch.VERSION_LAST),
    Api.LIST_OFFSETS: Versions(1, 6),
    Api.METADATA: Versions(0, 12),
    Api.OFFSET_COMMIT: Versions(2, 9),
    Api.OFFSET_FETCH: Versions(1, 9),
    Api.FIND_COORDINATOR: Versions(0, 4),
    Api.JOIN_GROUP: Versions(0, 9),
    Api.HEARTBEAT: Versions(0, 4),
    Api.LEAVE_GROUP: Versions(0, 5),
    Api.SYNC_GROUP: Versions(0, 5),
    Api.DESCRIBE_GROUPS: Versions(0, 5),
    Api.LIST_GROUPS: Versions(0, 5),
    Api.SASL_HANDSHAKE: Versions(0, 1),
    Api.API_VERSIONS: Versions(0, 3),
    Api.CREATE_TOPICS: Versions(2, 7),
    Api.DELETE_TOPICS: Versions(1, 6),
    Api.DELETE_RECORDS: Versions(0, 2),
    Api.INIT_PRODUCER_ID: Versions(0, 4),
    Api.DESCRIBE_CONFIGS: Versions(1, 4),
    Api.ALTER_CONFIGS: Versions(0, 2),
    Api.SASL_AUTHENTICATE: Versions(0, 2),
    Api.CREATE_PARTITIONS: Versions(0, 3),
    Api.DELETE_GROUPS: Versions(0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
    Api.OFFSET_DELETE: Versions(0, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: Versions(0, 1),
}
"""What a gateway offers. Clients use the highest version that both sides know."""

_FLEXIBLE_FROM: Final = {
    Api.PRODUCE: 9,
    Api.FETCH: 12,
    Api.LIST_OFFSETS: 6,
    Api.METADATA: 9,
    Api.OFFSET_COMMIT: 8,
    Api.OFFSET_FETCH: 6,
    Api.FIND_COORDINATOR: 3,
    Api.JOIN_GROUP: 6,
    Api.HEARTBEAT: 4,
    Api.LEAVE_GROUP: 4,
    Api.SYNC_GROUP: 4,
    Api.DESCRIBE_GROUPS: 5,
    Api.LIST_GROUPS: 3,
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 5,
    Api.DELETE_TOPICS: 4,
    Api.DELETE_RECORDS: 2,
    Api.INIT_PRODUCER_ID: 2,
    Api.DESCRIBE_CONFIGS: 4,
    Api.ALTER_CONFIGS: 2,
    Api.SASL_AUTHENTICATE: 2,
    Api.CREATE_PARTITIONS: 2,
    Api.DELETE_GROUPS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
    Api.CONSUMER_GROUP_HEARTBEAT: 0,
    Api.CONSUMER_GROUP_DESCRIBE: 0,
}
"""The first flexible version of each request that has one among those that are offered."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one client."""

    api: Api
    version: int
    number: int
    """The answer repeats it."""
    body: memoryview
    """The request behind its header."""
    client: str = ""
    """The name that the client's program has given itself."""
    host: str = ""
    """Where the client is."""
    outcome: Outcome = field(default_factory=Outcome, compare=False)
    """Filled in while the request is answered."""
    gate: Gate = OPEN_GATE
    """Who the client is, and what it may ask."""


class UnknownVersionError(Exception):
    """The gateway does not know this version of ApiVersions: it says so in the oldest form (KIP-511)."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def decode_header(frame: memoryview) -> Request:
    """The request in a frame.

    Raises:
        UnknownVersionError: It asks for the versions, in a version that is not known.
        MalformedError: It is no request that the gateway understands.
    """
    if len(frame) < _HEADER.size:
        raise MalformedError(f"a request of {len(frame)} bytes has no header")
    key, version, number = _HEADER.unpack_from(frame)
    if key == Api.API_VERSIONS and not _knows(Api.API_VERSIONS, version):
        raise UnknownVersionError(number)
    if key not in VERSIONS or not _knows(Api(key), version):
        raise MalformedError(f"request {key}, version {version}, is not known")
    api = Api(key)
    reader = Reader(frame[_HEADER.size :], flexible=False)
    client = reader.string() or ""
    if _has_tags(api, version):
        tags = Reader(frame[len(frame) - reader.left :], flexible=True)
        tags.end_of_structure()
        reader = tags
    return Request(api, version, number, frame[len(frame) - reader.left :], client)


def last_plain_version(api: Api) -> int:
    """The newest version that is offered and is not flexible; if all are, the newest."""
    last = min(VERSIONS[api].last, _FLEXIBLE_FROM.get(api, VERSIONS[api].last + 1) - 1)
    return last if last >= VERSIONS[api].first else VERSIONS[api].last


def request_frame(api: Api, version: int, number: int, client: str, body: bytes) -> bytes:
    """A request as it is sent."""
    name = client.encode()
    tags = b"\0" if _has_tags(api, version) else b""
    header = _HEADER.pack(api, version, number) + _LENGTH.pack(len(name)) + name + tags
    return _NUMBER.pack(len(header) + len(body)) + header + body


def answer_header(request: Request) -> bytes:
    """The header of the answer to a request."""
    tags = bytes(answer_header_size(request.api, request.version) - _NUMBER.size)
    return _NUMBER.pack(request.number) + tags


def answer_header_size(api: Api, version: int) -> int:
    """How long the header of the answer is; a gateway's has no tagged fields."""
    return _NUMBER.size + (_has_tags(api, version) and api is not Api.API_VERSIONS)


def answer_frame(header: bytes, pieces: list[bytes | bytearray]) -> list[bytes | bytearray]:
    """An answer as it is sent."""
    return [_NUMBER.pack(len(header) + sum(map(len, pieces))) + header, *pieces]


def frame_size(prefix: bytes) -> int:
    """The number of bytes that follow the beginning of a frame; it may be below 0."""
    size: int = _NUMBER.unpack(prefix)[0]
    return size


BEFORE_AUTHENTICATION: Final = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
"""The requests of a client that is not authenticated, where that is required (rule K14)."""

FRAME_PREFIX_BYTES: Final = _NUMBER.size


def encode_versions(version: int, code: Code = Code.NONE) -> bytes:
    """The answer to ApiVersions."""
    keys = [
        {"api_key": api.value, "min_version": versions.first, "max_version": versions.last}
        for api, versions in VERSIONS.items()
    ]
    return encode_answer(Api.API_VERSIONS, version, {"error_code": code, "api_keys": keys, "throttle_time": 0})


def unknown_version_answer(number: int) -> list[bytes | bytearray]:
    """The answer to a client that asks for the versions in a version that is not known."""
    return answer_frame(_NUMBER.pack(number), [encode_versions(0, Code.UNSUPPORTED_VERSION)])


def _knows(api: Api, version: int) -> bool:
    versions = VERSIONS[api]
    return versions.first <= version <= versions.last


def _has_tags(api: Api, version: int) -> bool:
    return version >= _FLEXIBLE_FROM.get(api, VERSIONS[api].last + 1)
