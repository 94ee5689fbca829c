"""Keys: the exchange that proves them, without a network, and what is kept of them."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.metadata.cluster.principals import (
    Principal,
    Principals,
    decode_principals,
    encode_principals,
    roles_from_text,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataError, UnauthorizedError
from octavo.protocol.messages import Authenticate, AuthenticateAnswer
from octavo.security.login import WRONG_KEY, BookieLogin, ClientLogin
from octavo.security.roles import Role
from octavo.security.scram import MECHANISM, Exchange, Key, Verifier, client_proof, decoy, is_proof, verifier_of

SECRET = hashlib.sha256(b"a secret").digest()
OTHER = hashlib.sha256(b"another").digest()
NONCES = tuple(hashlib.sha256(bytes([number])).digest() for number in range(4))


def client(
    secret: bytes = SECRET, *, bookie_id: str = "b1", cluster_id: str = "c", nonce: bytes = NONCES[0]
) -> ClientLogin:
    return ClientLogin(Key("writer", secret), cluster_id=cluster_id, bookie_id=bookie_id, nonce=nonce)


def find(name: str) -> tuple[Verifier, tuple[str, ...]]:
    return (verifier_of(SECRET), ("append",)) if name == "writer" else (decoy(b"seed", name), ())


def bookie(bookie_id: str = "b1", cluster_id: str = "c") -> BookieLogin:
    return BookieLogin(find, cluster_id=cluster_id, bookie_id=bookie_id)


def run(client: ClientLogin, bookie: BookieLogin) -> None:
    answer = bookie.received(client.first(), NONCES[1])
    proof = client.answered(answer)
    assert proof is not None
    assert client.answered(bookie.received(proof, NONCES[2])) is None


def test_a_client_and_a_bookie_that_share_a_key_know_one_another() -> None:
    one, other = client(), bookie()
    run(one, other)
    assert other.name == "writer"
    assert one.roles == ("append",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (client(OTHER), bookie()),
        (client(bookie_id="b2"), bookie("b1")),
        (client(cluster_id="d"), bookie()),
    ],
)
def test_another_key_bookie_or_cluster_is_refused(one: ClientLogin, other: BookieLogin) -> None:
    with pytest.raises(UnauthorizedError, match=WRONG_KEY):
        run(one, other)
    assert other.name is None


def test_a_name_that_does_not_exist_is_refused_like_a_wrong_key() -> None:
    unknown = ClientLogin(Key("stranger", SECRET), cluster_id="c", bookie_id="b1", nonce=NONCES[0])
    with pytest.raises(UnauthorizedError, match=WRONG_KEY):
        run(unknown, bookie())


def test_a_recorded_exchange_is_refused_when_it_is_played_again() -> None:
    one, first = client(), bookie()
    hello = one.first()
    proof = one.answered(first.received(hello, NONCES[1]))
    assert proof is not None
    first.received(proof, NONCES[2])
    again = bookie()
    again.received(hello, NONCES[3])
    with pytest.raises(UnauthorizedError, match=WRONG_KEY):
        again.received(proof, NONCES[2])


def test_a_proof_cannot_be_reflected() -> None:
    # A false bookie asks the client for its proof and offers it to the client as its own signature.
    one = client()
    proof = one.answered(AuthenticateAnswer(False, (), NONCES[1]))
    assert proof is not None
    with pytest.raises(UnauthorizedError, match="does not know the key of writer"):
        one.answered(AuthenticateAnswer(True, ("admin",), proof.data))
    assert one.roles == ()


@pytest.mark.parametrize(
    "answers",
    [
        [AuthenticateAnswer(True, ("admin",), b"")],
        [AuthenticateAnswer(True, (), NONCES[1])],
        [AuthenticateAnswer(False, (), b"short")],
        [AuthenticateAnswer(False, (), NONCES[1]), AuthenticateAnswer(False, (), NONCES[2])],
        [AuthenticateAnswer(False, (), NONCES[1]), AuthenticateAnswer(True, (), bytes(32))],
        [AuthenticateAnswer(False, (), NONCES[1]), AuthenticateAnswer(True, (), b"")],
    ],
)
def test_a_bookie_that_leaves_out_a_step_or_signs_wrongly_is_refused(answers: list[AuthenticateAnswer]) -> None:
    one = client()
    *fitting, last = answers
    one.first()
    for answer in fitting:
        assert one.answered(answer) is not None
    with pytest.raises(UnauthorizedError):
        one.answered(last)


@pytest.mark.parametrize(
    "requests",
    [
        [Authenticate("PLAIN", "writer", b"password")],
        [Authenticate(MECHANISM, "writer", b"")],
        [Authenticate(MECHANISM, "writer", NONCES[0]), Authenticate(MECHANISM, "writer", b"")],
        [Authenticate(MECHANISM, "writer", NONCES[0]), Authenticate(MECHANISM, "other", bytes(32))],
    ],
)
def test_steps_of_a_client_that_do_not_fit_are_refused(requests: list[Authenticate]) -> None:
    other = bookie()
    *fitting, last = requests
    for request in fitting:
        assert not other.received(request, NONCES[1]).complete
    with pytest.raises(UnauthorizedError):
        other.received(last, NONCES[1])
    assert other.name is None


def test_a_connection_authenticates_once() -> None:
    one, other = client(), bookie()
    run(one, other)
    with pytest.raises(UnauthorizedError, match="already, as writer"):
        other.received(client().first(), NONCES[3])


@given(st.lists(st.tuples(st.sampled_from(["writer", "stranger", ""]), st.binary(max_size=40)), max_size=4))
def test_no_bytes_but_the_proof_authenticate(steps: list[tuple[str, bytes]]) -> None:
    other = bookie()
    for name, data in steps:
        try:
            answer = other.received(Authenticate(MECHANISM, name, data), NONCES[1])
        except UnauthorizedError:
            break
        assert not answer.complete
    assert other.name is None


@given(st.integers(0, 255), st.integers(0, 31))
def test_a_proof_with_another_byte_is_none(value: int, index: int) -> None:
    exchange = Exchange("writer", "c", "b1", NONCES[0], NONCES[1])
    proof = bytearray(client_proof(SECRET, exchange))
    right = proof[index] == value
    proof[index] = value
    assert is_proof(verifier_of(SECRET), exchange, bytes(proof)) is right


def test_exchanges_whose_fields_run_together_are_different() -> None:
    signed = {
        Exchange(name, cluster, bookie_id, b"n", b"m").signed()
        for name, cluster, bookie_id in (("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"))
    }
    assert len(signed) == 3


def test_what_a_bookie_keeps_is_not_the_key() -> None:
    verifier = verifier_of(SECRET)
    exchange = Exchange("writer", "c", "b1", NONCES[0], NONCES[1])
    for stolen in verifier:
        assert stolen != SECRET
        assert not is_proof(verifier, exchange, client_proof(stolen, exchange))


def test_a_key_is_a_line_and_never_shows_its_secret() -> None:
    key = Key("writer", SECRET)
    assert Key.from_text(f"{key.to_text()}\n") == key
    assert key.to_text().partition(":")[2] not in f"{key!r} {key}"
    for wrong in ("", "writer", "writer:", ":abc", "writer:abc", f"a b:{key.to_text()[7:]}", f"{key.to_text()}x"):
        with pytest.raises(InvalidArgumentError) as caught:
            Key.from_text(wrong)
        assert key.to_text()[7:-2] not in caught.value.message


# --- the document -----------------------------------------------------------------------------------------------------

WRITER = Principal(name="writer", roles=frozenset({Role.APPEND, Role.READ}), verifier=verifier_of(SECRET))
READER = Principal(name="reader", roles=frozenset({Role.READ}), disabled=True)


def test_principals_come_back_as_they_were_stored() -> None:
    principals = Principals().with_principal(WRITER).with_principal(READER)
    assert list(principals.by_name) == ["reader", "writer"]
    assert decode_principals(encode_principals(principals)) == principals
    assert WRITER.role_names() == ("read", "append")
    assert SECRET not in encode_principals(principals)


def test_fields_of_a_later_version_are_kept() -> None:
    value = encode_principals(Principals({"reader": READER}, {"later": 1}))
    assert decode_principals(value).unknown_fields == {"later": 1}
    assert encode_principals(decode_principals(value)) == value


@pytest.mark.parametrize("value", [b"", b"{}", encode_principals(Principals({"reader": READER}))[:-3] + b"x}]"])
def test_a_damaged_document_is_an_error(value: bytes) -> None:
    with pytest.raises(MetadataError):
        decode_principals(value)


def test_changes_name_the_principals_of_whom_something_else_is_true() -> None:
    before = Principals().with_principal(WRITER).with_principal(READER)
    assert before.changed_since(before) == frozenset()
    assert before.without("reader").changed_since(before) == {"reader"}
    assert before.with_principal(Principal(name="new", roles=WRITER.roles)).changed_since(before) == frozenset()
    other_key = Principal(name="writer", roles=WRITER.roles, verifier=verifier_of(OTHER))
    assert before.with_principal(other_key).changed_since(before) == {"writer"}


def test_impossible_principals_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not a name of a principal"):
        Principal(name="bookie", roles=frozenset({Role.READ}))
    with pytest.raises(InvalidArgumentError, match="needs a role"):
        Principal(name="x", roles=frozenset())
    with pytest.raises(InvalidArgumentError, match="'king' is not a role; the roles are observe, read, append"):
        roles_from_text(["read", "king"])
    full = Principals({f"p{number}": READER for number in range(1000)})
    with pytest.raises(InvalidArgumentError, match="at most 1000 principals"):
        full.with_principal(WRITER)
