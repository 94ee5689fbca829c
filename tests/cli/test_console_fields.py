"""Searches for a field of JSON payloads, as the console's page of entries takes them."""

import json
from typing import Any

import octavo.testing
import pytest
from octavo.cli.console.entries import entries_as_json
from octavo.cli.console.json_fields import parse_field
from octavo.protocol.errors import InvalidArgumentError

import octavo

ORDER = {
    "customer": {"id": 17, "name": "Anna", "tags": ["new", "eu"]},
    "items": [{"sku": "A1", "count": 2}, {"sku": "B=2", "count": 1}],
    "paid": True,
    "note": None,
    "number": "0042",
}


@pytest.mark.parametrize(
    "text",
    [
        "customer.id = 17",
        "customer.id=17",
        " customer . id  =  17 ",
        "customer.name = Anna",
        'customer.name = "Anna"',
        "customer.tags.0 = new",
        "customer.tags = [\"new\", \"eu\"]",
        "items.1.count = 1",
        "items.sku = A1",
        "items.sku = B=2",
        "paid = true",
        "note = null",
        "note",
        "customer.id",
        "number = 0042",
        'number = "0042"',
    ],
)  # fmt: skip
def test_field_is_found(text: str) -> None:
    assert parse_field(text).fits(json.dumps(ORDER).encode())


@pytest.mark.parametrize(
    "text",
    [
        "customer.id = 18",
        'customer.id = "17"',
        "customer.id = true",
        "paid = 1",
        "customer.name = anna",
        "customer.tags.2 = eu",
        "customer.tags.0.x",
        "items.sku = C3",
        "items.2",
        "paid.x",
        "id = 17",
        "note = 0",
        "customer.name =",
    ],
)
def test_field_of_another_value_or_place_is_not_found(text: str) -> None:
    assert not parse_field(text).fits(json.dumps(ORDER).encode())


@pytest.mark.parametrize("payload", [b"", b"text", b"\xff", b"17", b'{"customer":', b"[" * 100_000])
def test_payload_that_is_no_such_json_fits_nothing(payload: bytes) -> None:
    assert not parse_field("customer").fits(payload)


@pytest.mark.parametrize("text", ["", "=", "= 17", "customer. = 17", ".id", "a..b"])
def test_text_that_names_no_field_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a field"):
        parse_field(text)


async def test_entries_with_a_field_are_found_and_the_others_left_out() -> None:
    orders: list[dict[str, Any]] = [{"customer": number % 3, "note": "book"} for number in range(9)]
    with octavo.testing.cluster() as cluster:
        async with octavo.connect(cluster.uri) as client, client.create_log("orders") as log:
            async with log.lead() as writer:
                await writer.add_many([json.dumps(order).encode() for order in orders])
                await writer.add(b"no JSON")
            page = await entries_as_json(client, "orders", first=0, field="customer = 2")
            assert [one["position"] for one in page["items"]] == [2, 5, 8]
            assert (page["searched"], page["next"]) == (10, None)
            page = await entries_as_json(client, "orders", first=0, field="customer = 2", contains="bike")
            assert page["items"] == []
            with pytest.raises(InvalidArgumentError, match="is not a field"):
                await entries_as_json(client, "orders", field="=")
