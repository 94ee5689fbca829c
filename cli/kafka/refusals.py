"""Refusals of the gateway's parts, as the command line tells them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from octavo.cli.session import CommandError
from octavo.gateway.codes import Code, RefusedError
from octavo.protocol.errors import InvalidArgumentError

_MISUSED: Final = frozenset(
    {
        Code.INVALID_CONFIG,
        Code.INVALID_GROUP_ID,
        Code.INVALID_PARTITIONS,
        Code.INVALID_REPLICATION_FACTOR,
        Code.INVALID_REQUEST,
        Code.INVALID_TOPIC_EXCEPTION,
    }
)
"""What is wrong with the command, whatever the cluster holds."""


@contextmanager
def told() -> Iterator[None]:
    """Raises :class:`InvalidArgumentError` or :class:`CommandError` for a refusal within the block."""
    try:
        yield
    except RefusedError as error:
        if error.code in _MISUSED:
            raise InvalidArgumentError(error.text) from error
        raise CommandError(error.text) from error
