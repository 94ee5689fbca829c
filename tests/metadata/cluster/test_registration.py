"""Registrations and cookies: what they may say, and how they are stored."""

from dataclasses import replace

import pytest
from octavo.metadata import BookieRegistration, BookieState, Cookie, split_address
from octavo.metadata.cluster.registration import (
    RACK_UNNAMED,
    decode_cookie,
    decode_registration,
    encode_cookie,
    encode_registration,
    endpoint_of,
)
from octavo.metadata.encoding import encode_object
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import BookieId

B1 = BookieId("b1")
REGISTRATION = BookieRegistration(
    bookie_id=B1, address="[::1]:3181", state=BookieState.READ_ONLY, version="0.1.0", boot_id="boot"
)
COOKIE = Cookie(bookie_id=B1, generation=7, address="host:3181", body=bytes(range(256)))


@pytest.mark.parametrize(
    ("address", "parts"),
    [("host:1", ("host", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535)), ("[::1]:3181", ("::1", 3181))],
)
def test_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert endpoint_of(address) == parts
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "h:x", "host:65536", "::1:3181", "[]:1", "h:-1", "h:²"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="host:port"):
        split_address(address)
    with pytest.raises(InvalidArgumentError):
        Cookie(bookie_id=B1, generation=1, address=address)


@pytest.mark.parametrize("host", ["h" * 64, "ä" * 63, "a..b", ".a", "a\0b", "a\udc80b"])
def test_host_that_cannot_be_looked_up_is_told_when_it_is_connected_to(host: str) -> None:
    assert split_address(f"{host}:1") == (host, 1), "a registration that has it does not hide those of other bookies"
    with pytest.raises(InvalidArgumentError, match=r"is not the name of a host: .*1 to 63 characters"):
        endpoint_of(f"{host}:1")


@pytest.mark.parametrize("bookie_id", ["", "a/b", "-a", "a b", "x" * 129, "ä", "a\n"])
def test_what_is_no_bookie_id_is_refused(bookie_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bookie id"):
        Cookie(bookie_id=BookieId(bookie_id), generation=1, address="h:1")


def test_cookie_of_a_version_without_lineages_is_read_and_one_with_a_lineage_reads_back() -> None:
    assert b"lineage" not in encode_cookie(COOKIE)
    assert decode_cookie(B1, encode_cookie(COOKIE)).lineage == ""
    named = replace(COOKIE, lineage="0123456789abcdef")
    assert decode_cookie(B1, encode_cookie(named)) == named


@pytest.mark.parametrize("rack", ["/r", "/dc1/rack2", "/a/b/c/d/e/f/g/h", "/" + "x" * 64, "/eu-1.a/R_2"])
def test_rack_is_a_path(rack: str) -> None:
    registration = replace(REGISTRATION, rack=rack, free_bytes=10**12)
    assert decode_registration(B1, encode_registration(registration)) == registration


@pytest.mark.parametrize(
    "rack", ["", "/", "rack", "/a/", "//a", "/a b", "/a/b/c/d/e/f/g/h/i", "/" + "x" * 65, "/ä", "/a\n"]
)
def test_what_is_no_rack_is_refused(rack: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a valid rack"):
        replace(REGISTRATION, rack=rack)


@pytest.mark.parametrize("host_id", ["h", "boot-5d3a8f0e1b2c4d5e", "node-7.example.org", "x" * 64, "A_b:1"])
def test_host_is_a_name(host_id: str) -> None:
    registration = replace(REGISTRATION, host_id=host_id)
    assert decode_registration(B1, encode_registration(registration)) == registration


@pytest.mark.parametrize("host_id", ["", "~b1", "-h", "a b", "a/b", "x" * 65, "ä", "h\n"])
def test_what_is_no_host_is_refused(host_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a valid id of a host"):
        replace(REGISTRATION, host_id=host_id)


def test_registration_without_a_host_is_stored_as_versions_without_hosts_store_it() -> None:
    assert b"host_id" not in encode_registration(REGISTRATION)
    assert decode_registration(B1, encode_registration(REGISTRATION)).host_id is None


def test_free_space_is_not_negative() -> None:
    with pytest.raises(InvalidArgumentError, match="free space"):
        replace(REGISTRATION, free_bytes=-1)


def test_registration_of_a_version_without_racks_is_read() -> None:
    fields = {"bookie_id": "b1", "address": "h:1", "state": "writable", "version": "0.0.9", "boot_id": "b"}
    registration = decode_registration(B1, encode_object(fields, format_number=1))
    assert (registration.rack, registration.free_bytes) == (RACK_UNNAMED, None)


def test_no_bookie_registers_as_unavailable_nor_with_a_negative_generation() -> None:
    with pytest.raises(InvalidArgumentError, match="unavailable"):
        BookieRegistration(bookie_id=B1, address="h:1", state=BookieState.UNAVAILABLE, version="1", boot_id="b")
    with pytest.raises(InvalidArgumentError, match="generation"):
        Cookie(bookie_id=B1, generation=-1, address="h:1")


def test_what_is_stored_is_what_is_read() -> None:
    assert decode_registration(B1, encode_registration(REGISTRATION)) == REGISTRATION
    assert decode_cookie(B1, encode_cookie(COOKIE)) == COOKIE


def test_foreign_damaged_and_newer_values_are_refused_naming_the_bookie() -> None:
    other = BookieId("b2")
    with pytest.raises(MetadataError, match=r"bookie b2: .* those of bookie b1"):
        decode_registration(other, encode_registration(REGISTRATION))
    with pytest.raises(MetadataError, match=r"bookie b2: .* those of bookie b1"):
        decode_cookie(other, encode_cookie(COOKIE))
    with pytest.raises(MetadataError, match=r"bookie b1: .* damaged"):
        decode_cookie(B1, encode_cookie(COOKIE).replace(b'"generation":7', b'"generation":6'))
    with pytest.raises(MetadataError, match="newer"):
        decode_cookie(B1, encode_object({}, format_number=2))
    for nonsense in ({"state": "asleep"}, {"address": "nowhere"}):
        fields = {"bookie_id": "b1", "address": "h:1", "state": "writable", "version": "1", "boot_id": "b", **nonsense}
        with pytest.raises(MetadataError, match=r"bookie b1"):
            decode_registration(B1, encode_object(fields, format_number=1))
