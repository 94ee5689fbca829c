"""Racks, from a bookie's command line to the ensembles of ledgers."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from octavo.protocol.errors import NotEnoughBookiesError
from support.commands.processes import BookieProcess, octavo
from support.waiting import WAIT_SECONDS

import octavo as octavo_client


async def test_copies_go_to_different_racks_and_a_missing_rack_is_told(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    racks = ["/dc1/r1", "/dc1/r1", "/dc1/r2"]
    with contextlib.ExitStack() as stack:
        bookies = [
            stack.enter_context(
                BookieProcess(tmp_path / f"b{at}", "--port", 0, "--metadata", uri, "--rack", rack)
            ).wait_ready()
            for at, rack in enumerate(racks)
        ]
        shown = octavo("bookies", "--json", "--metadata", uri).json
        rack_of = {bookie["bookie_id"]: bookie["rack"] for bookie in shown}
        assert sorted(rack_of.values()) == racks
        async with octavo_client.connect(uri, racks_per_write_quorum_min=2) as client:
            for _ in range(6):
                async with client.create_ledger(2, 2, 1) as ledger:
                    assert {rack_of[one] for one in ledger.metadata.last_fragment.bookies} == {"/dc1/r1", "/dc1/r2"}
            assert bookies[2].stop() == 0
            told = r"must span 2 racks, and .* are 2 in /dc1/r1; start bookies"
            with pytest.raises(NotEnoughBookiesError, match=told):
                await asyncio.wait_for(_create_on_and_on(client), WAIT_SECONDS)


async def _create_on_and_on(client: octavo_client.Client) -> None:
    """Until it fails: the client hears that a bookie is gone a moment after that."""
    while True:
        async with client.create_ledger(2, 2, 1):
            pass


def test_what_is_no_rack_is_refused(tmp_path: Path) -> None:
    refused = octavo("bookie", "--data-dir", tmp_path / "b", "--rack", "dc1/r1")
    refused.failed_with_one_line(2, "--rack must be a path of 1 to 8 steps like /dc1/rack2", "'dc1/r1'")
