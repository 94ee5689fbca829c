"""Log events that tests or documents name are events that the code logs."""

import re

import pytest
from simulation.engine.logs import EXPLAINED_BY
from support.tree import ROOT

LOGGED = frozenset(
    event
    for path in (ROOT / "bookie").rglob("*.py")
    for event in re.findall(r'\b_?log\.\w+\(\s*"([^"]+)"', path.read_text(encoding="utf-8"))
)
REPORTED = frozenset({"scrubbed"})
"""Events whose level is chosen when they are logged."""


@pytest.mark.parametrize("event", sorted(EXPLAINED_BY))
def test_an_error_that_simulated_faults_explain_is_one_that_bookies_log(event: str) -> None:
    assert event in LOGGED | REPORTED
