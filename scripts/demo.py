"""The demo: a cluster loses a bookie during writes and loses no entry (`make demo`).

Starts three bookies with `octavo up` in a temporary folder, writes a real log over and over, kills one bookie with
SIGKILL in the middle, goes on until that bookie is back and has taken part again, closes the ledger, reads everything
with a fresh client and compares every byte. Exit status 0 only if all checks succeed.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from local_cluster import TIME_SECONDS_MAX, Cluster, ClusterError
from zookeeper_server import ServerGroup, ZooKeeperError

import octavo

SAMPLE = Path(__file__).parent / "sample" / "dpkg.log"
SAMPLE_NAME = f"{SAMPLE.parent.name}/{SAMPLE.name}"

KILL_AFTER_BYTES = 8_000_000
"""Written before the kill: enough that writing is in full progress."""

WRITE_AFTER_RETURN_BYTES = 8_000_000
"""Written after the killed bookie is back."""

ADDS_IN_FLIGHT_MAX = 4


class DemoError(Exception):
    """A check of the demo failed."""


class Story:
    """Prints what happens, with the time since the start."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._colours = sys.stdout.isatty()

    def tell(self, text: str, *, sign: str = "·", colour: int = 36) -> None:
        """Print one line."""
        mark = f"\x1b[{colour};1m{sign}\x1b[0m" if self._colours else sign
        print(f"{time.perf_counter() - self._begun:6.2f} s  {mark} {text}", flush=True)

    def fine(self, text: str) -> None:
        """Print that a check succeeded."""
        self.tell(text, sign="✓", colour=32)

    def bad(self, text: str) -> None:
        """Print a fault that the demo causes, or a failed check."""
        self.tell(text, sign="✗", colour=31)


async def write_through_a_crash(
    uri: str, lines: list[bytes], cluster: Cluster, ready: dict[str, Any], story: Story
) -> int:
    """Write ``lines`` over and over while a bookie dies and returns; the ledger's id."""
    victim = ready["bookies"][1]
    begun = time.perf_counter()
    returning: asyncio.Future[dict[str, Any]] | None = None
    stop_at: int | None = None
    pending: list[asyncio.Future[range]] = []
    async with (
        octavo.connect(uri) as client,
        client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as ledger,
    ):
        story.tell(f"writing {SAMPLE_NAME} repeatedly to ledger {ledger.id}: 3 copies, acknowledged when 2 are synced")
        while stop_at is None or ledger.length < stop_at:
            pending.append(asyncio.ensure_future(ledger.add_many(lines)))
            if len(pending) >= ADDS_IN_FLIGHT_MAX:
                await pending.pop(0)
            if returning is None and ledger.length >= KILL_AFTER_BYTES:
                os.kill(victim["pid"], signal.SIGKILL)
                confirmed, pushed = ledger.last_add_confirmed or 0, ledger.last_add_pushed or 0
                story.bad(
                    f"killed {victim['name']} (SIGKILL) at entry {confirmed:,}, entries up to {pushed:,} in flight"
                )
                returning = asyncio.ensure_future(asyncio.to_thread(cluster.wait_for, "started again"))
            if returning is not None and returning.done() and stop_at is None:
                returning.result()
                stop_at = ledger.length + WRITE_AFTER_RETURN_BYTES
                story.fine(
                    f"{victim['name']} is back; meanwhile the writer continued, to entry {ledger.last_add_confirmed:,}"
                )
            if time.perf_counter() - begun > TIME_SECONDS_MAX:
                raise DemoError(f"{victim['name']} did not come back within {TIME_SECONDS_MAX:g} s")
        await asyncio.gather(*pending)
        seconds = time.perf_counter() - begun
    entries = (ledger.last_add_confirmed or 0) + 1
    story.fine(
        f"ledger closed: {entries:,} entries, {ledger.length / 1e6:,.0f} MB acknowledged in {seconds:.1f} s, crash"
        f" included ({entries / seconds:,.0f} entries/s, {ledger.length / seconds / 1e6:,.0f} MB/s)"
    )
    return int(ledger.id)


async def read_and_compare(uri: str, ledger_id: int, lines: list[bytes], story: Story) -> None:
    """Read the whole ledger with a fresh client and compare it with what was written."""
    async with octavo.connect(uri) as client, client.open_ledger(ledger_id) as reader:
        begun = time.perf_counter()
        expected_entries = (reader.last_add_confirmed or 0) + 1
        position = 0
        async for entry in reader:
            if entry.entry_id != position or entry.payload != lines[position % len(lines)]:
                raise DemoError(f"entry {position} differs from what was written")
            position += 1
        seconds = time.perf_counter() - begun
        if position != expected_entries or position % len(lines):
            raise DemoError(f"{position} entries came back of {expected_entries}")
        story.fine(
            f"a fresh client read all {position:,} entries back, every byte as written, in {seconds:.1f} s"
            f" ({position / seconds:,.0f} entries/s, {reader.length / seconds / 1e6:,.0f} MB/s)"
        )


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end, also after an error."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def metadata_store(wanted: str, folder: Path, story: Story) -> Iterator[str | None]:
    """The URI of the metadata store: ``wanted`` itself, or for ``zk`` that of a ZooKeeper started here. None: the
    embedded store, which `octavo up` creates."""
    if wanted != "zk":
        yield wanted or None
        return
    with ServerGroup(folder / "zookeeper", outlives=False) as group:
        story.fine(f"a ZooKeeper server (from PySpark's jars) is running at {group.uri}")
        yield group.uri


def run(story: Story, metadata: str) -> None:
    """Run the demo. Raises :class:`DemoError`, :class:`ClusterError` or an Octavo error if a check fails."""
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    with (
        temporary_folder() as folder,
        metadata_store(metadata, folder, story) as metadata_uri,
        Cluster(folder, metadata_uri) as cluster,
    ):
        ready = cluster.wait_for("ready")
        uri = ready["metadata"]
        story.fine(
            f"three bookies are running, processes {', '.join(str(bookie['pid']) for bookie in ready['bookies'])}"
        )
        writing = write_through_a_crash(uri, lines, cluster, ready, story)
        ledger_id = asyncio.run(writing, loop_factory=uvloop.new_event_loop)
        asyncio.run(read_and_compare(uri, ledger_id, lines, story), loop_factory=uvloop.new_event_loop)
        cluster.stop()
        story.fine("everything stopped")


def main() -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--metadata", default="", help="zk for a ZooKeeper of its own, or a URI (the embedded store)")
    arguments = parser.parse_args()
    story = Story()
    try:
        run(story, arguments.metadata)
    except (DemoError, ClusterError, ZooKeeperError, octavo.OctavoError) as error:
        story.bad(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
