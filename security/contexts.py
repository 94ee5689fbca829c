"""Certificates and keys from files, as OpenSSL's contexts. A whole new context is made and tried each time: replacing
the certificate of a context in use does not always replace it."""

import contextlib
import os
import ssl
from typing import Literal, NamedTuple

from octavo.protocol.errors import InvalidArgumentError, OctavoError, UnauthorizedError
from octavo.protocol.light_dataclass import dataclass
from octavo.security.names import bookie_uri, names_of, principal_uri
from octavo.security.secret_files import check_secret
from octavo.security.tls_options import Tls
from octavo.security.tls_session import TlsSession

_MINIMUM = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

type TlsMinimum = Literal["1.2", "1.3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """The files that a server needs for TLS. ``ca``: authorities of the clients' certificates; None: clients are not
    asked for one."""

    certificate: str
    key: str
    ca: str | None
    minimum: str = "1.3"

    def state(self) -> object:
        """Changes when a file does; None while one is missing."""
        return _state_of(self.certificate, self.key, self.ca)


class ServerContext(NamedTuple):
    """A context that has been tried, and what its certificate says."""

    context: ssl.SSLContext
    names: tuple[str, ...]
    """The names of ours in the certificate."""
    expires_at: float
    """Seconds since 1970."""


class ClientFiles:
    """The context of a client, made anew when its files have changed."""

    def __init__(self, tls: Tls) -> None:
        """Raises :class:`InvalidArgumentError` for files that cannot be used."""
        self._tls = tls
        self._seen = self._state()
        self._context = client_context(tls)

    def context(self) -> ssl.SSLContext:
        """The context for a new connection. Files that cannot be used change nothing."""
        seen = self._state()
        if seen != self._seen:
            self._seen = seen
            with contextlib.suppress(InvalidArgumentError):
                self._context = client_context(self._tls)
        return self._context

    def _state(self) -> object:
        return _state_of(self._tls.certificate, self._tls.key, self._tls.ca)


def _state_of(*paths: str | None) -> object:
    try:
        facts = [os.stat(path) for path in paths if path is not None]
    except OSError:
        return None
    return [(fact.st_mtime_ns, fact.st_size, fact.st_ino) for fact in facts]


def server_context(files: ServerFiles) -> ServerContext:
    """Read the files, and make a connection in memory with what they hold. Raises :class:`InvalidArgumentError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _MINIMUM[files.minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0  # bytes that no client of ours uses
    _load_pair(context, files.certificate, files.key)
    if files.ca is not None:
        _load_authorities(context, files.ca)
        # Optional: a client without a certificate may have a key instead, and is told in words if it has neither.
        context.verify_mode = ssl.CERT_OPTIONAL
    return _tried(context, files.certificate)


def client_context(tls: Tls) -> ssl.SSLContext:
    """The context of a client. Raises :class:`InvalidArgumentError` for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = tls.verify == "host"
    if tls.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, tls.ca)
    if tls.certificate is not None:
        assert tls.key is not None, "options of TLS have both or neither"
        _load_pair(context, tls.certificate, tls.key)
    return context


def check_bookie(session: TlsSession, bookie_id: str) -> None:
    """With ``verify="bookie-id"``: the certificate must be that of this bookie. Raises :class:`UnauthorizedError`."""
    names = names_of(session.peer_certificate())
    wanted = bookie_uri(bookie_id)
    if wanted not in {principal_uri(name) for name in names}:
        raise UnauthorizedError(
            f"TLS: the certificate of bookie {bookie_id} must contain the URI {wanted}; "
            f"it contains {', '.join(map(principal_uri, names)) or 'no such URI'}"
        )


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    check_secret(key, "TLS: key")
    try:
        with open(certificate, "rb"):
            pass
    except OSError as error:
        raise InvalidArgumentError(f"TLS: {error.filename}: {error.strerror or error}") from error
    try:
        # Without the callback OpenSSL would ask a terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedKeyError:
        raise InvalidArgumentError(
            f"TLS: the key {key} is encrypted; a key must be stored without a password"
        ) from None
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        raise InvalidArgumentError(
            f"TLS: certificate {certificate} and key {key} cannot be used together: {reason}"
        ) from error
    except OSError as error:
        raise InvalidArgumentError(f"TLS: {key}: {error.strerror or error}") from error


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKeyError


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        reason = (error.reason or "no certificates in it").replace("_", " ").lower()
        raise InvalidArgumentError(f"TLS: {path} cannot be used as certificates of authorities: {reason}") from error
    except OSError as error:
        raise InvalidArgumentError(f"TLS: {path}: {error.strerror or error}") from error


def _tried(context: ssl.SSLContext, certificate: str) -> ServerContext:
    """Connect to the context in memory, trusting nothing but its own certificate."""
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    probe.check_hostname = False
    probe.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        with open(certificate, encoding="ascii", errors="replace") as file:
            probe.load_verify_locations(cadata=file.read())
        server, client = TlsSession(context, server_side=True), TlsSession(probe, server_side=False)
        flight = b""
        while not (server.established and client.established):
            if not client.established:
                client.handshake(flight)
            flight = client.outgoing()
            if not server.established:
                server.handshake(flight)
            flight = server.outgoing()
    except ssl.SSLError as error:
        raise InvalidArgumentError(f"TLS: {certificate} is not a certificate in PEM") from error
    except OctavoError as error:
        reason = error.message.rpartition(": ")[2]
        raise InvalidArgumentError(f"TLS: the certificate {certificate} cannot be used: {reason}") from error
    facts = client.peer_certificate()
    assert facts is not None, "a server has a certificate"
    return ServerContext(context, names_of(facts), ssl.cert_time_to_seconds(facts["notAfter"]))
