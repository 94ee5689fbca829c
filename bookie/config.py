"""Settings of a bookie, from a TOML file, the environment and flags, each stronger than the one before.

The fields of :class:`BookieConfig` are the only list of settings. A setting ``data_dir`` is the TOML key ``data_dir``,
the variable ``OCTAVO_BOOKIE_DATA_DIR`` and the flag ``--data-dir``; three that other commands share have one without
``BOOKIE``: ``OCTAVO_METADATA``, ``OCTAVO_LOG_LEVEL``, ``OCTAVO_LOG_FORMAT``. An unknown key or a bad value is an
:class:`InvalidArgumentError` that names the key and where it stood.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any

from octavo.bookie.admin.server import SOCKET_NAME
from octavo.bookie.memory.answer_memory import ANSWER_BYTES_MIN
from octavo.bookie.upkeep.hours import Hours
from octavo.metadata.cluster.registration import RACK_UNNAMED, check_host, check_host_id, check_rack
from octavo.metadata.connect import without_password
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import is_bookie_id
from octavo.protocol.light_dataclass import dataclass
from octavo.security.contexts import ServerFiles
from octavo.security.loopback import is_loopback

ENVIRONMENT_PREFIX = "OCTAVO_BOOKIE_"
_SHARED_VARIABLES = {
    "metadata": "OCTAVO_METADATA",
    "log_level": "OCTAVO_LOG_LEVEL",
    "log_format": "OCTAVO_LOG_FORMAT",
}
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("console", "json")

_UNSPECIFIED_HOSTS = frozenset({"0.0.0.0", "::", "0:0:0:0:0:0:0:0"})

_MEBIBYTE = 1024 * 1024

HOST_ID_AUTO = "auto"
"""The setting ``host_id`` of a bookie that finds out by itself on which host it runs."""

_Parse = Callable[[Any], Any]


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or str(value) == "":
        raise ValueError("must be a path")
    return Path(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or value == "":
        raise ValueError("must be a non-empty text")
    return value


def _choice(*choices: str) -> _Parse:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or value.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value.lower()

    return parse


def _integer(low: int, high: int) -> _Parse:
    def parse(value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if type(number) is not int or not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return number

    return parse


def _none_or(low: int) -> _Parse:
    """Either 0, or at least this: less would let a single large request block its client for long."""
    parse_integer = _integer(0, 2**40)

    def parse(value: Any) -> int:
        number: int = parse_integer(value)
        if 0 < number < low:
            raise ValueError(f"must be 0 or at least {low}")
        return number

    return parse


def _segment_bytes(value: Any) -> int:
    size: int = _integer(16 * _MEBIBYTE, 4096 * _MEBIBYTE)(value)
    if size % _MEBIBYTE:
        raise ValueError(f"must be a multiple of {_MEBIBYTE}")
    return size


def _number(low: float, high: float, what: str = "number") -> _Parse:
    def parse(value: Any) -> float:
        try:
            number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise ValueError(f"must be a {what} from {low:g} to {high:g}")
        return number

    return parse


def _seconds(low: float, high: float) -> _Parse:
    return _number(low, high, "number of seconds")


_share = _number(0, 1)


def _rack(value: Any) -> str:
    try:
        return check_rack(str(value))
    except InvalidArgumentError:
        raise ValueError("must be a path of 1 to 8 steps like /dc1/rack2, of letters, digits and ._-") from None


def _host_id(value: Any) -> str:
    try:
        return check_host_id(str(value))
    except InvalidArgumentError:
        raise ValueError("must be auto, or 1 to 64 letters, digits and ._:-, a letter or digit first") from None


def _paths(value: Any) -> tuple[Path, ...]:
    pieces = value.split(":") if isinstance(value, str) else value
    if not isinstance(pieces, list | tuple):
        raise ValueError("must be a list of paths (in the environment: separated by colons)")  # noqa: TRY004 - every bad value is a ValueError
    return tuple(map(_path, pieces))


def _switch(value: Any) -> bool:
    known = {"true": True, "false": False}
    if isinstance(value, str):
        value = known.get(value.lower())
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - every bad value is a ValueError
    return value


def _hours(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text of hours, like 22:00-06:00")  # noqa: TRY004 - as above
    Hours.parse(value)
    return value


def _bookie_id(value: Any) -> str:
    if not isinstance(value, str) or not is_bookie_id(value):
        raise ValueError("must be a bookie id")
    return value


def _address(value: Any) -> str:
    host, separator, port = str(value).rpartition(":")
    if not isinstance(value, str) or not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT")
    _host(host.strip("[]"))
    return value


def _host(value: Any) -> str:
    host = _text(value)
    try:
        return check_host(host)
    except InvalidArgumentError as error:
        raise ValueError("must name a host, of which each part between dots has 1 to 63 characters") from error


def _optional_address(value: Any) -> str:
    return "" if value == "" else _address(value)


def _setting(parse: _Parse, default: Any = MISSING) -> Any:
    if default is MISSING:
        return field(metadata={"parse": parse})
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """The settings of a bookie."""

    data_dir: Path = _setting(_path)
    """Entry logs, index, state and identity; also the journal unless ``journal_dir`` says otherwise."""
    bookie_id: str | None = _setting(_bookie_id, None)
    """The id that this bookie must have. With it, a bookie that finds its directories empty although the cluster knows
    it refuses to start. None: a new bookie makes an id of its own."""
    journal_dir: Path | None = _setting(_path, None)
    """The journal's directory, best on a disk of its own. None: ``data_dir/journal``."""
    host: str = _setting(_host, "127.0.0.1")
    """Interface to listen on."""
    port: int = _setting(_integer(0, 65535), 3181)
    """Port to listen on; 0 lets the system choose one."""
    advertise: str | None = _setting(_address, None)
    """``HOST:PORT`` at which clients reach this bookie. None: host and port as listened on."""
    rack: str = _setting(_rack, RACK_UNNAMED)
    """The rack of this bookie, the widest location first: ``/dc1/rack2``. Copies of an entry go to different racks."""
    host_id: str = _setting(_host_id, HOST_ID_AUTO)
    """Names the host that runs this bookie. Copies of an entry go to different hosts. auto: the start of the kernel
    names it, which is the same in all containers of a host. Set it where virtual machines of one host count as one."""
    metadata: str = _setting(_text, "sqlite:///octavo-data/metadata.db")
    """URI of the cluster's metadata store."""
    log_level: str = _setting(_choice(*LOG_LEVELS), "info")
    """Log messages of this level and above: debug, info, warning or error."""
    log_format: str = _setting(_choice(*LOG_FORMATS), "console")
    """Form of log messages: console, or json."""
    cache_bytes: int = _setting(_integer(64 * 1024, 16 * 1024 * _MEBIBYTE), 64 * _MEBIBYTE)
    """Write cache before it is flushed to an entry log; up to two of this size exist at a time."""
    page_cache_bytes: int = _setting(_none_or(_MEBIBYTE), 256 * _MEBIBYTE)
    """Newest bytes of each entry log that stay in the operating system's page cache once they are on the disk. Older
    ones are read from the disk again. 0: the operating system decides."""
    answer_bytes: int = _setting(_integer(ANSWER_BYTES_MIN, 1024 * 1024 * _MEBIBYTE), 256 * _MEBIBYTE)
    """Memory for answers that readers have not taken yet, all connections together."""
    stalled_client_seconds: float = _setting(_seconds(0.01, 86400), 60.0)
    """A client that reads none of its answers for so long loses its connection; after a sixth of it while other clients
    wait for the memory."""
    connections_max: int = _setting(_integer(1, 1_000_000), 4096)
    """Connections served at a time; further ones are refused."""
    connections_per_client_max: int = _setting(_integer(0, 1_000_000), 256)
    """Connections of one client served at a time; further ones are refused. A client is a principal, or, where none is
    known, an address. 0: no limit."""
    client_bytes_per_second: int = _setting(_none_or(1024 * 1024), 0)
    """Bytes of requests that one client may send per second; beyond that the bookie reads them later. 0: no limit."""
    client_requests_per_second: int = _setting(_none_or(10), 0)
    """Requests (frames) that one client may send per second; beyond that the bookie reads them later. 0: no limit."""
    client_new_ledgers_per_second: int = _setting(_integer(0, 1_000_000), 1000)
    """Ledgers new to this bookie that one client may write or fence per second; the first request of further ones is
    refused, and writers repeat it. 0: no limit."""
    hello_timeout_seconds: float = _setting(_seconds(0.01, 3600), 10.0)
    """A client that has not sent its hello by then, or has not authenticated where that is required, loses its
    connection."""
    frame_timeout_seconds: float = _setting(_seconds(0.01, 86400), 60.0)
    """A client that has not completed a frame by then loses its connection."""
    unfinished_frame_bytes: int = _setting(_integer(16 * _MEBIBYTE, 1024 * 1024 * _MEBIBYTE), 128 * _MEBIBYTE)
    """Memory for frames that have arrived in part, all connections together."""
    tls: str = _setting(_choice("off", "optional", "required"), "off")
    """Whether clients speak TLS: off, optional (clients choose, at the same port), or required."""
    tls_certificate: Path | None = _setting(_path, None)
    """PEM file with the bookie's certificate and the chain behind it. Needed unless TLS is off."""
    tls_key: Path | None = _setting(_path, None)
    """PEM file with the certificate's key, without a password. Other users must not be able to read it."""
    tls_ca: Path | None = _setting(_path, None)
    """PEM file with the authorities that sign the certificates of clients and of the other bookies. None: clients need
    no certificate, and other bookies are verified with the authorities of the system."""
    tls_minimum: str = _setting(_choice("1.2", "1.3"), "1.3")
    """Lowest version of TLS that the bookie accepts."""
    tls_verify: str = _setting(_choice("host", "bookie-id"), "host")
    """What the certificates of other bookies must name: the host in their address, or their bookie id."""
    tls_reload_seconds: float = _setting(_seconds(0.01, 86400), 60.0)
    """Time between two looks at the files of TLS. New ones are taken over without losing a connection."""
    auth: str = _setting(_choice("auto", "required", "none"), "auto")
    """Whether clients must be principals of the cluster: required, or none. auto: required for a bookie that listens
    beyond this host."""
    key_file: Path | None = _setting(_path, None)
    """File with the key with which this bookie connects to other bookies, where it has no certificate for that: a
    principal with the roles repair and append."""
    audit_file: Path | None = _setting(_path, None)
    """File of the audit log: who was authenticated, refused, fenced or administered what, one JSON object in a line.
    None: there is none."""
    audit_file_bytes: int = _setting(_integer(0, 1024 * 1024 * _MEBIBYTE), 64 * _MEBIBYTE)
    """Size at which the audit log is renamed to ``FILE.1``, and a new one is begun; 0: never."""
    audit_files_max: int = _setting(_integer(1, 1000), 5)
    """Files of the audit log that are kept, the one in use included."""
    verify_new_ledgers: str = _setting(_choice("auto", "true", "false"), "auto")
    """Whether the first add or fence of a ledger that is new here waits until the metadata have shown that the ledger
    exists, with this key. auto: where authentication is required."""
    handshakes_max: int = _setting(_integer(1, 65536), 64)
    """TLS handshakes in progress at a time; further clients wait."""
    handshakes_per_second: float = _setting(_number(0.1, 1_000_000), 100.0)
    """TLS handshakes that begin per second; further clients wait. Each takes the bookie about a millisecond."""
    handshake_seconds: float = _setting(_seconds(0.01, 3600), 10.0)
    """A client that has not completed its TLS handshake by then loses its connection."""
    journal_segment_bytes: int = _setting(_segment_bytes, 64 * _MEBIBYTE)
    """Size of one preallocated journal file; a whole frame must fit."""
    checkpoint_journal_bytes: int = _setting(_integer(64 * 1024, 1024 * 1024 * _MEBIBYTE), 512 * _MEBIBYTE)
    """Journal written since the last checkpoint that starts the next: bounds what a restart replays."""
    checkpoint_seconds: float = _setting(_seconds(0.01, 86400), 60.0)
    """Longest time between a change and the checkpoint that covers it."""
    entry_log_bytes: int = _setting(_integer(64 * 1024, 64 * 1024 * _MEBIBYTE), 1024 * _MEBIBYTE)
    """Size at which an entry log is finished and the next begun."""
    entry_dirs: tuple[Path, ...] = _setting(_paths, ())
    """Further directories for entry logs, best on disks of their own; ``data_dir`` has some as well."""
    garbage_seconds: float = _setting(_seconds(0.1, 86400), 900.0)
    """Time between two garbage collections, each with a minor compaction."""
    replaced_copies_seconds: float = _setting(_seconds(0, 366 * 86400), 86400.0)
    """How long the copies of a closed ledger are kept after other bookies have taken this one's slot in it."""
    compaction_minor_share: float = _setting(_share, 0.2)
    """Entry logs with a lower live share are compacted at every garbage collection."""
    compaction_major_share: float = _setting(_share, 0.8)
    """Entry logs with a lower live share are compacted at major compactions."""
    compaction_major_seconds: float = _setting(_seconds(0.1, 31 * 86400), 86400.0)
    """Time between two major compactions."""
    compaction_major_hours: str = _setting(_hours, "")
    """When major compactions may begin, in UTC: ``22:00-06:00,12:00-13:00``. Not given: any time."""
    compaction_bytes_per_second: int = _setting(_integer(64 * 1024, 1024 * 1024 * _MEBIBYTE), 32 * _MEBIBYTE)
    """Rate limit of compaction, reads and writes together."""
    repair_read_bytes_per_second: int = _setting(_integer(64 * 1024, 1024 * 1024 * _MEBIBYTE), 64 * _MEBIBYTE)
    """Most bytes per second that other bookies may read from this one to repair ledgers. They are served after readers,
    and the rate falls while ordinary adds are slow."""
    scrub_bytes_per_second: int = _setting(_integer(0, 1024 * 1024 * _MEBIBYTE), 4 * _MEBIBYTE)
    """Rate at which everything stored is verified in the background; 0: never."""
    scrub_pause_seconds: float = _setting(_seconds(0.01, 31 * 86400), 3600.0)
    """Pause between two rounds of scrubbing."""
    repair: bool = _setting(_switch, True)
    """Whether this bookie takes part in the repair of lost copies."""
    repair_lost_seconds: float = _setting(_seconds(0, 31 * 86400), 1200.0)
    """How long a bookie may be missing before it is declared lost and its copies are made again elsewhere."""
    repair_audit_seconds: float = _setting(_seconds(0.1, 86400), 300.0)
    """Time between two rounds of the auditor."""
    repair_check_days: float = _setting(_number(0.001, 365), 7.0)
    """Time in which the members of every closed ledger are asked once what they lack."""
    repair_open_seconds: float = _setting(_seconds(0, 31 * 86400), 900.0)
    """How long an open ledger with a lost member is left to its writer before it may be recovered."""
    repair_recover_abandoned: bool = _setting(_switch, True)
    """Whether ledgers whose writer has gone are recovered before one more loss would block that for ever."""
    repair_password_files: tuple[Path, ...] = _setting(_paths, ())
    """Files with passwords with which abandoned ledgers may be recovered, besides the empty password."""
    repair_census_bytes: int = _setting(_integer(1024 * 1024, 1024 * 1024 * _MEBIBYTE), 512 * _MEBIBYTE)
    """Memory for the auditor's index of ledgers: about 8 bytes per ledger and member."""
    repair_bytes_per_second: int = _setting(_integer(64 * 1024, 1024 * 1024 * _MEBIBYTE), 64 * _MEBIBYTE)
    """Most bytes that are copied into this bookie per second. The rate falls while ordinary adds are slow."""
    repair_balance_seconds: float = _setting(_seconds(0, 31 * 86400), 0.0)
    """How often the auditor looks by itself whether bookies are unevenly full, and has closed ledgers moved from full
    ones to empty ones; 0: only when an operator asks for it."""
    disk_check_seconds: float = _setting(_seconds(0.01, 3600), 5.0)
    """Time between two checks of the disks' free space."""
    disk_warn_bytes: int = _setting(_integer(0, 1024 * 1024 * 1024 * _MEBIBYTE), 4096 * _MEBIBYTE)
    """Free space below which the bookie logs a warning."""
    disk_writable_bytes: int = _setting(_integer(0, 1024 * 1024 * 1024 * _MEBIBYTE), 2048 * _MEBIBYTE)
    """Free space from which a bookie that became read-only because of a full disk takes adds again."""
    disk_read_only_bytes: int = _setting(_integer(0, 1024 * 1024 * 1024 * _MEBIBYTE), 1024 * _MEBIBYTE)
    """Free space below which the bookie is read-only; below half of it, it refuses recovery adds too."""
    admin_socket: Path | None = _setting(_path, None)
    """The socket of the administration interface. None: ``data_dir/admin.sock``."""
    admin_listen: str = _setting(_optional_address, "")
    """``HOST:PORT`` at which the administration interface answers over TCP, too: on a loopback interface requests that
    only observe the bookie; elsewhere principals, over TLS, which needs ``tls`` and ``auth = "required"``. Not given:
    nowhere."""
    lease_seconds: float = _setting(_seconds(1, 600), 10.0)
    """How long the metadata store keeps this bookie registered after it last renewed its lease."""
    start_timeout_seconds: float = _setting(_seconds(0, 86400), 30.0)
    """How long a starting bookie waits for a metadata store that does not answer."""
    drain_timeout_seconds: float = _setting(_seconds(0, 3600), 10.0)
    """How long a stopping bookie waits until the requests it has begun are answered."""

    @property
    def authentication_required(self) -> bool:
        """Whether clients must be principals of the cluster."""
        return self.auth == "required" or (self.auth == "auto" and not is_loopback(self.host))

    @property
    def verifies_new_ledgers(self) -> bool:
        """Whether ledgers that are new here are looked up in the metadata."""
        return self.verify_new_ledgers == "true" or (self.verify_new_ledgers == "auto" and self.authentication_required)

    @property
    def journal_directory(self) -> Path:
        """Where the journal is."""
        return self.journal_dir if self.journal_dir is not None else self.data_dir / "journal"

    @property
    def tls_files(self) -> ServerFiles:
        """The files of a bookie with TLS, as the settings name them."""
        return ServerFiles(
            certificate=str(self.tls_certificate),
            key=str(self.tls_key),
            ca=None if self.tls_ca is None else str(self.tls_ca),
            minimum=self.tls_minimum,
        )

    @property
    def directories(self) -> dict[str, Path]:
        """Every directory of the bookie by its role, in a fixed order."""
        further = {f"entries-{number}": path for number, path in enumerate(self.entry_dirs, 1)}
        return {"data": self.data_dir, "journal": self.journal_directory, **further}

    @property
    def admin_socket_path(self) -> Path:
        """Where the socket of the administration interface is."""
        return self.admin_socket if self.admin_socket is not None else self.data_dir / SOCKET_NAME

    @property
    def registered_host_id(self) -> str | None:
        """The id of the host to register; None while it is to be found out."""
        return None if self.host_id == HOST_ID_AUTO else self.host_id

    def as_json(self) -> dict[str, Any]:
        """Every setting with its value, as JSON has it, without passwords."""
        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        values["metadata"] = without_password(self.metadata)
        return {
            name: str(value) if isinstance(value, Path) else list(map(str, value)) if type(value) is tuple else value
            for name, value in values.items()
        }


