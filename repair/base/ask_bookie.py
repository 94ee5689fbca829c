"""Questions to a single bookie that may be gone, cut off or hung: whether it serves, and what it says of itself."""

from collections.abc import Mapping
from typing import Any, Final

from octavo.client.wire.pool import ConnectionPool
from octavo.protocol.errors import (
    BookieUnavailableError,
    ClientClosedError,
    OctavoError,
    OctavoTimeoutError,
    WrongClusterError,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Info, InfoAnswer, Ping

ANSWER_SECONDS: Final = 2.0
"""Time that a bookie has to answer."""


async def serves(pool: ConnectionPool, name: BookieId) -> bool:
    """Whether the bookie answers a hello at the address under which it is registered, or else at the one in its cookie:
    a bookie whose session has expired serves on (rule M2). Raises :class:`ClientClosedError`."""
    try:
        await pool.get(name).request(Ping(), timeout_seconds=ANSWER_SECONDS)
    except ClientClosedError:
        raise
    except OctavoError:
        return False
    return True


async def may_serve(pool: ConnectionPool, name: BookieId) -> bool:
    """Whether the bookie may be alive: it answers a hello, were it with a refusal. Raises as :func:`serves`.

    For the decision that a bookie never serves again (rule O4): one that denies this client serves others on.
    :func:`serves` counts only success, because repair needs bookies that give copies out.
    """
    try:
        await pool.get(name).request(Ping(), timeout_seconds=ANSWER_SECONDS)
    except ClientClosedError:
        raise
    except OctavoError as error:
        # Without a connection, requests fail with the reason of the last attempt as their cause.
        reason = error.__cause__ if isinstance(error, BookieUnavailableError) and error.__cause__ else error
        return not isinstance(reason, BookieUnavailableError | OctavoTimeoutError | WrongClusterError | OSError)
    return True


async def facts_of(pool: ConnectionPool, name: BookieId) -> Mapping[str, Any] | None:
    """The facts that the bookie shows in INFO; None if it does not answer. Raises :class:`ClientClosedError`."""
    try:
        answer = await pool.get(name).request(Info(), timeout_seconds=ANSWER_SECONDS)
    except ClientClosedError:
        raise
    except OctavoError:
        return None
    return answer.facts if isinstance(answer, InfoAnswer) else None
