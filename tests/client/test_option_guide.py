"""Every option of a client has advice: when to touch it, and how often that is."""

from dataclasses import fields
from typing import get_type_hints

import pytest
from octavo.client.option_guide import GUIDES, Use
from octavo.client.options import ConnectOptions

import octavo

NAMES = [field.name for field in fields(octavo.ClientOptions)]


def test_every_option_has_advice_in_the_order_of_the_options() -> None:
    assert list(GUIDES) == NAMES


def test_the_keywords_of_connect_are_the_public_options() -> None:
    assert list(get_type_hints(ConnectOptions)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_advice_is_a_sentence_that_fits_a_cell(name: str) -> None:
    when = GUIDES[name].when
    assert when[0].isupper()
    assert when.endswith(".")
    assert len(when) <= 160


def test_few_options_are_for_every_program() -> None:
    uses = [guide.use for guide in GUIDES.values()]
    assert 1 <= uses.count(Use.COMMON) <= 6
    assert uses.count(Use.RARE) >= len(uses) / 3


def test_options_are_checked_without_a_connection() -> None:
    assert octavo.ClientOptions(lease_seconds=5).lease_seconds == 5
    with pytest.raises(octavo.InvalidArgumentError, match="lease_seconds"):
        octavo.ClientOptions(lease_seconds=-1)
