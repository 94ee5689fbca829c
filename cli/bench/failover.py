"""One failover of a log: a leading process is killed, a standby takes over."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from octavo.cli.session import CommandError, Session

if TYPE_CHECKING:
    from octavo.client.log.log import Log

LINES = 1000
"""Lines that the leader adds before it is killed, and again while it is killed."""

LEADER_SECONDS_MAX = 60.0
"""Time for the leading process to start and add its lines."""


async def measure_failover(session: Session, log: "Log", lease_seconds: float, payload: bytes) -> dict[str, float]:
    """Seconds from the kill to the standby's first acknowledged add, ``total``, and its parts: ``lease``, until the
    standby holds the lock; ``takeover``, until it leads; ``first_add``.

    Raises :class:`CommandError` when the leading process fails, and what leading raises.
    """
    from octavo.client.log.documents.names import lock_name  # noqa: PLC0415 - `octavo --help` does without
    from octavo.metadata.connect import open_cluster  # noqa: PLC0415

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "octavo.cli.main", "log", "append", log.name, "--positions"),
        *("--metadata", session.metadata_uri, "--lease-seconds", str(lease_seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        lines = b"".join(b"%d\n" % number for number in range(LINES))
        process.stdin.write(lines)
        async with asyncio.timeout(LEADER_SECONDS_MAX):
            for _ in range(LINES):
                if not await process.stdout.readline():
                    raise CommandError(f"the leading process ended with status {await process.wait()}")
        # The steps of `log.lead()`, one by one, so that each can be timed.
        async with await open_cluster(session.metadata_uri, lease_seconds=lease_seconds) as store:
            locking = asyncio.create_task(store.lock(lock_name(log.log_id), "standby"))
            process.stdin.write(lines)
            await process.stdin.drain()
            process.kill()
            killed = time.perf_counter()
            lease = await locking
            locked = time.perf_counter()
            writer = await log.take_over()
            leading = time.perf_counter()
            await writer.add(payload)
            added = time.perf_counter()
            await writer.close()
            await lease.release()
    except TimeoutError as error:
        raise CommandError(f"the leading process did not add {LINES} lines in {LEADER_SECONDS_MAX:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
        # Its output is read to the end: a full pipe must not keep the process.
        await process.communicate()
    return {
        "total": added - killed,
        "lease": locked - killed,
        "takeover": leading - locked,
        "first_add": added - leading,
    }
