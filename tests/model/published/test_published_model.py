"""Unbounded ledgers as they were published: each defect is found, the traces that docs/model.md prints are those of the
model, and with every mend nothing is found.
"""

import re

import pytest
from model.engine.explorer import explore
from model.published.settings import AS_PUBLISHED, DEFECTS, PUBLISHED_JOBS, Defect, PublishedJob
from model.published.words import told
from support.tree import ROOT

QUICK_STATES = 2_500
"""Of a mended setting: `make model` exhausts the larger ones."""

DOCUMENT = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")


def printed(defect: Defect) -> str:
    """The trace that the document prints below the defect's name."""
    found = re.search(rf"\*{re.escape(defect.name)}\.\*.*?```\n(.*?)\n```", DOCUMENT, re.DOTALL)
    assert found is not None, defect.name
    return found[1]


@pytest.mark.parametrize("job", [job for job in PUBLISHED_JOBS if job.quick], ids=lambda job: job.name)
def test_nothing_is_found_with_every_mend(job: PublishedJob) -> None:
    found = job.run()
    assert found.violation is None, str(found.violation)
    assert found.exhausted
    assert found.final_states


@pytest.mark.parametrize("defect", [one for one in DEFECTS if one.quick], ids=lambda defect: defect.name)
def test_the_document_prints_the_shortest_trace_to_a_defect(defect: Defect) -> None:
    violation = defect.find().violation
    assert violation is not None
    assert violation.what.startswith(defect.promise)
    assert printed(defect) == told(violation)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_printed_trace_can_be_played_and_breaks_its_promise_with_the_last_step(defect: Defect) -> None:
    model = defect.setting
    what, *steps = printed(defect).splitlines()
    [state] = map(model.representative, model.initial_states())
    for step in steps:
        assert model.violation(state) is None
        text = step.split(maxsplit=1)[1]
        [state] = {after for action, after in model.successors(state) if model.describe_action(state, action) == text}
    after = model.representative(state)
    assert what in (model.violation(state), "" if model.successors(after) else model.stuck(state))
    assert what.startswith(defect.promise)


@pytest.mark.parametrize("defect", [one for one in DEFECTS if one.mend], ids=lambda defect: defect.name)
def test_with_its_mend_a_defect_is_not_found(defect: Defect) -> None:
    assert defect.mend is not None
    found = explore(defect.mend, states_max=QUICK_STATES)
    assert found.violation is None, str(found.violation)
    assert found.exhausted or found.states >= QUICK_STATES


def test_as_published_the_first_promise_to_break_is_the_guaranteed_write_quorum() -> None:
    violation = explore(AS_PUBLISHED).violation
    assert violation is not None
    assert violation.what.startswith("write quorum not guaranteed: c2 has LAFR 0"), str(violation)
