"""Bookies that do not know terms: older versions, without the capability ``terms``.

Such a bookie ignores the term of a request. It would take adds of a term that is over, and after the first fence it
refuses the adds of every term (rule T7). So a writer of a term sends it nothing: for the writer it is a bookie that
cannot be reached, until another version runs there.
"""

from collections.abc import Collection

from octavo.client.wire.connection import BookieConnection
from octavo.protocol.errors import OctavoError, UnsupportedOperationError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import CAPABILITY_TERMS


def lacks_terms(connection: BookieConnection) -> bool:
    """Whether the bookie that is connected does not know terms. Nothing is known of one that is not connected."""
    return connection.connected and CAPABILITY_TERMS not in connection.capabilities


def about_terms(names: Collection[BookieId]) -> str:
    """For the end of an error message: that these bookies are too old for a stream; nothing if there are none."""
    if not names:
        return ""
    which = f"bookie {next(iter(names))} does" if len(names) == 1 else f"bookies {', '.join(sorted(names))} do"
    return f"; {which} not know terms, which streams need: upgrade to this version"


class WithoutTerms:
    """Stands for the connection to a bookie that does not know terms, and takes nothing. The connection itself tells
    its listeners when that changes."""

    connected = writable = denied = False

    def __init__(self, connection: BookieConnection) -> None:
        self.bookie_id = connection.bookie_id
        self.last_error: OctavoError = UnsupportedOperationError(
            f"bookie {connection.bookie_id} does not know terms; upgrade it"
        )

    def send(self, *_arguments: object, **_options: object) -> bool:
        """Never taken."""
        return False

    def post(self, *_arguments: object, **_options: object) -> bool:
        """Never taken."""
        return False


type TermConnection = BookieConnection | WithoutTerms


def for_term(connection: BookieConnection, term: int) -> TermConnection:
    """The connection that a writer of ``term`` sends through; 0 for a ledger with one writer, which every bookie
    knows."""
    return WithoutTerms(connection) if term and lacks_terms(connection) else connection
