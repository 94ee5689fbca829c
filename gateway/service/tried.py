"""The outcome of what a request asks for, as answers tell it: a code, and a sentence for people."""

from collections.abc import Awaitable

from octavo.gateway.codes import Code, RefusedError
from octavo.protocol.errors import OctavoError


async def tried(work: Awaitable[object]) -> tuple[Code, str | None]:
    """Do the work; why it could not be done, or no error and no sentence."""
    try:
        await work
    except RefusedError as error:
        return error.code, error.text
    except OctavoError as error:
        return Code.REQUEST_TIMED_OUT, str(error)
    return Code.NONE, None
