"""Questions on the terminal, before something that cannot be undone."""

import asyncio
import sys

from octavo.cli.output import visible
from octavo.cli.session import CommandError


async def agreed(question: str, *, without_terminal: str) -> bool:
    """Whether the user answers yes; any other answer, and the end of the input, count as no.

    Raises :class:`CommandError` with the text ``without_terminal`` where there is no terminal to ask.
    """
    return (await _answer(f"{question} [y/N] ", without_terminal)).lower() in {"y", "yes"}


async def typed(word: str, question: str, *, without_terminal: str) -> bool:
    """Whether the user types ``word``. Raises as :func:`agreed`."""
    return await _answer(f"{question} ", without_terminal) == word


async def _answer(question: str, without_terminal: str) -> str:
    if not sys.stdin.isatty():
        raise CommandError(f"{without_terminal}; give --yes to confirm")
    sys.stderr.write(visible(question))
    sys.stderr.flush()
    # Read in a thread, so that Ctrl-C ends the command while it waits.
    answer: str = await asyncio.to_thread(sys.stdin.readline)
    return answer.strip()
