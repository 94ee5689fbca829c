"""The layout of a cluster in ZooKeeper: paths and the form of values. Opens no connections.

Below the root (``/octavo`` unless the URI names another):

==============================  ==================================================================================
path                            holds
==============================  ==================================================================================
``layout``                      format of the layout and the cluster's id; made once, together with the folders
``ledger-ids``                  the lowest ledger id that has never been allocated
``confirmation``                empty; written before an absence is confirmed: see below
``ledgers/dddd/ddd/.../ddd``    a ledger's metadata: the 19 digits of its id as 4 + 3 + 3 + 3 + 3 + 3, so that no
                                folder has more than a thousand children (the topmost: 9224); the folders are
                                containers, which the servers remove when they are empty
``documents/NAME``              a document (*guarded*), with ``/`` in its name written ``%2F``
``cookies/BOOKIE``              a cookie (*guarded*)
``bookies/registered/BOOKIE``   a live bookie; ephemeral
``bookies/incarnations/BOOKIE`` changed whenever the bookie is registered: see below
``locks/NAME``                  the holder of a lock; ephemeral
``waiters/NAME~TOKEN``          a client that waits for the lock; ephemeral. The folder is made with the first of them
==============================  ==================================================================================

ZooKeeper counts a node's versions from 0 whenever the node is created again, so a compare-and-set on the version alone
could hit a later node at the same path. Ledger ids are never used twice; other nodes have guards. A *guarded* node has
one child with a random name, and every change of the node requires in the same transaction that this child exists. A
registration is ephemeral and can have no child: its guard is the version of its ``incarnations`` node.

A guarded node's value is a line of JSON (see :mod:`octavo.metadata.encoding`) followed by the stored value. The line
names the guard, and holds a checksum of the stored value and a token of the change that wrote it, by which the writer
recognises its own change.

The versions that this driver reports have the number of the change (zxid) that made the node in the upper bits and
ZooKeeper's version in the lower 32. They grow during the life of a node, and from each node at a path to the next.

ZooKeeper's ``sync`` is no quorum operation (ZOOKEEPER-1675): a leader that has been deposed may answer it for a moment,
and reads after it are then stale. A write of one's own is committed by a quorum, and reads after it on the same session
see everything that was committed before it. An absence that decides whether data are deleted is therefore read after a
write of ``confirmation``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import google_crc32c
from octavo.metadata.cluster.registration import check_host
from octavo.metadata.encoding import NO_FIELDS, FieldReader, decode_object, encode_object
from octavo.metadata.store.driver import Kind
from octavo.metadata.store.values import Version
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.light_dataclass import dataclass

LAYOUT_FORMAT: Final = 1
"""Format number of the layout. Raised when nodes move or change their meaning."""

GUARDED_FORMAT: Final = 1
"""Format number of the line before a guarded node's value."""

PORT_DEFAULT: Final = 2181
ROOT_DEFAULT: Final = "/octavo"

VALUE_BYTES_MAX: Final = 1_000_000
"""Largest value of a node: ZooKeeper takes requests of 1 MiB - 1 by default, path and frame included."""

KEY_DIGITS: Final = (4, 3, 3, 3, 3, 3)
"""How the digits of a ledger's key are divided among the parts of its path."""

_VERSION_BITS: Final = 32
_VERSION_MASK: Final = (1 << _VERSION_BITS) - 1

_ROOT: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]{1,64}){1,16}")
TLS_SCHEME: Final = "zk+tls"

TLS_PORT_DEFAULT: Final = 2281
"""The port that ZooKeeper's documents use for ``secureClientPort``."""

_TLS_PARAMETERS: Final = ("tls_ca", "tls_certificate", "tls_key")

_SERVER: Final = re.compile(
    r"(\[(?P<v6>[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?)\]|(?P<host>[^\[\]:@/\s]+))(:(?P<port>[0-9]{1,5}))?"
)


# --- the URI ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a ``zk://`` or ``zk+tls://`` URI."""

    servers: tuple[tuple[str, int], ...]
    root: str
    """Path of the cluster's nodes, without a slash at its end."""
    auth_file: str | None = None
    """File that holds the credentials, ``scheme:credentials``."""
    tls: Mapping[str, str] | None = None
    """The files of TLS that the URI names, by ``ca``, ``certificate`` and ``key``; None: no TLS."""


