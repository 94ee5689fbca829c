"""TLS as a calculation: two sessions whose bytes a test carries from one to the other, whole, in pieces, or damaged."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    OctavoError,
    ProtocolError,
    UnauthorizedError,
)
from octavo.security.contexts import ClientFiles, check_bookie, client_context, server_context
from octavo.security.names import is_principal_name, names_of
from octavo.security.tls_options import Tls
from octavo.security.tls_session import TlsSession
from support.clusters.certificates import STRANGER, Certificates, days_ago


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def contexts(certificates: Certificates) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return server_context(certificates.server()).context, client_context(certificates.client("writer"))


class Talk:
    """A client and a server. :meth:`shake_hands` carries bytes until both are done or one of them has failed."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, *, host: str | None = "localhost") -> None:
        self.server = TlsSession(server, server_side=True)
        self.client = TlsSession(client, server_side=False, server_hostname=host)
        self.errors: dict[str, OctavoError] = {}
        self.seen: list[bytes] = []

    def shake_hands(self, piece_bytes: int = 1 << 20) -> "Talk":
        self._step(self.client, "client", b"")
        for _ in range(6):
            self._carry(self.client, self.server, "server", piece_bytes)
            self._carry(self.server, self.client, "client", piece_bytes)
        return self

    def _carry(self, source: TlsSession, target: TlsSession, name: str, piece_bytes: int) -> None:
        flight = source.outgoing()
        self.seen.append(flight)
        for start in range(0, len(flight), piece_bytes):
            self._step(target, name, flight[start : start + piece_bytes])

    def _step(self, session: TlsSession, name: str, data: bytes) -> None:
        if name in self.errors:
            return
        try:
            if session.established:
                session.receive(data)
            else:
                session.handshake(data)
        except OctavoError as error:
            self.errors[name] = error

    @property
    def established(self) -> bool:
        return self.client.established and self.server.established and not self.errors


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_both_sides_agree_however_their_bytes_are_split(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], piece_bytes: int
) -> None:
    talk = Talk(*contexts).shake_hands(piece_bytes)
    assert talk.established
    assert talk.client.version() == talk.server.version() == "TLSv1.3"
    assert names_of(talk.server.peer_certificate()) == ("writer",)


@given(st.lists(st.binary(max_size=40_000), max_size=5), st.integers(1, 20_000))
def test_what_one_side_sends_the_other_receives(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], messages: list[bytes], piece_bytes: int
) -> None:
    talk = Talk(*contexts).shake_hands()
    for source, target in ((talk.client, talk.server), (talk.server, talk.client)):
        for message in messages:
            source.send(message)
        flight = source.outgoing()
        for message in messages:
            assert len(message) < 16 or message not in flight  # a few bytes are there by chance
        received = [target.receive(flight[start : start + piece_bytes]) for start in range(0, len(flight), piece_bytes)]
        assert b"".join(received) == b"".join(messages)
        assert target.outgoing() == b""


