"""Errors of objects and of the stores that hold them, by what the caller can do about them. Pure."""

import enum

from octavo.protocol.errors import OctavoError


class ArchiveError(OctavoError):
    """Base of the errors of this room."""


class WrongEntryError(ArchiveError):
    """An entry cannot go into the object that is being written: damaged, of another ledger, or not the next one."""


class ObjectTooLargeError(ArchiveError):
    """The entries do not fit into one object."""


class StoreAwayError(ArchiveError):
    """The store does not answer, or answers that it is busy. Whatever was asked for may have happened."""

    retryable = True
    may_have_happened_default = True


class StoreRefusedError(ArchiveError):
    """The store refuses: credentials, a missing bucket, a prefix of another owner, an object that must be restored."""


class ObjectMissingError(ArchiveError):
    """The store can be used, and has no object of this name."""


class Damage(enum.Enum):
    """The part of an object that is not as it was written."""

    LENGTH = "length"
    """The object or an answer of the store is shorter or longer than it must be."""
    HEAD = "head"
    INDEX = "index"
    TAIL = "tail"
    VERSION = "version"
    """A format that this release does not read."""
    NAME = "name"
    """Intact, but not the object that was asked for."""
    ENTRY = "entry"
    """An entry is damaged, missing, of another ledger or out of order."""
    CHECKSUM = "checksum"
    """The CRC32C or the SHA-256 of the whole differs."""


class ObjectDamagedError(ArchiveError):
    """The object is not as it was written; ``damage`` is the part in which that was seen."""

    def __init__(self, damage: Damage, message: str) -> None:
        super().__init__(message)
        self.damage = damage
