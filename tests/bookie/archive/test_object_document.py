"""What docs/disk-format.md says about objects is what the code does, and a program without Octavo reads them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import read_object
from octavo.bookie.archive.format import HEAD_BYTES_MAX, INDEX_BYTES, RANGES_MAX, TAIL_BYTES
from octavo.bookie.archive.opening import WholeCheck
from octavo.bookie.archive.writing import ObjectWriter
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.ids import EntryId, LedgerId
from support.archive.objects import head_of, ids_in, write_object
from support.clusters.ledgers import LedgerScript

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "disk-format.md").read_text(encoding="utf-8")


def example() -> bytes:
    found = re.search(r"```object\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None
    return bytes.fromhex(found[1])


def test_the_example_is_what_is_written_and_read() -> None:
    sealer = Sealer(LedgerId(9), Digest.CRC32C, derive_secrets(b"", LedgerId(9)))
    entries = sealer.seal(
        EntryId(7), [b"first", b"second"], last_add_confirmed=EntryId(6), length=100, sealed_at_ms=1_700_000_000_000
    )
    head = head_of((7, 8))
    writer = ObjectWriter(head)
    parts = writer.add(entries)
    last, written = writer.finish()
    assert b"".join(parts + last) == example()
    check = WholeCheck(head.name, len(example()), sha256=written.sha256)
    assert check.feed(example()) == entries
    assert check.finish() == written


def test_sizes_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(DOCUMENT.split())
    assert f"number of ranges, 1 to {RANGES_MAX} |" in text
    assert f"that begins {INDEX_BYTES:,} bytes or more behind" in text
    assert f"The tail is the last {TAIL_BYTES} bytes" in text
    assert HEAD_BYTES_MAX == 60 + 16 * RANGES_MAX


def test_a_program_without_octavo_reads_the_example(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(example())
    run = subprocess.run(
        # Isolated: neither the folder of the program, nor what is installed, is on the path.
        [sys.executable, "-I", "-S", str(ROOT / "scripts" / "read_object.py"), str(path)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "9 7 b'first'\n9 8 b'second'\n"


def test_the_program_reads_larger_objects_and_notices_damage() -> None:
    head = head_of((10, 25), (2**35, 2**35 + 9))
    data = b"".join(write_object(head)[0])
    script = LedgerScript(9)
    assert list(read_object.entries_of(data)) == [(9, i, script.payload_of(i)) for i in ids_in(head)]
    with pytest.raises(ValueError, match="damaged"):
        list(read_object.entries_of(data[:-1]))
    with pytest.raises(ValueError, match="damaged"):
        list(read_object.entries_of(data[:99] + b"x" + data[100:]))
