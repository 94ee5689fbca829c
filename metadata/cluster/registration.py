"""The metadata of a bookie: its registration (while it runs) and its cookie (permanent). Pure."""

import enum
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from octavo.metadata.encoding import NO_FIELDS, FieldReader, decode_object, encode_bytes, encode_object
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import BookieId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass

FORMAT = 1
"""Format number of encoded registrations and cookies."""

RACK_UNNAMED = "/unnamed"
"""The rack of bookies without a configured rack: all of them count as one rack."""

UNREGISTERED_SECONDS_MAX = 3600.0
"""How long a bookie that runs, but has lost its registration, confirms adds of ledgers that it knows (rule B10). An
outage of the metadata store must not stop writers; but what a bookie confirms that cannot be asked must end some time,
because only then can a loss be accepted without it (rule O4)."""

_RACK = re.compile(r"(/[A-Za-z0-9._-]{1,64}){1,8}")

_HOST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


class BookieState(enum.Enum):
    """Which requests a bookie currently accepts.

    UNAVAILABLE is never registered: it stands for a missing registration, which is only a hint and no proof that the
    bookie is dead (rule M2).

    Examples:
        >>> [bookie.state is octavo.BookieState.WRITABLE for bookie in await client.bookies()]
        [True, True, True]
    """

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieRegistration:
    """A running bookie's description of itself. Raises :class:`InvalidArgumentError` for impossible values."""

    bookie_id: BookieId
    address: str
    """As advertised: ``host:port``, IPv6 hosts in brackets."""
    state: BookieState
    version: str
    """Software version."""
    boot_id: str
    """Identifies one run of the bookie's process; the bookie sends the same id in its hello."""
    rack: str = RACK_UNNAMED
    """Location of the bookie, widest part first: ``/dc1/rack2``. Bookies of one rack may fail together."""
    host_id: str | None = None
    """Names the host on which the bookie runs: bookies of one host fail together. None: not known, as of a bookie of a
    version that registers none; such a bookie counts as a host of its own."""
    free_bytes: int | None = None
    """Free space on its disks as of some minutes ago, a weight for the placement of new ledgers. None: not known."""
    tls: str = "off"
    """Whether clients speak TLS with it: off, optional or required. A hint: a client that is told to use TLS uses it
    whatever stands here."""
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON. A changed registration keeps them."""

    def __post_init__(self) -> None:
        _check_identity(self.bookie_id, self.address)
        check_rack(self.rack)
        if self.host_id is not None:
            check_host_id(self.host_id)
        if self.free_bytes is not None and self.free_bytes < 0:
            raise InvalidArgumentError(f"bookie {self.bookie_id}: free space cannot be negative")
        if self.state is BookieState.UNAVAILABLE:
            raise InvalidArgumentError(f"bookie {self.bookie_id}: a bookie cannot register as unavailable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """The cluster's record of a bookie, kept as long as the bookie may hold data. Every start of the bookie raises the
    generation by compare-and-set (rule B4): a lower generation on the bookie's disk is a restored copy."""

    bookie_id: BookieId
    generation: int
    address: str
    """As last advertised."""
    body: bytes = b""
    """Token of the start that raised the generation, as the bookie's directories have it."""
    lineage: str = ""
    """Names the data that belong to the id: made with the id, and anew whenever the id is given to other data. Compared
    for equality with the bookie's directories (rule B10). Empty: written by a version that knows no lineages."""
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON. A changed cookie keeps them."""

    def __post_init__(self) -> None:
        _check_identity(self.bookie_id, self.address)
        if self.generation < 0:
            raise InvalidArgumentError(f"bookie {self.bookie_id}: a generation cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBookie:
    """A bookie that the cluster knows, running or not."""

    bookie_id: BookieId
    address: str
    """As registered, else as last advertised."""
    state: BookieState
    registration: BookieRegistration | None
    """None when unavailable."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises :class:`InvalidArgumentError`."""
    host, separator, port_text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # an IPv6 address without brackets: the start of its port is ambiguous
    if not separator or not host or not (port_text.isascii() and port_text.isdecimal()) or int(port_text) > 65535:
        raise InvalidArgumentError(f"{address!r} is not an address of the form host:port")
    return host, int(port_text)


