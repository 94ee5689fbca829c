"""Who may use the console: addresses, tokens and hosts that are taken and refused."""

import pytest
from octavo.cli.console.access import carries_token, check_token, parse_listen
from octavo.cli.own_host import Address, is_own_host
from octavo.protocol.errors import InvalidArgumentError

HERE = Address("127.0.0.1", 3190)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:3190", "http://127.0.0.1:3190/"),
        ("127.8.9.1:1", "http://127.8.9.1:1/"),
        ("localhost:3190", "http://127.0.0.1:3190/"),
        ("[::1]:0", "http://[::1]:0/"),
    ],
)
def test_loopback_addresses_are_taken(text: str, url: str) -> None:
    assert parse_listen(text).url == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.0.0.0:3190", "only on loopback"),
        ("[::]:3190", "only on loopback"),
        ("192.168.1.5:3190", "ssh -L"),
        ("example.org:3190", "not an IP address"),
        ("3190", "HOST:PORT"),
        ("127.0.0.1:", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
        ("127.0.0.1:\u0663", "HOST:PORT"),
    ],
)
def test_other_addresses_are_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        parse_listen(text)


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "with spaces in it, long", "caf\u00e9" * 8])
def test_a_token_that_is_short_or_does_not_fit_into_a_header_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 16"):
        check_token(token)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer abc", "bearer " + "t" * 16, "t" * 16])
def test_only_the_whole_token_is_a_token(header: str | None) -> None:
    assert carries_token("Bearer " + "t" * 16, "t" * 16)
    assert not carries_token(header, "t" * 16)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:3190", True),
        ("127.0.0.1", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("[::1]:3190", True),
        ("192.168.1.5:3190", False),
        ("attacker.example:3190", False),
        ("127.0.0.1.attacker.example", False),
        ("localhost.attacker.example", False),
        ("", False),
        (None, False),
    ],
)
def test_only_loopback_addresses_and_localhost_are_this_host(host: str | None, own: bool) -> None:
    assert is_own_host(host, HERE) is own
