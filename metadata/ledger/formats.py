"""The numbers of the stored forms under the id of a ledger: the format tells its kind. Pure.

A number is raised only for changes that an older reader must not ignore.
"""

from typing import Final

LEDGER_FORMAT: Final = 1
"""Of ledgers with one writer."""

STREAM_FORMAT: Final = 2
"""Of streams."""

ARCHIVED_STREAM_FORMAT: Final = 3
"""Of streams of which some entries lie in objects (rule J4): bookies may have no copies of them."""