def check_host(host: str) -> str:
    """The host, if it can be looked up. Raises :class:`InvalidArgumentError` for one that no resolver takes: the event
    loop would raise a ``ValueError`` or ``UnicodeError`` of its own."""
    try:
        if "\0" in host:
            raise UnicodeError("it has a zero byte")  # noqa: TRY301 - told like those of the codec
        host.encode("idna")
    except UnicodeError as error:
        raise InvalidArgumentError(
            f"{host!r} is not the name of a host: {getattr(error, 'reason', error)}; each part between dots has 1 to "
            "63 characters"
        ) from error
    return host


def endpoint_of(address: str) -> tuple[str, int]:
    """As :func:`split_address`, to connect to. An address that is stored may have a host that cannot be looked up."""
    host, port = split_address(address)
    return check_host(host), port


def check_rack(rack: str) -> str:
    """The given rack, if it is valid. Raises :class:`InvalidArgumentError`."""
    if not _RACK.fullmatch(rack):
        raise InvalidArgumentError(
            f"{rack!r} is not a valid rack: it must have 1 to 8 parts like /dc1/rack2, each of up to 64 letters, "
            "digits and ._-"
        )
    return rack


def check_host_id(host_id: str) -> str:
    """The given id of a host, if it is valid. Raises :class:`InvalidArgumentError`."""
    if not _HOST_ID.fullmatch(host_id):
        raise InvalidArgumentError(
            f"{host_id!r} is not a valid id of a host: it must have 1 to 64 letters, digits and ._:-, and begin with a "
            "letter or digit"
        )
    return host_id


def encode_registration(registration: BookieRegistration) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    return encode_object(
        {
            **registration.unknown_fields,
            "bookie_id": registration.bookie_id,
            "address": registration.address,
            "state": registration.state.value,
            "version": registration.version,
            "boot_id": registration.boot_id,
            "rack": registration.rack,
            **({} if registration.host_id is None else {"host_id": registration.host_id}),
            **({} if registration.free_bytes is None else {"free_bytes": registration.free_bytes}),
            **({} if registration.tls == "off" else {"tls": registration.tls}),
        },
        format_number=FORMAT,
    )


def decode_registration(bookie_id: BookieId, value: bytes) -> BookieRegistration:
    """The registration stored under ``bookie_id``. Raises :class:`MetadataError`."""
    reader = _reader(bookie_id, value)
    try:
        return BookieRegistration(
            bookie_id=bookie_id,
            address=reader.get("address", str),
            state=BookieState(reader.get("state", str)),
            version=reader.get("version", str),
            boot_id=reader.get("boot_id", str),
            rack=reader.added_later("rack", str, RACK_UNNAMED),
            host_id=reader.added_later("host_id", str, None),
            free_bytes=reader.added_later("free_bytes", int, None),
            tls=reader.added_later("tls", str, "off"),
            unknown_fields=reader.unknown_fields() or NO_FIELDS,
        )
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def encode_cookie(cookie: Cookie) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    return encode_object(
        {
            **cookie.unknown_fields,
            "bookie_id": cookie.bookie_id,
            "generation": cookie.generation,
            "address": cookie.address,
            "body": encode_bytes(cookie.body),
            **({} if not cookie.lineage else {"lineage": cookie.lineage}),
        },
        format_number=FORMAT,
    )


def decode_cookie(bookie_id: BookieId, value: bytes) -> Cookie:
    """The cookie stored under ``bookie_id``. Raises :class:`MetadataError`."""
    reader = _reader(bookie_id, value)
    try:
        return Cookie(
            bookie_id=bookie_id,
            generation=reader.get("generation", int),
            address=reader.get("address", str),
            body=reader.bytes_of("body"),
            lineage=reader.added_later("lineage", str, ""),
            unknown_fields=reader.unknown_fields() or NO_FIELDS,
        )
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def _reader(bookie_id: BookieId, value: bytes) -> FieldReader:
    what = f"bookie {bookie_id}"
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    if reader.get("bookie_id", str) != bookie_id:
        raise reader.damaged(f"they are those of bookie {reader.get('bookie_id', str)}")
    return reader


def _check_identity(bookie_id: str, address: str) -> None:
    if not is_bookie_id(bookie_id):
        raise InvalidArgumentError(f"{bookie_id!r} is not a bookie id: 1 to 128 letters, digits and ._:-")
    split_address(address)
