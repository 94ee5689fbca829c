"""The client's side of SCRAM-SHA-256: with the server of gateways, and against servers that are not what they say."""

import base64

import pytest
from octavo.gateway.access.sasl import Known, SaslExchange
from octavo.protocol.errors import UnauthorizedError
from octavo.security.salted_keys import password_of, salted_verifier
from octavo.security.salted_login import ROUNDS_MAX, ROUNDS_MIN, SaltedLogin
from octavo.security.scram import Key, verifier_of
from support.kafka.sasl import ScramClient, key_of

KEY = key_of("web")
NONCE = "rOprNGfwEbeRWgbNEkqO"
SALT = base64.b64encode(b"a salt of tests.").decode()


def server(key: Key) -> SaslExchange:
    class People:
        def known(self, _name: str) -> Known:
            salted = salted_verifier(password_of(key), b"a salt of tests.", rounds=ROUNDS_MIN)
            return Known(True, verifier_of(key.secret), salted)

    made = SaslExchange(People(), over_tls=False)
    made.choose("SCRAM-SHA-256")
    return made


def test_both_sides_prove_that_they_know_the_key() -> None:
    login, gateway = SaltedLogin(KEY, NONCE), server(KEY)
    login.check(gateway.received(login.last(gateway.received(login.first(), "of-the-server")), ""))
    assert gateway.name == "web"


def test_the_messages_are_those_of_a_client_made_without_this_code() -> None:
    login, other = SaltedLogin(KEY, NONCE), ScramClient("web", password_of(KEY), NONCE)
    assert login.first() == other.first()
    asked = f"r={NONCE}more,s={SALT},i=4096".encode()
    assert login.last(asked) == other.last(asked)
    login.check(b"v=" + base64.b64encode(other.signature))


def signature_of(key: Key, asked: bytes) -> bytes:
    client = ScramClient("web", password_of(key), NONCE)
    client.last(asked)
    return b"v=" + base64.b64encode(client.signature)


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=!", b"e=other-error", b"v=" + base64.b64encode(bytes(32)), None])
def test_a_server_that_does_not_know_the_key_is_noticed(answer: bytes | None) -> None:
    login, asked = SaltedLogin(KEY, NONCE), f"r={NONCE}more,s={SALT},i=4096".encode()
    login.last(asked)
    with pytest.raises(UnauthorizedError, match="has not proved"):
        login.check(signature_of(key_of("other"), asked) if answer is None else answer)


def test_a_signature_of_another_exchange_is_worth_nothing() -> None:
    login = SaltedLogin(KEY, NONCE)
    login.last(f"r={NONCE}more,s={SALT},i=4096".encode())
    with pytest.raises(UnauthorizedError, match="has not proved"):
        login.check(signature_of(KEY, f"r={NONCE}other,s={SALT},i=4096".encode()))


def test_nothing_is_proved_before_there_is_something_to_sign() -> None:
    with pytest.raises(UnauthorizedError, match="has not proved"):
        SaltedLogin(KEY, NONCE).check(b"v=")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "not one of SCRAM"),
        ("e=unknown-user", "not one of SCRAM"),
        (f"m=what,r={NONCE}more,s={SALT},i=4096", "not one of SCRAM"),
        (f"s={SALT},r={NONCE}more,i=4096", "not one of SCRAM"),
        (f"r={NONCE}m\u00f6re,s={SALT},i=4096", "not one of SCRAM"),
        (f"r={NONCE},s={SALT},i=4096", "another exchange"),
        (f"r=other{NONCE}more,s={SALT},i=4096", "another exchange"),
        (f"r={NONCE}more,s=,i=4096", "no salt"),
        (f"r={NONCE}more,s=!!,i=4096", "no salt"),
        (f"r={NONCE}more,s={SALT},i={ROUNDS_MIN - 1}", "rounds"),
        (f"r={NONCE}more,s={SALT},i={ROUNDS_MAX + 1}", "rounds"),
        (f"r={NONCE}more,s={SALT},i=-4096", "rounds"),
        (f"r={NONCE}more,s={SALT},i={'9' * 5000}", "rounds"),
        (f"r={NONCE}more,s={SALT},i=", "rounds"),
    ],
)
def test_an_answer_that_no_client_must_follow_is_refused(answer: str, reason: str) -> None:
    with pytest.raises(UnauthorizedError, match=reason):
        SaltedLogin(KEY, NONCE).last(answer.encode())
