"""The states of a log's writer. Pure.

=========  =========================  ================================  ===========================
life       adds                       the segment fails                 next
=========  =========================  ================================  ===========================
WRITING    sent                       HEALING                           HEALING, LOST, ENDED
HEALING    wait                       (has failed)                      WRITING, LOST, ENDED
LOST       refused; those sent may    all that was sent is in doubt     ENDED
           still be acknowledged
ENDED      refused                    ignored                           -
=========  =========================  ================================  ===========================
"""

import enum
from typing import Final


class Life(enum.Enum):
    """Where a writer stands; see the module."""

    WRITING = "writing"
    HEALING = "healing"
    LOST = "lost"
    ENDED = "ended"


NEXT: Final = {
    Life.WRITING: {Life.HEALING, Life.LOST, Life.ENDED},
    Life.HEALING: {Life.WRITING, Life.LOST, Life.ENDED},
    Life.LOST: {Life.ENDED},
    Life.ENDED: {Life.ENDED},
}
"""The states that may follow each."""
