"""Golden files: bytes that must not change by accident, in a form that can be reviewed."""

import textwrap
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "golden"


def hex_lines(data: bytes) -> str:
    """``data`` in lines of 32 bytes, in groups of four."""
    return "\n".join(data[at : at + 32].hex(" ", -4) for at in range(0, len(data), 32))


def readable(text: str) -> str:
    """``text`` as comment lines of a golden file."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 110, subsequent_indent="    ")]
    return "\n".join(f"# {line}" for line in lines)


def bytes_in(text: str) -> bytes:
    """The bytes of a golden file: everything but its comment lines."""
    return bytes.fromhex("".join(line for line in text.splitlines() if not line.startswith("#")))


def check_golden(config: pytest.Config, name: str, text: str) -> None:
    """Compare ``text`` with the golden file ``name``; with ``--rewrite``, write ``text`` to the file instead."""
    path = FOLDER / name
    if config.getoption("--rewrite", default=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no golden file {name}: make it with --rewrite and review it"
    assert text == path.read_text(), f"{name} has changed; if that is intended, run with --rewrite and review it"
