"""The table of expected error-level log lines names lines that the bookie really logs."""

import pytest
from simulation.engine.logs import EXPLAINED_BY
from support.tree import ROOT


@pytest.mark.parametrize("event", EXPLAINED_BY)
def test_expected_log_line_exists_in_the_bookie(event: str) -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "bookie").rglob("*.py"))
    assert any(f'"{event}"' in source for source in sources), (
        "renamed? change EXPLAINED_BY in simulation/engine/logs.py"
    )
