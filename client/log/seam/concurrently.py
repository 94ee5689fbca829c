"""Several steps at once, whose failure is one error."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from octavo.metadata.own_tasks import result_in


async def together[T](steps: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all steps, in order. If one fails, the others are cancelled, and its error is raised by itself:
    callers expect one OctavoError, not an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step) for step in steps]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [result_in(task, "a step") for task in tasks]
