"""The stored form of an entry of a log with keys. Pure.

Such a log says so in its document, whose format older versions refuse, so every entry of it has this form, also one
without a key:

======  ==========================  ======================================
offset  field
======  ==========================  ======================================
0       length of the key, n        u8; 0: the entry has none
1       key                         n bytes, UTF-8
1 + n   payload                     the rest
======  ==========================  ======================================

The key stands in the entry itself: it is there exactly if the entry is, whatever becomes of its writer.
"""

from typing import NamedTuple

from octavo.protocol.errors import LogDamagedError


class Keyed(NamedTuple):
    """An entry of a log with keys, taken apart: what ``keyed_of()`` returns.

    Examples:
        >>> octavo.keyed_of(b"\\x00100 EUR")
        Keyed(key=None, payload=b'100 EUR')
    """

    key: str | None
    payload: bytes


def with_key(key: bytes, payload: bytes) -> bytes:
    """The stored form; an empty ``key`` is none."""
    return b"%c%b%b" % (len(key), key, payload)


def keyed_of(stored: bytes) -> Keyed:
    """Take an entry of a log with keys apart, as ``log.reader_at(position, stored=True)`` reads it.

    Examples:
        >>> octavo.keyed_of(b"\\x0ainvoice-17100 EUR")
        Keyed(key='invoice-17', payload=b'100 EUR')

    Raises:
        LogDamagedError: The bytes have another form.
    """
    length = stored[0] if stored else 0
    if not stored or len(stored) <= length:
        raise LogDamagedError("an entry of a log with keys is cut: it was not written by a client of this log")
    if not length:
        return Keyed(None, stored[1:])
    try:
        return Keyed(stored[1 : 1 + length].decode(), stored[1 + length :])
    except UnicodeDecodeError as error:
        raise LogDamagedError("the key of an entry is no text: it was not written by a client of this log") from error
