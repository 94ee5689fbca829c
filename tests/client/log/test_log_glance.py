"""A glance at a log's document has the facts that the decoded document has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from octavo.client.log.documents.formats import STREAM_FORMAT, STREAM_FORMAT_WITH_KEYS
from octavo.client.log.documents.glance import StreamLogGlance, glance_at_log, is_active
from octavo.client.log.documents.states import LogState
from octavo.metadata.encoding import decode_object, encode_object
from octavo.protocol.errors import MetadataError
from support.metadata_examples import CHAIN, STREAM_LOG


@pytest.mark.parametrize("state", LogState)
def test_glance_tells_what_the_document_tells(state: LogState) -> None:
    log = replace(STREAM_LOG, state=state)
    glance = glance_at_log(log.encode(), log.name)
    assert glance == StreamLogGlance(
        log.log_id, log.ledger_id, log.created_at_ms, log.first_position, state is LogState.ACTIVE
    )
    assert is_active(glance) == is_active(replace(CHAIN, state=state)) == (state is LogState.ACTIVE)


def test_chains_are_decoded_in_full() -> None:
    assert glance_at_log(CHAIN.encode(), CHAIN.name) == CHAIN


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "state": lambda fields: fields.update(state="GONE"),
    "id": lambda fields: fields.update(log_id=7),
    "ledger": lambda fields: fields.update(ledger_id="7"),
    "position": lambda fields: fields.pop("first_position"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_fields_that_cannot_be_what_octavo_wrote_are_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    fields = stored()
    damage(fields)
    with pytest.raises(MetadataError, match="log orders/eu: the stored metadata are damaged"):
        glance_at_log(encode_object(fields, format_number=STREAM_FORMAT), "orders/eu")


def test_layouts_and_formats_of_newer_versions_are_refused() -> None:
    with pytest.raises(MetadataError, match=r"layout 'ring'.*upgrade"):
        glance_at_log(encode_object({**stored(), "layout": "ring"}, format_number=STREAM_FORMAT), "orders/eu")
    with pytest.raises(MetadataError, match="newer than 3"):
        glance_at_log(encode_object(stored(), format_number=STREAM_FORMAT_WITH_KEYS + 1), "orders/eu")


def stored() -> dict[str, Any]:
    return decode_object(STREAM_LOG.encode(), what="log", format_max=STREAM_FORMAT_WITH_KEYS)
