"""The model of a log (rules L1 to L4, P1, P2, P5): quick settings are exhausted, and broken rules are found."""

import pytest
from model.engine.explorer import explore
from model.logs.settings import LOG_CANARIES, LOG_JOBS, LogCanary, LogJob

QUICK = [job for job in LOG_JOBS if job.quick]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.name)
def test_no_promise_is_broken(job: LogJob) -> None:
    found = job.run()
    assert found.violation is None, str(found.violation)
    assert found.exhausted


@pytest.mark.parametrize("canary", LOG_CANARIES, ids=lambda canary: canary.name)
def test_a_broken_rule_is_found(canary: LogCanary) -> None:
    violation = explore(canary.broken, states_max=400_000).violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), str(violation)
