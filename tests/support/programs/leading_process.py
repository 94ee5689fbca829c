"""A process that leads a log whenever it can and adds numbered entries, until it is killed.

``python leading_process.py URI LOG LEASE_SECONDS``. Each entry has the payload ``PID:NUMBER``; numbers count the adds
of this process. It prints a line for everything that it is told:

=========================  ==================================================
``leads TERM``             it leads now
``acked POSITION NUMBER``  an add was acknowledged
``failed NUMBER``          an add failed, in doubt or not
``outcome NUMBER yes|no``  what became of an add in doubt
``refused NUMBER``         an add failed, and did not happen
``lost``                   it does not lead any more
=========================  ==================================================

SIGUSR1 cuts it off from bookies, SIGUSR2 from the metadata. SIGHUP ends both. Connections break, and attempts to make
new ones are not answered. The process opens a metadata store in a file by a link of its own, which is missing while it
is cut off, as a file system would be that is not mounted.
"""

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import octavo

ADDERS = 4
"""Tasks that add one entry after another."""

PAUSE_SECONDS = 0.002
"""Pause of each of them between two adds: what they do is small, and there is much else to do."""

OPTIONS: dict[str, Any] = {
    "add_quorum_timeout_seconds": 1.0,
    "connect_timeout_seconds": 0.5,
    "request_timeout_seconds": 2.0,
    "reconnect_delay_seconds_max": 0.2,
    "resend_delay_seconds": 0.1,
    "recovery_timeout_seconds": 5.0,
    "close_timeout_seconds": 2.0,
    "log_segment_bytes": 3000,
}


class CuttableLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata_port = 0
        self.metadata_link: Path | None = None
        self._made: list[tuple[bool, Any]] = []
        self._cut: set[bool] = set()

    async def create_connection(self, *arguments: Any, **keywords: Any) -> Any:
        """As of the base class, unless connections of its kind are cut: then it does not return."""
        is_metadata = len(arguments) > 2 and arguments[2] == self.metadata_port
        if is_metadata in self._cut:
            await self.create_future()  # until the caller's patience ends
        made = await super().create_connection(*arguments, **keywords)
        self._made = [one for one in self._made if not one[1].is_closing()]
        self._made.append((is_metadata, made[0]))
        return made

    def cut(self, *, metadata: bool) -> None:
        """Break the connections of this kind, and make no new ones."""
        self._cut.add(metadata)
        for is_metadata, transport in self._made:
            if is_metadata is metadata:
                transport.abort()
        if metadata and self.metadata_link is not None:
            self.metadata_link.rename(self.metadata_link.with_suffix(".cut"))

    def restore(self) -> None:
        """Make connections again."""
        if True in self._cut and self.metadata_link is not None:
            self.metadata_link.with_suffix(".cut").rename(self.metadata_link)
        self._cut.clear()


def tell(*words: object) -> None:
    """Print one line at once."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


async def lead(log: octavo.Log, numbers: "itertools.count[int]") -> None:
    """Lead once, until the lead is lost."""
    failed: list[tuple[int, octavo.OctavoError]] = []
    async with log.lead(name=str(os.getpid())) as writer:
        tell("leads", writer.term)

        async def add() -> None:
            while True:
                number = next(numbers)
                try:
                    position = await writer.add(b"%d:%d" % (os.getpid(), number))
                except octavo.OctavoError as error:
                    failed.append((number, error))
                    return
                tell("acked", position, number)
                await asyncio.sleep(PAUSE_SECONDS)

        await asyncio.gather(*(add() for _ in range(ADDERS)))
    tell("lost")
    for number, error in failed:
        if not error.may_have_happened:
            tell("refused", number)
            continue
        tell("failed", number)
        while (happened := await outcome(log, error)) is None:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.1)
        tell("outcome", number, "yes" if happened else "no")


async def outcome(log: octavo.Log, error: octavo.OctavoError) -> bool | None:
    """What became of the add, or None while that is not known."""
    try:
        return await log.outcome(error)
    except octavo.OctavoError:
        return None


async def main(uri: str, name: str, lease_seconds: float) -> None:
    """Lead again and again."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CuttableLoop)
    if uri.startswith("sqlite:///"):
        path = Path("/", uri.removeprefix("sqlite:///"))
        loop.metadata_link = path.with_name(f"metadata-of-{os.getpid()}.db")
        loop.metadata_link.symlink_to(path)
        uri = f"sqlite:///{loop.metadata_link}"
    if uri.startswith("zk://"):
        loop.metadata_port = int(uri.removeprefix("zk://").partition("/")[0].rpartition(":")[2])
    loop.add_signal_handler(signal.SIGUSR1, lambda: loop.cut(metadata=False))
    loop.add_signal_handler(signal.SIGUSR2, lambda: loop.cut(metadata=True))
    loop.add_signal_handler(signal.SIGHUP, loop.restore)
    numbers = itertools.count()
    async with octavo.connect(uri, lease_seconds=lease_seconds, **OPTIONS) as client, client.open_log(name) as log:
        tell("ready")
        while True:
            try:
                await lead(log, numbers)
            except octavo.OctavoError as error:
                os.write(2, f"{os.getpid()}: {type(error).__name__} {error}\n".encode())
                await asyncio.sleep(0.1)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=CuttableLoop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
