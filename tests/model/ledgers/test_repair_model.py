"""Repair beside recoveries, writers and other targets, in every order: the production decisions keep every promise, and
each of them broken on purpose is found."""

import pytest
from model.engine.explorer import explore
from model.engine.world import World
from model.ledgers.canaries import Canary
from model.ledgers.repair_settings import REPAIR_CANARIES, REPAIR_JOBS
from model.ledgers.settings import Job


@pytest.mark.parametrize("job", [job for job in REPAIR_JOBS if job.quick], ids=lambda job: job.name)
def test_repair_keeps_every_promise(job: Job) -> None:
    found = job.run()
    assert found.violation is None, str(found.violation)
    assert found.exhausted


@pytest.mark.parametrize("canary", REPAIR_CANARIES, ids=lambda canary: canary.name)
def test_a_rule_of_repair_broken_on_purpose_is_found(canary: Canary) -> None:
    violation = explore(World(canary.broken)).violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), violation.what


@pytest.mark.parametrize("canary", REPAIR_CANARIES, ids=lambda canary: canary.name)
def test_the_setting_of_a_canary_is_a_setting_of_its_own(canary: Canary) -> None:
    assert canary.healthy.name in {job.name for job in REPAIR_JOBS if job.quick}, "explored without the defect"