_PARSERS: dict[str, _Parse] = {setting.name: setting.metadata["parse"] for setting in fields(BookieConfig)}


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return _SHARED_VARIABLES.get(key, ENVIRONMENT_PREFIX + key.upper())


def load_config(config_file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> BookieConfig:
    """The settings in force. ``flags`` holds those given on the command line; None means not given.

    Raises :class:`InvalidArgumentError` naming the key and its source.
    """
    settings: dict[str, Any] = {}
    if config_file is not None:
        for key, value in _read_toml(config_file).items():
            settings[key] = _parse(key, value, f"{config_file}: {key}", known_from=str(config_file))
    for key in _PARSERS:
        variable = variable_of(key)
        if variable in environment:
            settings[key] = _parse(key, environment[variable], f"environment: {variable}")
    known_variables = {ENVIRONMENT_PREFIX + key.upper() for key in _PARSERS if key not in _SHARED_VARIABLES}
    for variable in environment:
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known_variables:
            raise InvalidArgumentError(
                f"environment: {variable} is not a setting of a bookie; {_names(known_variables)}"
            )
    for key, value in flags.items():
        if value is not None:
            settings[key] = _parse(key, value, f"--{key.replace('_', '-')}", known_from="flags")
    if "data_dir" not in settings:
        raise InvalidArgumentError(
            f"data_dir is not set: give --data-dir DIR, {ENVIRONMENT_PREFIX}DATA_DIR or data_dir in the config file"
        )
    config = BookieConfig(**settings)
    if config.advertise is None and config.host in _UNSPECIFIED_HOSTS:
        raise InvalidArgumentError(
            f"host {config.host} listens on every interface, but clients cannot connect to that address: give the "
            "address of this bookie with --advertise HOST:PORT (advertise in the config file)"
        )
    _check_security(config)
    return config


def _check_security(config: BookieConfig) -> None:
    """Settings that need one another. Raises :class:`InvalidArgumentError`."""
    if config.authentication_required and config.tls == "off" and not is_loopback(config.host):
        raise InvalidArgumentError(
            f"host {config.host} can be reached by other hosts, and clients prove who they are over TLS only: set tls "
            '(docs/security.md has the steps), or auth = "none" to let every host read and write everything'
        )
    if config.authentication_required and config.repair and config.tls_ca is None and config.key_file is None:
        raise InvalidArgumentError(
            "authentication is required, also of bookies that repair: set tls_ca, so that bookies know one another by "
            "their certificates, or key_file"
        )
    admin_host = config.admin_listen.rpartition(":")[0]
    if admin_host and not is_loopback(admin_host) and (config.tls == "off" or not config.authentication_required):
        raise InvalidArgumentError(
            f"admin_listen {config.admin_listen} can be reached by other hosts, to which the administration interface "
            'answers over TLS and only as principals of the cluster: set tls and auth = "required" (docs/security.md '
            "has the steps), or listen on a loopback address like 127.0.0.1:3180"
        )
    for name in ("tls_certificate", "tls_key"):
        if config.tls != "off" and getattr(config, name) is None:
            raise InvalidArgumentError(f'tls = "{config.tls}" needs {name}; `octavo tls init` makes certificates')


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"config file {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"config file {path}: not valid TOML: {error}") from error


def _parse(key: str, value: object, source: str, *, known_from: str = "") -> Any:
    parse = _PARSERS.get(key)
    if parse is None:
        raise InvalidArgumentError(f"{known_from}: {key!r} is not a setting of a bookie; {_names(_PARSERS)}")
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{source} {error}, not {value!r}") from None


def _names(known: Mapping[str, _Parse] | set[str]) -> str:
    return f"there are {', '.join(sorted(known))}"
