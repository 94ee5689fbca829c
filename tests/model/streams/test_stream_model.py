"""A stream taken over in every order, with the production machines: every promise holds, and each rule of terms broken
on purpose is found (rules T1 to T10, V1, and G1 to G5)."""

import pytest
from model.engine.explorer import explore
from model.engine.world import World
from model.ledgers.canaries import Canary
from model.ledgers.settings import Job
from model.streams.settings import STREAM_CANARIES, STREAM_JOBS
from model.streams.term_books_settings import BOOKS_CANARIES, BOOKS_JOBS

QUICK_STATES = 10_000
"""Of a canary's setting without the defect: `make model` exhausts the larger ones."""


@pytest.mark.parametrize("job", [job for job in (*STREAM_JOBS, *BOOKS_JOBS) if job.quick], ids=lambda job: job.name)
def test_every_promise_of_a_stream_holds(job: Job) -> None:
    found = job.run()
    assert found.violation is None, str(found.violation)
    assert found.exhausted
    assert found.final_states


@pytest.mark.parametrize("canary", [*STREAM_CANARIES, *BOOKS_CANARIES], ids=lambda canary: canary.name)
def test_a_rule_of_terms_broken_on_purpose_is_found(canary: Canary) -> None:
    violation = explore(World(canary.broken)).violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), violation.what


@pytest.mark.parametrize("canary", [*STREAM_CANARIES, *BOOKS_CANARIES], ids=lambda canary: canary.name)
def test_nothing_is_found_without_the_defect(canary: Canary) -> None:
    found = explore(World(canary.healthy), states_max=QUICK_STATES)
    assert found.violation is None, str(found.violation)
    assert found.exhausted or found.states >= QUICK_STATES
