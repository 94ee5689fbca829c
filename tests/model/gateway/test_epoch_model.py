"""A group of the consumer protocol in every order of events: no stale commit lands, no partition has two owners, epochs
rise across coordinators, and in the end each partition has an owner (rule K16).
"""

import pytest
from model.gateway.epoch_world import EpochWorld
from model.gateway.settings import GATEWAY_CANARIES, GATEWAY_JOBS, GatewayCanary, GatewayJob

QUICK = [job for job in GATEWAY_JOBS if job.quick and isinstance(job.model, EpochWorld)]
CANARIES = [canary for canary in GATEWAY_CANARIES if isinstance(canary.model, EpochWorld)]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.name)
def test_no_stale_commit_lands_no_partition_has_two_owners_and_epochs_rise(job: GatewayJob) -> None:
    found = job.run_quickly()
    assert found.violation is None, str(found.violation)
    assert found.states >= 150


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_a_broken_rule_is_found(canary: GatewayCanary) -> None:
    violation = canary.run().violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), str(violation)
