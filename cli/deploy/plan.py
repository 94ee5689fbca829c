"""The files that `octavo deploy` writes on a host: which files, where, with which text. Pure.

Installed files lie in the administrator's directories below /etc, which every version of systemd reads and which no
package manager owns. Paths are absolute paths of the host; the shell puts them below another root if asked.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from octavo.protocol.errors import InvalidArgumentError

STATE_DIRECTORY: Final = PurePosixPath("/var/lib/octavo")
"""What the unit lets a bookie write. Other directories need a drop-in."""

SETTINGS_DIRECTORY: Final = PurePosixPath("/etc/octavo")

USER: Final = "octavo"

SHIPPED_COMMAND: Final = "/opt/octavo/bin/octavo"
"""The command in the shipped unit; an installation puts its own there."""

DESTINATIONS: Final[Mapping[str, str]] = {
    "octavo-bookie@.service": "/etc/systemd/system/octavo-bookie@.service",
    "octavo-console.service": "/etc/systemd/system/octavo-console.service",
    "octavo-gateway@.service": "/etc/systemd/system/octavo-gateway@.service",
    "octavo.target": "/etc/systemd/system/octavo.target",
    "octavo.sysusers": "/etc/sysusers.d/octavo.conf",
    "octavo.tmpfiles": "/etc/tmpfiles.d/octavo.conf",
}
"""Shipped file -> where `octavo deploy install` puts it."""

SETTINGS_FILE: Final = "bookie.toml"

HIDDEN_DIRECTORIES: Final = tuple(map(PurePosixPath, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
"""What the unit hides from a bookie (ProtectHome=, PrivateTmp=): no command or data of a bookie can lie there."""

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class PlannedFile(NamedTuple):
    """One file to write."""

    path: PurePosixPath
    text: str


def units(shipped: Mapping[str, str], command: PurePosixPath) -> list[PlannedFile]:
    """The files of an installation. ``shipped`` has the text of every file of :data:`DESTINATIONS`; ``command`` is the
    absolute path of `octavo`.

    Raises :class:`InvalidArgumentError` if a bookie under the unit could not see the command, or systemd would read the
    path as something else.
    """
    if (hidden := hidden_below(command)) is not None:
        raise InvalidArgumentError(
            f"the units cannot run {command}: they hide {hidden} from bookies (ProtectHome=, PrivateTmp=). Install "
            "Octavo where every user can read it, for example in an environment made by `python3 -m venv "
            "/opt/octavo`, and run /opt/octavo/bin/octavo"
        )
    if not re.fullmatch(r"/[A-Za-z0-9_./+@:-]*", str(command)):
        raise InvalidArgumentError(
            f"{command}: the path of the command may contain only letters, digits and _./+@:- in a systemd unit"
        )
    return [
        PlannedFile(PurePosixPath(path), shipped[name].replace(SHIPPED_COMMAND, str(command)))
        for name, path in DESTINATIONS.items()
    ]


def hidden_below(path: PurePosixPath) -> PurePosixPath | None:
    """The directory that hides ``path`` from a bookie under the unit; None if the bookie can see it."""
    return next((hidden for hidden in HIDDEN_DIRECTORIES if path.is_relative_to(hidden)), None)


def check_instance(name: str) -> str:
    """The name of a bookie's unit and settings, if it is valid. Raises :class:`InvalidArgumentError`."""
    if not _INSTANCE.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} cannot name a bookie's unit: use 1 to 64 letters, digits and _.-, and begin with a letter or "
            "digit"
        )
    return name


def settings_path(name: str) -> PurePosixPath:
    """The settings of the bookie ``name``."""
    return SETTINGS_DIRECTORY / f"{name}.toml"


def drop_in_path(name: str) -> PurePosixPath:
    """The drop-in that lets the bookie ``name`` write outside :data:`STATE_DIRECTORY`."""
    return PurePosixPath(f"/etc/systemd/system/octavo-bookie@{name}.service.d/octavo-directories.conf")


def first_settings(example: str, name: str) -> str:
    """The settings of a new bookie, from the shipped example: its data lie in a directory named after it."""
    text, replaced = re.subn(
        r'^data_dir = ".*"$', f'data_dir = "{STATE_DIRECTORY / name}"', example, count=1, flags=re.MULTILINE
    )
    assert replaced, "the example sets data_dir"
    return text


def directories_outside(directories: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """Those of a bookie's directories that the unit alone does not let it write, each once, in order.

    Raises :class:`InvalidArgumentError` for a relative path and for a directory that the unit hides.
    """
    for directory in directories:
        if not directory.is_absolute() or ".." in directory.parts:
            raise InvalidArgumentError(f"{directory}: a bookie under systemd needs absolute paths without ..")
        if (hidden := hidden_below(directory)) is not None:
            raise InvalidArgumentError(
                f"{directory}: the unit hides {hidden} from bookies; choose a directory below {STATE_DIRECTORY}, or on "
                "a disk mounted elsewhere, such as /srv"
            )
    return list(dict.fromkeys(d for d in directories if not d.is_relative_to(STATE_DIRECTORY)))


def drop_in(directories: Sequence[PurePosixPath]) -> str:
    """The text of the drop-in for these directories. A directory that is not mounted must not be skipped silently, so
    none is optional."""
    lines = [f'ReadWritePaths="{_escaped(directory)}"\n' for directory in directories]
    mounts = [f'RequiresMountsFor="{_escaped(directory)}"\n' for directory in directories]
    return (
        "# Written by `octavo deploy bookie`: directories of this bookie outside /var/lib/octavo.\n"
        f"[Unit]\n{''.join(mounts)}\n[Service]\n{''.join(lines)}"
    )


def _escaped(path: PurePosixPath) -> str:
    text = str(path)
    if not text.isprintable():
        raise InvalidArgumentError(f"{text!r}: a directory in a systemd unit must have a printable name")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def sqlite_directory(metadata_uri: str) -> PurePosixPath | None:
    """The directory of an embedded metadata store, which a bookie must be able to write; None for other stores."""
    prefix = "sqlite:///"
    if not metadata_uri.startswith(prefix):
        return None
    return PurePosixPath(metadata_uri.removeprefix(prefix).partition("?")[0]).parent
