"""Errors of starting a bookie. Errors that are sent to clients are in :mod:`octavo.protocol.errors`."""

from octavo.protocol.errors import OctavoError


class BookieStartError(OctavoError):
    """The bookie cannot start; the message has the reason and the remedy. Another attempt may succeed."""

    retryable = True


class DataWrongError(BookieStartError):
    """The bookie's data or identity are wrong. It cannot start before an operator has corrected them."""

    retryable = False
