"""A consumer group in every order of events: no stale commit lands, no partition has two owners, and no member
waits for ever (rule K11).
"""

import pytest
from model.gateway.group_world import GroupWorld
from model.gateway.settings import GATEWAY_CANARIES, GATEWAY_JOBS, GatewayCanary, GatewayJob

QUICK = [job for job in GATEWAY_JOBS if job.quick and isinstance(job.model, GroupWorld)]
CANARIES = [canary for canary in GATEWAY_CANARIES if isinstance(canary.model, GroupWorld)]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.name)
def test_no_stale_commit_lands_no_partition_has_two_owners_and_no_member_waits_for_ever(job: GatewayJob) -> None:
    found = job.run_quickly()
    assert found.violation is None, str(found.violation)
    assert found.exhausted or job.quick_states_max is not None
    assert found.states > 500


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_a_broken_rule_is_found(canary: GatewayCanary) -> None:
    violation = canary.run().violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), str(violation)
