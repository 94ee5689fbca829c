"""The log of a coordinator in every order of events: no commit that was answered goes back by itself (rule K10)."""

import pytest
from model.gateway.commit_world import CommitWorld
from model.gateway.settings import GATEWAY_CANARIES, GATEWAY_JOBS, GatewayCanary, GatewayJob

QUICK = [job for job in GATEWAY_JOBS if job.quick and isinstance(job.model, CommitWorld)]
CANARIES = [canary for canary in GATEWAY_CANARIES if isinstance(canary.model, CommitWorld)]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.name)
def test_no_commit_that_was_answered_goes_back(job: GatewayJob) -> None:
    found = job.run_quickly()
    assert found.violation is None, str(found.violation)
    assert found.exhausted or job.quick_states_max is not None
    assert found.states > 1000


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_a_broken_rule_is_found(canary: GatewayCanary) -> None:
    violation = canary.run().violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), str(violation)