def parse_uri(uri: str) -> Address:
    """The parts of ``zk://host:port,host:port/root?auth_file=PATH``, or of the same with ``zk+tls`` and the parameters
    ``tls_ca``, ``tls_certificate`` and ``tls_key``. Raises :class:`InvalidArgumentError`.

    Errors do not repeat a URI that holds a password.
    """
    tls: dict[str, str] | None = {} if uri.startswith(f"{TLS_SCHEME}://") else None
    rest = uri.partition("://")[2]
    if "@" in rest.partition("/")[0]:
        raise InvalidArgumentError(
            "a zk:// URI holds no credentials, as URIs end up in logs and lists of processes: put them into the "
            "variable OCTAVO_ZOOKEEPER_AUTH, or into a file that ?auth_file=PATH names"
        )
    rest, _, query = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    root = ROOT_DEFAULT if not path else (slash + path).rstrip("/")
    if _ROOT.fullmatch(root) is None or root.startswith("/zookeeper"):
        raise InvalidArgumentError(
            f"{uri!r}: {root} cannot be the root: write up to 16 words of letters, digits and ._- after slashes, "
            "not below /zookeeper"
        )
    auth_file: str | None = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "auth_file" and value:
            auth_file = unquote(value)
        elif tls is not None and name in _TLS_PARAMETERS and value:
            tls[name.removeprefix("tls_")] = unquote(value)
        else:
            known = "auth_file=PATH" if tls is None else f"auth_file=PATH, {'=PATH, '.join(_TLS_PARAMETERS)}=PATH"
            hint = "; for TLS write zk+tls://" if tls is None and name in _TLS_PARAMETERS else ""
            raise InvalidArgumentError(f"{uri!r}: unknown parameter {name}={value}; known: {known}{hint}")
    port = PORT_DEFAULT if tls is None else TLS_PORT_DEFAULT
    return Address(tuple(_parse_server(text, uri, port) for text in hosts.split(",")), root, auth_file, tls)


def _parse_server(text: str, uri: str, port_default: int) -> tuple[str, int]:
    found = _SERVER.fullmatch(text)
    port = int(found["port"] or port_default) if found else 0
    if found is None or not 0 < port < 65536:
        raise InvalidArgumentError(f"{uri!r}: {text!r} is not a server; write zk://host:port,host:port/root")
    try:
        return found["v6"] or check_host(found["host"]), port
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{uri!r}: {error.message}") from error


def parse_credentials(text: str, origin: str) -> tuple[str, bytes]:
    """Scheme and credentials of ``digest:user:password``. Errors name the ``origin`` and not the text."""
    scheme, separator, credentials = text.strip().partition(":")
    if not separator or not scheme or not credentials or (scheme == "digest" and ":" not in credentials):
        raise InvalidArgumentError(f"{origin} does not hold ZooKeeper credentials of the form digest:user:password")
    return scheme, credentials.encode()


# --- paths -----------------------------------------------------------------------------------------------------------

FOLDERS: Final = ("ledgers", "documents", "cookies", "bookies", "bookies/registered", "bookies/incarnations", "locks")
"""The folders of a new layout, parents first."""

_FOLDER_OF: Final = {
    Kind.LEDGER: "ledgers",
    Kind.DOCUMENT: "documents",
    Kind.COOKIE: "cookies",
    Kind.BOOKIE: "bookies/registered",
    Kind.LOCK: "locks",
    Kind.WAITER: "waiters",
}

GUARDED: Final = frozenset({Kind.DOCUMENT, Kind.COOKIE})
"""Kinds whose nodes are guarded by a child."""


class Paths:
    """Paths below one root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.layout = f"{root}/layout"
        self.ledger_ids = f"{root}/ledger-ids"
        self.confirmation = f"{root}/confirmation"
        self.folders = tuple(f"{root}/{folder}" for folder in FOLDERS)
        self._folder = {kind: f"{root}/{folder}" for kind, folder in _FOLDER_OF.items()}

    def folder(self, kind: Kind) -> str:
        """The folder that holds all of a kind."""
        return self._folder[kind]

    def node(self, kind: Kind, key: str) -> str:
        """The node of one record."""
        if kind is not Kind.LEDGER:
            return f"{self._folder[kind]}/{escape(key)}"
        return f"{self._folder[kind]}/{key[:4]}/{key[4:7]}/{key[7:10]}/{key[10:13]}/{key[13:16]}/{key[16:]}"

    def incarnation(self, key: str) -> str:
        """The guard of a bookie's registration."""
        return f"{self.root}/bookies/incarnations/{escape(key)}"

    def record_of(self, path: str) -> tuple[Kind, str | None] | None:
        """The record that a node belongs to, for watchers: one record, or all of a kind (key None); None when the node
        belongs to no record."""
        for kind, folder in self._folder.items():
            if path == folder:
                return kind, None
            if path.startswith(folder + "/"):
                name = path[len(folder) + 1 :]
                return kind, name.replace("/", "") if kind is Kind.LEDGER else unescape(name)
        return None


