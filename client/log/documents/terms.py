"""The terms of a log and those of its stream. Pure.

A log counts its leaders: its term is one below that of its stream, whose first term belongs to the creator.
"""

from octavo.protocol.places import FIRST_TERM


def log_term(stream_term: int) -> int:
    """The term of a log while its stream has this term: the creator's does not count."""
    return stream_term - FIRST_TERM


def stream_term(log_term: int) -> int:
    """The inverse of :func:`log_term`."""
    return log_term + FIRST_TERM
