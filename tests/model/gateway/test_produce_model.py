"""An idempotent producer in every order of events: no batch is lost, doubled or reordered (rules K2, K4 and K5)."""

import pytest
from model.gateway.settings import GATEWAY_CANARIES, GATEWAY_JOBS, GatewayCanary, GatewayJob
from model.gateway.world import ProduceWorld

QUICK = [job for job in GATEWAY_JOBS if job.quick and isinstance(job.model, ProduceWorld)]
CANARIES = [canary for canary in GATEWAY_CANARIES if isinstance(canary.model, ProduceWorld)]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.name)
def test_nothing_is_lost_doubled_or_reordered_in_any_order(job: GatewayJob) -> None:
    found = job.run_quickly()
    assert found.violation is None, str(found.violation)
    assert found.exhausted or job.quick_states_max is not None
    assert found.states > 500


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_a_broken_rule_is_found(canary: GatewayCanary) -> None:
    violation = canary.run().violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), str(violation)
