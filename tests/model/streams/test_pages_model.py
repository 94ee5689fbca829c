"""The metadata of a stream in every order of changes, with the production changes: nothing is lost, and each rule of
pages broken on purpose is found (rules U1, U2, U4 and U8)."""

import pytest
from model.engine.explorer import explore
from model.streams.pages_settings import PAGES_CANARIES, PAGES_SETTINGS, PagesCanary


@pytest.mark.parametrize("name", PAGES_SETTINGS)
def test_no_change_is_lost_and_every_named_page_exists(name: str) -> None:
    found = explore(PAGES_SETTINGS[name])
    assert found.violation is None, str(found.violation)
    assert found.exhausted
    assert found.final_states


@pytest.mark.parametrize("canary", PAGES_CANARIES, ids=lambda canary: canary.name)
def test_a_rule_of_pages_broken_on_purpose_is_found(canary: PagesCanary) -> None:
    violation = explore(canary.broken).violation
    assert violation is not None
    assert violation.what.startswith(canary.promise), violation.what
    healthy = explore(canary.healthy)
    assert healthy.violation is None
    assert healthy.exhausted
