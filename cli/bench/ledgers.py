"""The ledgers, one or thousands, that a benchmark creates, writes and puts away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from octavo.cli.bench.names import BENCH_KEY
from octavo.cli.event_loop import finish
from octavo.cli.ledger.options import DigestName, SyncName
from octavo.cli.session import describe, print_error
from octavo.protocol.errors import NoSuchLedgerError, OctavoError
from octavo.protocol.light_dataclass import dataclass

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.client.write.writer import LedgerWriter

AT_ONCE = 200
"""Ledgers or logs that are created, opened, closed or deleted at the same time: enough to keep a metadata store busy,
and too few to wait in line for longer than its time-out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes, digest, password and sync of all ledgers of a benchmark."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: DigestName = DigestName.CRC32C
    password: bytes = b""
    sync: SyncName = SyncName.IMMEDIATE

    @property
    def sizes(self) -> dict[str, int]:
        """Ensemble and quorums, for the result."""
        return {
            "ensemble_size": self.ensemble_size,
            "write_quorum": self.write_quorum,
            "ack_quorum": self.ack_quorum,
        }


async def run_each[T](step: Callable[[T], Awaitable[object]], things: Iterable[T], at_once: int = AT_ONCE) -> None:
    """Run a step for each of the things, at most ``at_once`` at a time, begun in their order. Raises the first error
    of a step, after those that were under way have been cancelled."""
    remaining = iter(things)

    async def work() -> None:
        for thing in remaining:
            await step(thing)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


@asynccontextmanager
async def open_ledgers(
    client: "Client", number: int, shape: Shape, *, keep: bool
) -> AsyncIterator[Sequence["LedgerWriter"]]:
    """Ledgers to write to; closed afterwards, and deleted unless they are to be kept and the block succeeds."""
    import octavo  # noqa: PLC0415 - `octavo --help` does without

    writers: list[LedgerWriter] = []

    async def create(_number: int) -> None:
        writers.append(
            await client.create_ledger(
                *(shape.ensemble_size, shape.write_quorum, shape.ack_quorum),
                digest=octavo.Digest[shape.digest.name],
                password=shape.password,
                custom_metadata={BENCH_KEY: b"write"},
                sync=shape.sync.mode,
            )
        )

    async def put_away(writer: "LedgerWriter", *, delete: bool) -> None:
        try:
            if delete:
                await client.delete_ledger(writer.id)
            else:
                await writer.close()
        except NoSuchLedgerError:
            pass
        except OctavoError as error:
            print_error(f"ledger {writer.id} could not be {'deleted' if delete else 'closed'}: {describe(error)}")

    async def put_all_away(*, delete: bool) -> None:
        await run_each(lambda writer: put_away(writer, delete=delete), writers)

    try:
        await run_each(create, range(number))
        yield writers
    except BaseException:
        await finish(put_all_away(delete=True))
        raise
    await put_all_away(delete=False)
    if not keep:
        await put_all_away(delete=True)
