"""Asks before a log is deleted."""

from typing import TYPE_CHECKING

from octavo.cli.asking import agreed, typed
from octavo.cli.log.overview import size_in_words
from octavo.cli.output import counted
from octavo.cli.session import CommandError
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.names import check_log_name
from octavo.client.log.overview import LogOverview, overview_of

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore


async def confirm_deletion(store: "MetadataStore", name: str) -> None:
    """Ask whether the log may be deleted; if a client leads it, for its name.

    Where there is no such log, or its metadata cannot be understood, nothing is asked: the deletion says so. Raises
    :class:`CommandError` for any other answer, and where there is no terminal to ask; :class:`InvalidArgumentError` for
    what can be no name of a log.
    """
    check_log_name(name)
    log = await overview_of(store, name)
    if not isinstance(log, LogOverview):
        return
    cursors = await read_cursors(store, log.log_id)
    holds = f"log {name} holds {_entries(log)}, has {counted(len(cursors), 'cursor')}"
    if log.leader is None:
        may = await agreed(
            f"{holds} and no leader. Delete it?", without_terminal=f"deleting log {name} loses its entries"
        )
    else:
        may = await typed(
            name,
            f"{holds}, and {log.leader!r} leads it and fails with its next add. Type the log's name to delete it:",
            without_terminal=f"log {name} is led by {log.leader!r}, which fails if it is deleted",
        )
    if not may:
        raise CommandError("nothing has been deleted")


def _entries(log: LogOverview) -> str:
    more = "" if log.end_is_known else "at least "
    closed = f" ({size_in_words(log.bytes)})" if log.end_is_known else ""
    return f"{more}{counted(log.end - log.first_position, 'entry', 'entries')}{closed}"
