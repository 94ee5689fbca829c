"""The bookies of one host, dealt out from one settings file: their names, disks, ports and settings. Pure.

Bookie number k of N gets of D disks those with the numbers k, k + N, ...: the first holds its data, further ones more
entry logs. With fewer disks than bookies, bookie k shares disk (k - 1) % D + 1. A bookie that exists keeps its
directories and its port: what would move them is refused, and a disk is only ever added behind the others.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass

SETTINGS_FILE: Final = "host.toml"

BOOKIES_MAX: Final = 256

DEALT: Final = (
    "data_dir",
    "journal_dir",
    "entry_dirs",
    "port",
    "advertise",
    "admin_listen",
    "admin_socket",
    "bookie_id",
)
"""Settings of a bookie that are dealt out: the file of the host cannot give them to all bookies alike."""

_KEPT: Final = ("data_dir", "journal_dir", "port")
"""What a bookie that exists keeps, besides the entry directories that it has."""

_HEADER: Final = "# Written by `octavo deploy host` from {path}. Change that file and run the command again.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The settings file of a host."""

    bookies: int
    name: str
    disks: tuple[PurePosixPath, ...]
    journal_disks: tuple[PurePosixPath, ...] = ()
    port_first: int = 3181
    advertise_host: str = ""
    admin_port_first: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


class PlannedBookie(NamedTuple):
    """One bookie of the host."""

    name: str
    settings: dict[str, Any]


def read_host(text: str, path: str) -> HostSettings:
    """The settings in this file. Raises :class:`InvalidArgumentError` naming the file and what is wrong."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    known = HostSettings.__dataclass_fields__
    if unknown := sorted(found.keys() - known.keys()):
        raise InvalidArgumentError(f"{path}: {unknown[0]} is not a setting of a host; there are {', '.join(known)}")
    bookies = _integer(found, "bookies", path, 1, BOOKIES_MAX)
    settings = found.get("settings", {})
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{path}: settings must be a table")
    if dealt := sorted(settings.keys() & set(DEALT)):
        raise InvalidArgumentError(f"{path}: {dealt[0]} is dealt out to each bookie, and cannot be set for all of them")
    return HostSettings(
        bookies=bookies,
        name=_text(found, "name", path),
        disks=_paths(found, "disks", path, required=True),
        journal_disks=_paths(found, "journal_disks", path, required=False),
        port_first=_integer({"port_first": 3181, **found}, "port_first", path, 1, 65536 - bookies),
        advertise_host=_text(found, "advertise_host", path, ""),
        admin_port_first=_integer({"admin_port_first": 0, **found}, "admin_port_first", path, 0, 65536 - bookies),
        settings=settings,
    )


def bookies_of(host: HostSettings) -> list[PlannedBookie]:
    """The bookies with their settings, in order. Raises :class:`InvalidArgumentError` if two of their ports are the
    same."""
    ports = range(host.port_first, host.port_first + host.bookies)
    admin_ports = range(host.admin_port_first, host.admin_port_first + host.bookies) if host.admin_port_first else ()
    if taken := sorted(set(ports) & set(admin_ports)):
        raise InvalidArgumentError(
            f"port {taken[0]} would be that of a bookie and of the metrics of another one: the {host.bookies} ports "
            f"from port_first = {host.port_first} and from admin_port_first = {host.admin_port_first} overlap"
        )
    planned = []
    for number, port in enumerate(ports):
        name = f"{host.name}-{number + 1}"
        data_dir, *entry_dirs = (disk / name for disk in _dealt(host.disks, number, host.bookies))
        settings: dict[str, Any] = {"data_dir": str(data_dir)}
        if host.journal_disks:
            settings["journal_dir"] = str(_dealt(host.journal_disks, number, host.bookies)[0] / f"{name}-journal")
        if entry_dirs:
            settings["entry_dirs"] = [str(path) for path in entry_dirs]
        settings["port"] = port
        if host.advertise_host:
            settings["advertise"] = f"{host.advertise_host}:{port}"
        if admin_ports:
            settings["admin_listen"] = f"127.0.0.1:{admin_ports[number]}"
        planned.append(PlannedBookie(name, {**settings, **host.settings}))
    return planned


def check_kept(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidArgumentError` if a bookie that exists would not find its data, or its clients not the
    bookie."""
    for key in _KEPT:
        if before.get(key) != after.get(key):
            raise InvalidArgumentError(
                f"bookie {name} exists, with {key} = {before.get(key)!r}; it would become {after.get(key)!r}. Let the "
                "number of bookies and the order of disks stay as they are, and add new ones at the end; or drain and "
                "retire the bookie, and remove its settings"
            )
    had, has = before.get("entry_dirs", []), after.get("entry_dirs", [])
    if list(has[: len(had)]) != list(had):
        raise InvalidArgumentError(
            f"bookie {name} exists, with entry_dirs = {had}; they would become {has}. Entry logs in a directory that "
            "is left out would be lost: add disks at the end, as many as there are bookies"
        )


def as_toml(settings: Mapping[str, Any], path: PurePosixPath) -> str:
    """The settings file of one bookie."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items()]
    return _HEADER.format(path=path) + "".join(lines)


def is_ours(text: str) -> bool:
    """Whether ``octavo deploy host`` has written this settings file of a bookie."""
    return text.startswith(_HEADER.partition("{")[0])


def metrics_targets(bookies: Sequence[PlannedBookie]) -> str | None:
    """The addresses of the bookies' metrics, as Prometheus reads them from a file; None if there are none."""
    targets = [
        {"targets": [bookie.settings["admin_listen"]], "labels": {"bookie": bookie.name}}
        for bookie in bookies
        if "admin_listen" in bookie.settings
    ]
    return json.dumps(targets, indent=2) + "\n" if targets else None


def _dealt(disks: Sequence[PurePosixPath], number: int, bookies: int) -> list[PurePosixPath]:
    return list(disks[number::bookies]) or [disks[number % len(disks)]]


def _integer(found: Mapping[str, Any], key: str, path: str, low: int, high: int) -> int:
    value = found.get(key)
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgumentError(f"{path}: {key} must be a whole number from {low} to {high}")
    return value


def _text(found: Mapping[str, Any], key: str, path: str, default: str | None = None) -> str:
    value = found.get(key, default)
    if not isinstance(value, str) or (value == "" and default is None):
        raise InvalidArgumentError(f"{path}: {key} must be a text")
    return value


def _paths(found: Mapping[str, Any], key: str, path: str, *, required: bool) -> tuple[PurePosixPath, ...]:
    value = found.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise InvalidArgumentError(f"{path}: {key} must be a list of directories")
    if required and not value:
        raise InvalidArgumentError(f"{path}: {key} must name at least one directory")
    if len(set(value)) < len(value):
        raise InvalidArgumentError(f"{path}: {key} names a directory twice")
    return tuple(map(PurePosixPath, value))
