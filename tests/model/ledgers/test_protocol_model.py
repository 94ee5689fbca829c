"""The part of `make model` that fits into `make test`: the quick settings, and every canary."""

import pytest
from model.engine.explorer import explore
from model.engine.world import World
from model.ledgers.canaries import CANARIES, Canary
from model.ledgers.settings import JOBS, Job

QUICK = [job for job in JOBS if job.quick]


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.name)
def test_every_promise_holds(job: Job) -> None:
    found = job.run()
    assert found.violation is None, str(found.violation)
    assert found.exhausted


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_rule_broken_on_purpose_is_found(canary: Canary) -> None:
    violation = explore(World(canary.broken)).violation
    assert violation is not None
    assert violation.what.startswith(canary.promise)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_setting_of_a_canary_is_clean_without_it(canary: Canary) -> None:
    found = explore(World(canary.healthy))
    assert found.violation is None, str(found.violation)
    assert found.exhausted
