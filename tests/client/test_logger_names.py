"""The loggers of programs are the ones that docs/logs.md names."""

import re

from support.tree import ROOT, library_modules

CLIENT_SIDE = {"client", "metadata", "pipeline", "protocol", "security", "metrics"}


def test_a_program_has_one_logger_to_configure() -> None:
    names = {
        name
        for path in library_modules().values()
        if path.parts[0] in CLIENT_SIDE
        for name in re.findall(r"logging\.getLogger\(([^)]*)\)", (ROOT / path).read_text(encoding="utf-8"))
    }
    assert names == {'"octavo.client"'}
    section = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8").partition("## What a client logs")[2]
    assert "one logger, `octavo.client`" in section.partition("\n## ")[0]
