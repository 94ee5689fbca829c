"""Errors of a bookie's own life; those that travel are in :mod:`octavo.protocol.errors`."""

from octavo.protocol.errors import OctavoError


class BookieStartError(OctavoError):
    """The bookie cannot start; the message says why and what to do. Another attempt may succeed."""

    retryable = True


class DataWrongError(BookieStartError):
    """The bookie's data or identity are wrong. It cannot start before somebody puts them right."""

    retryable = False