def parents_of(path: str) -> list[str]:
    """The paths above, topmost first, without ``/``."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def escape(key: str) -> str:
    """A key as the name of a node. No key has a ``%``."""
    return key.replace("/", "%2F")


def unescape(name: str) -> str:
    """The key for a name made by :func:`escape`."""
    return name.replace("%2F", "/")


def check_digits(names: Sequence[str], width: int, folder: str) -> list[str]:
    """The names, sorted, if each has ``width`` digits. Raises :class:`MetadataError` for a node that is not
    Octavo's."""
    for name in names:
        if len(name) != width or not (name.isascii() and name.isdecimal()):
            raise MetadataError(
                f"ZooKeeper: {folder}/{name} is not part of a ledger's path: another program made it; delete it"
            )
    return sorted(names)


# --- versions --------------------------------------------------------------------------------------------------------


class Stat(NamedTuple):
    """ZooKeeper's facts about a node."""

    created: int
    """The change (zxid) that made the node: different for every two nodes, also at the same path."""
    version: int
    """Number of changes of its value since then."""
    owner: int
    """The session that an ephemeral node belongs to; 0 for other nodes."""


def version_of(stat: Stat) -> Version:
    """The version of a node as this driver reports it."""
    return Version(stat.created << _VERSION_BITS | stat.version & _VERSION_MASK)


def split_version(version: Version) -> tuple[int, int]:
    """The change that made the node, and ZooKeeper's version of the node."""
    low = version & _VERSION_MASK
    return version >> _VERSION_BITS, low - (1 << _VERSION_BITS) if low >> (_VERSION_BITS - 1) else low


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guarded:
    """The value of a guarded node."""

    guard: str
    """Name of the child that guards the node."""
    change: str
    """Token of the change that wrote the value."""
    value: bytes


def encode_guarded(stored: Guarded) -> bytes:
    """The bytes of a guarded node."""
    line = encode_object(
        {
            "guard": stored.guard,
            "change": stored.change,
            "value_bytes": len(stored.value),
            "value_crc32c": google_crc32c.value(stored.value),
        },
        format_number=GUARDED_FORMAT,
    )
    return line + b"\n" + stored.value


def decode_guarded(data: bytes, what: str) -> Guarded:
    """Decodes what :func:`encode_guarded` wrote. Raises :class:`MetadataError` naming ``what``."""
    line, _, value = data.partition(b"\n")
    reader = FieldReader(decode_object(line, what=what, format_max=GUARDED_FORMAT), what)
    if reader.get("value_bytes", int) != len(value) or reader.get("value_crc32c", int) != google_crc32c.value(value):
        raise reader.damaged("checksum mismatch of the value")
    return Guarded(reader.get("guard", str), reader.get("change", str), value)


def encode_layout(cluster_id: str, *, destroying: bool = False) -> bytes:
    """The value of the layout node."""
    return encode_object({"cluster_id": cluster_id, "destroying": destroying}, format_number=LAYOUT_FORMAT)


def decode_layout(data: bytes, path: str) -> str:
    """The cluster's id. Raises :class:`MetadataError` for a layout that must not be used."""
    what = f"ZooKeeper's node {path}"
    reader = FieldReader(decode_object(data, what=what, format_max=LAYOUT_FORMAT), what)
    if reader.get("destroying", bool):
        raise MetadataError(f"{what}: the cluster is being destroyed; run `octavo cluster destroy` to its end")
    return reader.get("cluster_id", str)


@dataclass(frozen=True, slots=True)
class LedgerIdCounter:
    """The value of the node ``ledger-ids``."""

    next_id: int
    """The lowest id that has never been allocated."""
    unknown_fields: Mapping[str, Any] = NO_FIELDS
    """Stored fields that this version does not know. A changed counter keeps them."""


def encode_ledger_ids(counter: LedgerIdCounter) -> bytes:
    """The stored form of the counter."""
    return encode_object({**counter.unknown_fields, "next_ledger_id": counter.next_id}, format_number=1)


def decode_ledger_ids(data: bytes, path: str) -> LedgerIdCounter:
    """Decodes what :func:`encode_ledger_ids` wrote. Raises :class:`MetadataError`."""
    what = f"ZooKeeper's node {path}"
    reader = FieldReader(decode_object(data, what=what, format_max=1), what)
    return LedgerIdCounter(reader.get("next_ledger_id", int), reader.unknown_fields())


def name_of(kind: Kind, key: str) -> str:
    """The name of a record in error messages."""
    return f"ledger {int(key)}" if kind is Kind.LEDGER else f"{kind.value} {key}"
