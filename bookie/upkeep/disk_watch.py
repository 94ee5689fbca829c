"""From the free space of its disks to whether a bookie is writable. Pure.

Three limits of free bytes apply to each disk by itself. Below ``warn`` the bookie logs a warning; below ``read_only``
the disk is *short*; a short disk stays so until it has ``writable`` bytes free, so that the state does not flap.

The journal and the index have one disk each, and a bookie is read-only when either is short. Entry logs may have
several disks; the bookie is read-only when all of them are short.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Final, NamedTuple

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Free bytes. Raises :class:`InvalidArgumentError` when they are not in order."""

    warn_bytes: int
    writable_bytes: int
    read_only_bytes: int
    """Must hold what has been acknowledged and not yet flushed: both generations of the write cache, two
    journal segments, and the merge of an index."""

    def __post_init__(self) -> None:
        if not 0 <= self.read_only_bytes <= self.writable_bytes <= self.warn_bytes:
            raise InvalidArgumentError(
                f"free disk space: read-only below {self.read_only_bytes}, writable again from {self.writable_bytes}, "
                f"warning below {self.warn_bytes} bytes: the numbers must ascend in this order"
            )


@dataclass(frozen=True, slots=True)
class DiskState:
    """The known state of a bookie's disks."""

    short: frozenset[PurePath] = frozenset()
    """Directories whose disk is short of space."""
    warned: frozenset[PurePath] = frozenset()
    read_only: bool = False
    out_of_space: bool = False
    """Less than half of ``read_only_bytes`` is left: the bookie refuses recovery adds too."""

    @property
    def announced(self) -> tuple[bool, bool, bool]:
        """The state that clients and operators are told: low space, read-only, out of space."""
        return bool(self.warned), self.read_only, self.out_of_space


class Shortage(NamedTuple):
    """The space that a bookie lacks which is read-only for that reason."""

    free_bytes: int
    """Of the short disk that has least."""
    wanted_bytes: int
    """With this share free the disk is not short any more."""


NO_SHORTAGE: Final = Shortage(0, 0)


@dataclass(frozen=True, slots=True)
class DiskRoles:
    """Which directories a bookie cannot do without (``single``), and those of which it needs one (``entries``)."""

    single: tuple[PurePath, ...]
    entries: tuple[PurePath, ...]

    @property
    def all(self) -> tuple[PurePath, ...]:
        return tuple(dict.fromkeys((*self.single, *self.entries)))


def judge(
    before: DiskState,
    free_bytes: Mapping[PurePath, int],
    roles: DiskRoles,
    limits: DiskLimits,
    met_full: Iterable[PurePath] = (),
) -> DiskState:
    """The state after a look at the disks. ``met_full``: directories in which a write has found the disk full, whatever
    the free space says (a quota, a limit of file sizes)."""
    refused = frozenset(met_full)
    short = frozenset(
        directory
        for directory, free in free_bytes.items()
        if free < (limits.writable_bytes if directory in before.short else limits.read_only_bytes)
        or directory in refused
    )
    warned = frozenset(directory for directory, free in free_bytes.items() if free < limits.warn_bytes)
    read_only = any(directory in short for directory in roles.single) or short.issuperset(roles.entries)
    tight = frozenset(directory for directory in short if free_bytes[directory] < limits.read_only_bytes // 2)
    tight |= refused & short
    out_of_space = any(directory in tight for directory in roles.single) or tight.issuperset(roles.entries)
    return DiskState(short, warned, read_only, out_of_space)


def shortage_of(state: DiskState, free_bytes: Mapping[PurePath, int], limits: DiskLimits) -> Shortage:
    """Why the bookie is read-only, and how much it wants. Where a write has found a disk full, whatever its free space
    says, more may be free than is wanted."""
    if not state.read_only:
        return NO_SHORTAGE
    return Shortage(min(free_bytes[directory] for directory in state.short), limits.writable_bytes)
