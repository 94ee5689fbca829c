"""Fields of a newer version: a change by this version keeps them. The golden files are what a newer version stored."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.metadata import (
    BeginRecovery,
    BookieState,
    ChangeEnsemble,
    CloseLedger,
    FinishRecovery,
    Fragment,
    LedgerMetadata,
    MetadataChange,
)
from octavo.metadata.cluster.registration import decode_cookie, decode_registration, encode_cookie, encode_registration
from octavo.metadata.encoding import encode_object
from octavo.metadata.ledger.decisions import Write
from octavo.metadata.ledger.model import decode_ledger, encode_ledger
from octavo.metadata.zookeeper.layout import decode_ledger_ids, encode_ledger_ids
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.metadata.ledger_metadata import bookie_ids

GOLDEN = Path(__file__).parent.parent / "golden" / "metadata"
B1 = BookieId("b1")

LEDGER_FIELDS = {"pinned": True, "aardvark": None, "retention": {"seconds": 86400.5, "äöü": [1, {"a": 1, "b": 2}]}}
"""What the golden ledger has besides what this version knows; one name sorts before the checksum's, others after it."""


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}-of-newer-version.json").read_bytes().rstrip(b"\n")


@pytest.fixture
def ledger() -> LedgerMetadata:
    return decode_ledger(LedgerId(4712), golden("ledger"))


def stored_again(ledger: LedgerMetadata) -> LedgerMetadata:
    return decode_ledger(ledger.ledger_id, encode_ledger(ledger))


def test_values_of_a_newer_version_are_written_back_as_they_were(ledger: LedgerMetadata) -> None:
    assert encode_ledger(ledger) == golden("ledger")
    assert encode_registration(decode_registration(B1, golden("registration"))) == golden("registration")
    assert encode_cookie(decode_cookie(B1, golden("cookie"))) == golden("cookie")


def change_of(make: Callable[[Fragment], MetadataChange]) -> Callable[[LedgerMetadata], LedgerMetadata]:
    def apply(ledger: LedgerMetadata) -> LedgerMetadata:
        decision = make(replace(ledger.last_fragment, unknown_fields={})).decide(ledger)
        assert isinstance(decision, Write)
        return decision.metadata

    return apply


NEW_ENSEMBLE = bookie_ids("a", "b", "e")


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (change_of(lambda _: BeginRecovery()), [{"tier": "cold"}, {"copied_from": ["e"]}]),
        (change_of(lambda last: CloseLedger(last, EntryId(149), 15000)), [{"tier": "cold"}, {"copied_from": ["e"]}]),
        (
            change_of(lambda last: ChangeEnsemble(last, EntryId(120), NEW_ENSEMBLE, 12000)),
            [{"tier": "cold"}, {"copied_from": ["e"]}, {}],
        ),
        # The fragment that is replaced takes along what was said of it.
        (change_of(lambda last: ChangeEnsemble(last, EntryId(100), NEW_ENSEMBLE, 10000)), [{"tier": "cold"}, {}]),
        (lambda ledger: ledger.written_by("another"), [{"tier": "cold"}, {"copied_from": ["e"]}]),
    ],
)
def test_every_change_of_a_ledger_keeps_them(
    ledger: LedgerMetadata, change: Callable[[LedgerMetadata], LedgerMetadata], fragments: list[dict[str, object]]
) -> None:
    changed = change(ledger)
    assert changed != ledger
    for value in (changed, stored_again(changed), pickle.loads(pickle.dumps(changed))):
        assert value.unknown_fields == LEDGER_FIELDS
        assert [fragment.unknown_fields for fragment in value.fragments] == fragments
    assert stored_again(changed) == changed


def test_recovery_keeps_them(ledger: LedgerMetadata) -> None:
    recovering = stored_again(ledger.in_recovery())
    base = replace(ledger.last_fragment, unknown_fields={})
    local = (Fragment(EntryId(130), NEW_ENSEMBLE, 13000),)
    decision = FinishRecovery(base, local, EntryId(149), 15000).decide(recovering)
    assert isinstance(decision, Write)
    assert decision.metadata.unknown_fields == LEDGER_FIELDS
    assert [fragment.unknown_fields for fragment in decision.metadata.fragments][:2] == [
        {"tier": "cold"},
        {"copied_from": ["e"]},
    ]


def test_changed_registrations_and_cookies_keep_them() -> None:
    registration = decode_registration(B1, golden("registration"))
    changed = replace(registration, state=BookieState.READ_ONLY)
    assert decode_registration(B1, encode_registration(changed)) == changed
    assert changed.unknown_fields == {"zones": [1, 2]}
    cookie = replace(decode_cookie(B1, golden("cookie")), generation=8)
    assert decode_cookie(B1, encode_cookie(cookie)) == cookie
    assert cookie.unknown_fields == {"tls": "off", "written_by": {"version": "9.0"}}


def test_counter_of_ledger_ids_keeps_them() -> None:
    stored = encode_object({"next_ledger_id": 7, "term": 3}, format_number=1)
    counter = replace(decode_ledger_ids(stored, "/ledger-ids"), next_id=9)
    assert encode_ledger_ids(counter) == encode_object({"next_ledger_id": 9, "term": 3}, format_number=1)


def test_field_that_this_version_knows_cannot_be_overridden_by_an_unknown_one(ledger: LedgerMetadata) -> None:
    sly = replace(ledger, unknown_fields={"length": 5, "format": 9, "kept": 1})
    assert stored_again(sly).length == 0
    assert stored_again(sly).unknown_fields == {"kept": 1}