@given(st.data())
def test_a_changed_byte_ends_the_connection_and_changes_nothing_that_arrives(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], data: st.DataObject
) -> None:
    talk = Talk(*contexts).shake_hands()
    talk.client.send(b"an entry" * 100)
    flight = bytearray(talk.client.outgoing())
    flight[data.draw(st.integers(0, len(flight) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        received = talk.server.receive(bytes(flight))
    except OctavoError:
        received = b""
    assert received == b""


@given(st.binary(min_size=1, max_size=600), st.booleans())
def test_a_handshake_of_any_bytes_ends_with_an_error_of_ours_or_waits(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], garbage: bytes, behind_a_beginning: bool
) -> None:
    talk = Talk(*contexts)
    talk.client.handshake(b"")
    beginning = talk.client.outgoing()
    flight = beginning[: len(garbage) % len(beginning)] + garbage if behind_a_beginning else b"\x16\x03\x01" + garbage
    try:
        assert not talk.server.handshake(flight)
    except OctavoError as error:
        assert error.message.startswith("TLS: ")  # noqa: PT017 - it may wait for more instead


@pytest.mark.parametrize("stop", range(0, 500, 61))
def test_a_handshake_that_stops_at_any_byte_waits_for_more(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], stop: int
) -> None:
    talk = Talk(*contexts)
    talk.client.handshake(b"")
    flight = talk.client.outgoing()
    assert len(flight) > stop
    assert not talk.server.handshake(flight[:stop])
    assert not talk.server.established


def test_a_certificate_that_the_server_refuses_is_known_to_both_sides(certificates: Certificates) -> None:
    server = server_context(certificates.server()).context
    for name, what, meaning in (
        ("foreign", {"authority": STRANGER}, "does not know the authority"),
        ("expired", {"now": days_ago(30), "days": 1}, "has expired"),
        ("early", {"now": days_ago(-30)}, "bad"),
    ):
        talk = Talk(server, client_context(certificates.client(name, **what))).shake_hands()
        assert not talk.established
        assert isinstance(talk.errors["server"], UnauthorizedError)
        assert isinstance(talk.errors["client"], UnauthorizedError)
        assert meaning in talk.errors["client"].message


def test_a_client_without_a_certificate_is_connected_and_has_no_name(certificates: Certificates) -> None:
    talk = Talk(server_context(certificates.server()).context, client_context(certificates.client())).shake_hands()
    assert talk.established
    assert names_of(talk.server.peer_certificate()) == ()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"authority": STRANGER}, "unable to get local issuer"),
        ({"hosts": ("elsewhere",)}, "Hostname mismatch"),
        ({"now": days_ago(-30)}, "not yet valid"),
    ],
)
def test_a_client_refuses_the_certificate_of_a_server(
    certificates: Certificates, what: dict[str, Any], reason: str
) -> None:
    files = certificates.server("odd", **{"hosts": ("localhost",), **what})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    talk = Talk(context, client_context(certificates.client())).shake_hands()
    assert isinstance(talk.errors["client"], UnauthorizedError)
    assert reason in talk.errors["client"].message
    assert isinstance(talk.errors["server"], UnauthorizedError)


def test_a_bookie_id_in_the_certificate_may_be_verified_in_place_of_the_host(certificates: Certificates) -> None:
    server = server_context(certificates.server("b1", hosts=(), uris=("octavo:bookie/b1", "octavo:x"))).context
    talk = Talk(server, client_context(certificates.client(verify="bookie-id")), host=None).shake_hands()
    assert talk.established
    check_bookie(talk.client, "b1")
    with pytest.raises(UnauthorizedError, match="bookie b2 must contain the URI octavo:bookie/b2; it contains octavo:"):
        check_bookie(talk.client, "b2")


def test_only_allowed_versions_of_tls_are_spoken(certificates: Certificates) -> None:
    old = client_context(certificates.client())
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    refused = Talk(server_context(certificates.server()).context, old).shake_hands()
    assert not refused.established
    assert "no common version" in refused.errors["client"].message
    assert "no common version" in refused.errors["server"].message
    spoken = Talk(server_context(certificates.server(minimum="1.2")).context, old).shake_hands()
    assert spoken.established
    assert spoken.server.version() == "TLSv1.2"


