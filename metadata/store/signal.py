"""An event of which there may be ten thousand, and for which hardly any task waits."""

import asyncio


class Signal:
    """As :class:`asyncio.Event`, in an eighth of the memory while no task waits."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether it has been set, and not cleared since."""
        return self._is_set

    def set(self) -> None:
        """Let all tasks go on that wait, and those that will wait until it is cleared."""
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let tasks wait from now on."""
        self._is_set = False

    async def wait(self) -> None:
        """Return once it is set."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._forget(waiter)

    def _forget(self, waiter: asyncio.Future[None]) -> None:
        """The task does not wait any more, perhaps because it was cancelled."""
        if self._waiters is not None and waiter in self._waiters:
            self._waiters.remove(waiter)
