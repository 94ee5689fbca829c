"""Hosts, from the kernel and a bookie's command line to the ensembles of ledgers."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from octavo.protocol.errors import NotEnoughBookiesError
from support.commands.processes import BookieProcess, octavo
from support.waiting import WAIT_SECONDS

import octavo as octavo_client

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def test_copies_go_to_different_hosts_and_a_missing_host_is_told(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    hosts = ["node-1", "node-1", "node-2"]
    with contextlib.ExitStack() as stack:
        bookies = [
            stack.enter_context(
                BookieProcess(tmp_path / f"b{at}", "--port", 0, "--metadata", uri, "--host-id", host)
            ).wait_ready()
            for at, host in enumerate(hosts)
        ]
        shown = octavo("bookies", "--json", "--metadata", uri).json
        host_of = {bookie["bookie_id"]: bookie["host_id"] for bookie in shown}
        assert sorted(host_of.values()) == hosts
        async with octavo_client.connect(uri, hosts_per_write_quorum_min=2) as client:
            for _ in range(6):
                async with client.create_ledger(2, 2, 1) as ledger:
                    assert {host_of[one] for one in ledger.metadata.last_fragment.bookies} == {"node-1", "node-2"}
            assert bookies[2].stop() == 0
            told = r"must span 2 hosts, and .* are 2 on node-1; start bookies"
            with pytest.raises(NotEnoughBookiesError, match=told):
                await asyncio.wait_for(_create_on_and_on(client), WAIT_SECONDS)


async def _create_on_and_on(client: octavo_client.Client) -> None:
    """Until it fails: the client hears that a bookie is gone a moment after that."""
    while True:
        async with client.create_ledger(2, 2, 1):
            pass


def test_bookies_find_out_that_they_share_a_host_and_the_cluster_goes_on_with_a_word_about_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    with contextlib.ExitStack() as stack:
        for at in range(2):
            stack.enter_context(BookieProcess(tmp_path / f"b{at}", "--port", 0, "--metadata", uri)).wait_ready()
        known = BOOT_ID.read_text("ascii").strip().replace("-", "")
        shown = octavo("bookies", "--json", "--metadata", uri).json
        assert [bookie["host_id"] for bookie in shown] == [f"boot-{known[:16]}"] * 2
        told = octavo("bookies", "--metadata", uri)
        assert told.status == 0
        assert "all 2 bookies run on one host: it holds every copy of every entry" in told.stdout.decode()


def test_what_is_no_host_is_refused(tmp_path: Path) -> None:
    refused = octavo("bookie", "--data-dir", tmp_path / "b", "--host-id", "a/b")
    refused.failed_with_one_line(2, "--host-id must be auto, or 1 to 64 letters, digits and ._:-", "'a/b'")
