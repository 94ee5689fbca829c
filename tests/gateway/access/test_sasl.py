"""The exchange of SASL, message by message (rule K14): the example of RFC 7677, the table, and any bytes."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.access.sasl import WRONG_KEY, Known, SaslExchange, SaslState
from octavo.gateway.access.scram import MESSAGE_BYTES_MAX
from octavo.gateway.codes import Code, RefusedError
from octavo.security.salted_keys import (
    ROUNDS,
    SALT_BYTES,
    SaltedVerifier,
    password_of,
    salted_decoy,
    salted_verifier,
)
from octavo.security.scram import decoy, verifier_of
from support.kafka.sasl import ScramClient, key_of

SCRAM, PLAIN = "SCRAM-SHA-256", "PLAIN"
KEY = key_of("web")
SALTED = salted_verifier(password_of(KEY), b"a salt of tests.", rounds=4096)


class People:
    """Knows `web`; `off` is disabled, `old` has no salted verifier."""

    def known(self, name: str) -> Known:
        salted = SALTED if name in {"web", "off"} else salted_decoy(b"seed", name)
        verifier = verifier_of(KEY.secret) if name in {"web", "off", "old"} else decoy(b"seed", name)
        return Known(name in {"web", "old"}, verifier, salted)


def exchange(mechanism: str = SCRAM, *, over_tls: bool = True) -> SaslExchange:
    made = SaslExchange(People(), over_tls=over_tls)
    made.choose(mechanism)
    return made


def plain(name: str, password: str = password_of(KEY), act_as: str = "") -> bytes:
    return f"{act_as}\0{name}\0{password}".encode()


def refusal(made: SaslExchange, message: bytes, nonce: str = "n") -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        made.received(message, nonce)
    assert made.state is SaslState.OVER
    assert made.name is None
    return refused.value


# --- SCRAM ------------------------------------------------------------------------------------------------------------


def test_the_example_of_rfc_7677() -> None:
    class Example:
        def known(self, _name: str) -> Known:
            salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
            return Known(True, decoy(b"", ""), salted_verifier("pencil", salt, 4096))

    made = SaslExchange(Example(), over_tls=False)
    made.choose(SCRAM)
    server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert made.received(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", nonce) == server_first
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=" + proof
    assert made.received(last, "") == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (made.name, made.state) == ("user", SaslState.DONE)


@pytest.mark.parametrize("beginning", ["n,,", "y,,", "n,a=web,"])
def test_the_right_key_authenticates_both_sides(beginning: str) -> None:
    made, client = exchange(), ScramClient("web", password_of(KEY), beginning=beginning)
    last = client.last(made.received(client.first(), "of-the-server"))
    assert made.received(last, "") == b"v=" + base64.b64encode(client.signature)
    assert made.name == "web"


@pytest.mark.parametrize("name", ["web", "off", "old", "nobody"])
def test_wrong_keys_take_the_same_steps_and_get_the_same_text(name: str) -> None:
    password = password_of(KEY) if name != "web" else "wrong"
    made, client = exchange(), ScramClient(name, password)
    asked = made.received(client.first(), "of-the-server")
    assert len(base64.b64decode(dict(part.split("=", 1) for part in asked.decode().split(","))["s"])) == SALT_BYTES
    refused = refusal(made, client.last(asked))
    assert (refused.code, refused.text) == (Code.SASL_AUTHENTICATION_FAILED, WRONG_KEY)
    assert made.asked_name == name


def test_the_nonce_of_the_client_may_stand_there_twice() -> None:
    """As librdkafka of Debian sends it."""
    made, client = exchange(), ScramClient("web", password_of(KEY))
    asked = made.received(client.first(), "of-the-server")
    doubled = asked.replace(b"r=", b"r=rOprNGfwEbeRWgbNEkqO", 1)
    fields = dict(part.split("=", 1) for part in client.last(doubled).decode().split(","))
    assert fields["r"] == "rOprNGfwEbeRWgbNEkqO" * 2 + "of-the-server"
    # Its proof signs what the server has sent.
    bare = f"n=web,r=rOprNGfwEbeRWgbNEkqO,{asked.decode()},c=biws,r={fields['r']}".encode()
    salted = hashlib.pbkdf2_hmac("sha256", password_of(KEY).encode(), SALTED.salt, SALTED.rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    mask = hmac.digest(SALTED.stored_key, bare, "sha256")
    proof = base64.b64encode(bytes(one ^ other for one, other in zip(client_key, mask, strict=True)))
    assert made.received(f"c=biws,r={fields['r']},p=".encode() + proof, "").startswith(b"v=")
    assert made.name == "web"


def test_a_recorded_exchange_is_worth_nothing() -> None:
    first, client = exchange(), ScramClient("web", password_of(KEY))
    last = client.last(first.received(client.first(), "one"))
    again = exchange()
    again.received(client.first(), "another")
    assert refusal(again, last).code is Code.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=web", b"n,,r=x,n=web", b"p=tls-unique,,n=web,r=x", b"n,a=other,n=web,r=x",
        b"n,x,n=web,r=x", b"n,,m=ext,n=web,r=x", b"n,,n=,r=x", b"n,,n=web,r=", b"n,,n=we=b,r=x", b"n,,n=web,r=\x80",
        b"n,,n=web,r=a b", b"n,,n=web,r=" + b"x" * MESSAGE_BYTES_MAX,
    ],
)  # fmt: skip
def test_a_first_message_that_is_none_ends_the_exchange(message: bytes) -> None:
    assert refusal(exchange(), message).code is Code.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "change",
    [
        lambda last: b"", lambda last: last.rpartition(b",")[0], lambda last: last + b"=", lambda last: last + b",x=y",
        lambda last: last.replace(b"c=biws", b"c=eSws"), lambda last: last.replace(b"c=biws", b"c=!"),
        lambda last: last.replace(b"server", b"Server"), lambda last: last.rpartition(b"p=")[0] + b"p=",
        lambda last: last.rpartition(b"p=")[0] + b"p=AAAA", lambda last: last.replace(b",r=", b",x=1,r="),
    ],
)  # fmt: skip
def test_a_last_message_that_was_changed_ends_the_exchange(change: object) -> None:
    made, client = exchange(), ScramClient("web", password_of(KEY))
    last = client.last(made.received(client.first(), "of-the-server"))
    assert callable(change)
    assert change(last) != last
    assert refusal(made, change(last)).code is Code.SASL_AUTHENTICATION_FAILED


def test_a_name_may_have_commas_and_equal_signs() -> None:
    made = exchange()
    made.received(b"n,,n=a=2Cb=3Dc,r=x", "n")
    assert made.asked_name == "a,b=c"


# --- PLAIN ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["web", "old"])
def test_plain_compares_the_key(name: str) -> None:
    made = exchange(PLAIN)
    assert made.received(plain(name, act_as=name), "") == b""
    assert (made.name, made.state) == (name, SaslState.DONE)


@pytest.mark.parametrize(
    "message",
    [
        plain("web", "wrong"), plain("web", password_of(key_of("other"))), plain("off"), plain("nobody"),
        plain("web", ""), plain("", password_of(KEY)), plain("web\n"),
    ],
)  # fmt: skip
def test_wrong_keys_of_plain_get_one_text(message: bytes) -> None:
    assert refusal(exchange(PLAIN), message).text == WRONG_KEY


@pytest.mark.parametrize(
    "message",
    [
        b"", b"web", b"\0web", b"\0web\0x\0y", b"\0\xff\0x", plain("web", act_as="admin"), b"\0web\0" + b"x" * 1024
    ],
)  # fmt: skip
def test_a_message_of_plain_that_is_none_ends_the_exchange(message: bytes) -> None:
    assert refusal(exchange(PLAIN), message).code is Code.SASL_AUTHENTICATION_FAILED


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "over_tls", "is_offered"),
    [
        (SCRAM, False, True), (SCRAM, True, True), (PLAIN, True, True), (PLAIN, False, False),
        ("GSSAPI", True, False), ("SCRAM-SHA-512", True, False), ("", True, False), ("plain", True, False),
    ],
)  # fmt: skip
def test_plain_is_offered_over_tls_only(mechanism: str, over_tls: bool, is_offered: bool) -> None:
    made = SaslExchange(People(), over_tls=over_tls)
    assert made.mechanisms == ((SCRAM, PLAIN) if over_tls else (SCRAM,))
    if is_offered:
        made.choose(mechanism)
        assert made.state is SaslState.CHOSEN
    else:
        with pytest.raises(RefusedError) as refused:
            made.choose(mechanism)
        assert refused.value.code is Code.UNSUPPORTED_SASL_MECHANISM
        assert made.state is SaslState.OVER


def test_what_is_not_in_its_turn_ends_the_exchange() -> None:
    for reach in (SaslState.BEGUN, SaslState.DONE, SaslState.OVER):
        made = SaslExchange(People(), over_tls=True)
        if reach is not SaslState.BEGUN:
            made.choose(PLAIN)
            if reach is SaslState.DONE:
                made.received(plain("web"), "")
            else:
                refusal(made, b"")
        with pytest.raises(RefusedError) as refused:
            made.received(plain("web"), "")
        assert (refused.value.code, made.state) == (Code.ILLEGAL_SASL_STATE, SaslState.OVER)


@pytest.mark.parametrize("state", [SaslState.CHOSEN, SaslState.ASKED, SaslState.DONE, SaslState.OVER])
def test_a_mechanism_is_chosen_once(state: SaslState) -> None:
    made = exchange()
    made.state = state
    with pytest.raises(RefusedError) as refused:
        made.choose(SCRAM)
    assert (refused.value.code, made.state) == (Code.ILLEGAL_SASL_STATE, SaslState.OVER)


def test_keys_are_stretched_as_much_as_kafka_asks_for() -> None:
    made = salted_verifier("x", b"s" * SALT_BYTES)
    assert isinstance(made, SaltedVerifier)
    assert made.rounds == ROUNDS == 8192
    assert made != salted_verifier("x", b"t" * SALT_BYTES)
    assert salted_decoy(b"1", "a") == salted_decoy(b"1", "a") != salted_decoy(b"1", "b")
    assert salted_decoy(b"1", "a").salt != salted_decoy(b"2", "a").salt
    assert salted_decoy(b"1", "a").rounds == ROUNDS


@given(st.sampled_from([SCRAM, PLAIN]), st.lists(st.binary(max_size=200), max_size=4))
def test_no_bytes_authenticate_without_the_key(mechanism: str, messages: list[bytes]) -> None:
    made = exchange(mechanism)
    for message in messages:
        refused: RefusedError | None = None
        try:
            made.received(message, "of-the-server")
        except RefusedError as error:
            refused = error
        assert (refused is not None) == (made.state is SaslState.OVER)
        assert refused is None or refused.code in {Code.SASL_AUTHENTICATION_FAILED, Code.ILLEGAL_SASL_STATE}
    assert made.name is None


@given(st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_a_flipped_byte_never_authenticates(place: int, flip: int, in_first: bool) -> None:
    made, client = exchange(), ScramClient("web", password_of(KEY))

    def flipped(message: bytes) -> bytes:
        at = place % (len(message) - 2)  # bits of the last characters of base64 mean nothing
        return message[:at] + bytes([message[at] ^ flip]) + message[at + 1 :]

    try:
        if in_first:
            first = flipped(client.first())
            last = client.last(made.received(first, "of-the-server")) if first != client.first() else b""
        else:
            last = flipped(client.last(made.received(client.first(), "of-the-server")))
        made.received(last, "")
    except (RefusedError, AssertionError):
        pass
    assert made.name is None