def test_a_server_that_speaks_no_tls_is_named_so(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    client = Talk(*contexts).client
    client.handshake(b"")
    with pytest.raises(BookieUnavailableError, match="does not speak TLS"):
        client.handshake(b"\x00\x00\x00\x10 a plain frame, much longer")


def test_the_end_of_one_side_is_told_to_the_other(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    talk = Talk(*contexts).shake_hands()
    talk.client.send(b"last")
    talk.client.end()
    assert talk.server.receive(talk.client.outgoing()) == b"last"
    assert talk.server.ended


def test_a_record_replayed_is_refused(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    talk = Talk(*contexts).shake_hands()
    talk.client.send(b"once")
    record = talk.client.outgoing()
    assert talk.server.receive(record) == b"once"
    with pytest.raises(ProtocolError, match="mac"):
        talk.server.receive(record)


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_used_are_named_with_the_reason(certificates: Certificates, tmp_path: Path) -> None:
    good = certificates.server()
    other = certificates.server("other")
    text = tmp_path / "text"
    text.write_text("no certificate")
    text.chmod(0o600)
    readable = tmp_path / "readable.key"
    readable.write_bytes(Path(good.key).read_bytes())
    readable.chmod(0o644)
    expired = certificates.server("past", now=days_ago(30), days=1)
    parts = {"certificate": good.certificate, "key": good.key, "ca": good.ca, "minimum": "1.3"}
    for change, reason in (
        ({"key": str(tmp_path / "none")}, "none: No such file"),
        ({"certificate": str(tmp_path / "none")}, "none: No such file"),
        ({"key": other.key}, "cannot be used together: key values mismatch"),
        ({"certificate": str(text)}, "cannot be used together"),
        ({"key": str(readable)}, "TLS: key .* every user of this host can read it; run `chmod 600 "),
        ({"ca": str(text)}, "cannot be used as certificates of authorities"),
        ({"ca": str(tmp_path / "none")}, "none: No such file"),
        ({"certificate": expired.certificate, "key": expired.key}, "certificate has expired"),
    ):
        with pytest.raises(InvalidArgumentError, match=reason):
            server_context(type(good)(**{**parts, **change}))  # type: ignore[arg-type]


def test_an_encrypted_key_is_refused_and_no_terminal_is_asked(certificates: Certificates, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    good = certificates.server()
    key = serialization.load_pem_private_key(Path(good.key).read_bytes(), None)
    secret = tmp_path / "secret.key"
    secret.touch(0o600)
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(InvalidArgumentError, match="is encrypted"):
        server_context(type(good)(certificate=good.certificate, key=str(secret), ca=None))


def test_what_a_certificate_says_is_known_from_the_file(certificates: Certificates) -> None:
    context = server_context(certificates.server("b7", uris=("octavo:bookie/b7", "spiffe://x"), days=10))
    assert context.names == ("bookie/b7",)
    assert abs(context.expires_at - days_ago(-10).timestamp()) < 3600


def test_a_client_takes_over_new_files_and_keeps_what_it_has_when_they_are_bad(certificates: Certificates) -> None:
    tls = certificates.client("rotated")
    files = ClientFiles(tls)
    first = files.context()
    assert files.context() is first
    assert tls.certificate is not None
    Path(tls.certificate).write_text("broken")
    assert files.context() is first
    certificates.issue("rotated", hosts=(), uris=("octavo:rotated",))
    assert files.context() is not first


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OCTAVO_TLS": "0"}, None),
        ({"OCTAVO_TLS": "1"}, Tls()),
        ({"OCTAVO_TLS_CA": "/ca"}, Tls(ca="/ca")),
        (
            {"OCTAVO_TLS": "true", "OCTAVO_TLS_CERTIFICATE": "/c", "OCTAVO_TLS_KEY": "/k"},
            Tls(certificate="/c", key="/k"),
        ),
        ({"OCTAVO_TLS_VERIFY": "bookie-id"}, Tls(verify="bookie-id")),
    ],
)
def test_the_environment_may_switch_tls_on(environment: dict[str, str], expected: Tls | None) -> None:
    assert Tls.from_environment(environment) == expected


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"OCTAVO_TLS": "perhaps"}, "OCTAVO_TLS must be 1 or 0"),
        ({"OCTAVO_TLS": "0", "OCTAVO_TLS_CA": "/ca"}, "OCTAVO_TLS_CA is set"),
        ({"OCTAVO_TLS_KEY": "/k"}, "certificate and key need one another"),
        ({"OCTAVO_TLS_VERIFY": "nothing"}, "verify must be"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        Tls.from_environment(environment)


@pytest.mark.parametrize("name", ["writer", "a", "a.b-c_d@e", "9"])
def test_names_of_principals(name: str) -> None:
    assert is_principal_name(name)


@pytest.mark.parametrize("name", ["", "bookie", "bookie/b1", "-a", "a" * 65, "a b", "ä", "a\n"])
def test_what_is_no_name_of_a_principal(name: str) -> None:
    assert not is_principal_name(name)
