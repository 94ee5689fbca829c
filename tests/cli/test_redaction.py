"""No secret survives redaction, in whichever of the places where secrets stand; other text stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.cli.redaction import HIDDEN, redacted_environment, redacted_text, redacted_uri
from octavo.security.scram import Key

SECRETS = st.text("abcXYZ0189+/=_-", min_size=8, max_size=40).map(lambda text: f"s3cr3t{text}")

PLACES = [
    'password = "{}"',
    "password={}",
    "OCTAVO_PASSWORD={}",
    "OCTAVO_ZOOKEEPER_AUTH=digest:user:{}",
    'metadata = "zk://user:{}@host:2181/root"',
    "uri=zk://host/root?auth={}&x=1",
    '{{"ledger_key": "{}", "a": 1}}',
    "{{'token': '{}'}}",
    "authorization: {}",
    "connected with digest:octavo:{}, as told",
    "-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----",
    'auth_tokens = ["{}"]',
]


@pytest.mark.parametrize("place", PLACES)
@given(secret=SECRETS)
def test_a_secret_does_not_survive(place: str, secret: str) -> None:
    shown = redacted_text(f"before\n{place.format(secret)}\nafter")
    assert secret not in shown
    assert HIDDEN in shown
    assert shown.startswith("before\n")
    assert shown.endswith("\nafter")


@pytest.mark.parametrize("place", ["{}", "read {} from standard input", 'header "Bearer {}"', "key_file: {}\n"])
@given(secret=st.binary(min_size=32, max_size=32))
def test_the_line_of_a_key_file_is_hidden_wherever_it_stands(place: str, secret: bytes) -> None:
    line = Key("app.writer@host", secret).to_text()
    shown = redacted_text(place.format(line))
    assert line.partition(":")[2] not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        'data_dir = "/var/lib/octavo/one"',
        "port = 3181",
        'metadata = "zk://zk1:2181,zk2:2181/octavo"',
        "2026-01-01T00:00:00Z [info] bookie is ready address=127.0.0.1:3181 data_dir=/d",
        'password_file = "/etc/octavo/password"',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted_text(text) == text


def test_only_our_own_variables_are_shown_and_secret_ones_are_hidden() -> None:
    shown = redacted_environment(
        {"PATH": "/bin", "AWS_SECRET": "x", "OCTAVO_PASSWORD": "x", "OCTAVO_METADATA": "zk://u:x@h/r"}
    )
    assert shown == {"OCTAVO_PASSWORD": HIDDEN, "OCTAVO_METADATA": f"zk://u:{HIDDEN}@h/r"}


def test_a_uri_keeps_what_is_no_secret() -> None:
    uri = "zk://zk1:2181,zk2:2181/root?tls_key=/etc/key.pem&session=5"
    assert redacted_uri(uri) == f"zk://zk1:2181,zk2:2181/root?tls_key={HIDDEN}&session=5"
