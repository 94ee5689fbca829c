"""The states of a stream. Pure."""

import enum


class StreamState(enum.Enum):
    """The state of the current term, that is, of the highest one."""

    OPEN = "open"
    """Its writer adds to it."""
    IN_RECOVERY = "in-recovery"
    """A client takes the stream over, and finds the end of the term."""
    AT_REST = "at-rest"
    """It has an end, and there is no writer. Any client may open the next term."""
    CLOSED = "closed"
    """It has an end, and there will be no other term."""
