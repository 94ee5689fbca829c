"""One TLS connection as a calculation: bytes of the network in, bytes of the application out, and the other way round.

OpenSSL does the work on two buffers in memory, so nothing here knows a socket or an event loop, and every failure is an
:class:`OctavoError` that says what was wrong, on the side that notices it and on the other. uvloop's own ``ssl=`` hides
why a certificate was refused, from both sides (docs/decisions/018).
"""

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any

from octavo.protocol.errors import BookieUnavailableError, OctavoError, ProtocolError, UnauthorizedError

RECORD_FIRST_BYTE = 0x16
"""The first byte of a TLS connection. That of a plain one is 0: the length of a frame is far below 2**24."""

_RECORD_BYTES = 16 * 1024

_REFUSED_CERTIFICATE = {
    "CERTIFICATE_REQUIRED": "it requires a certificate, and none was given",
    "UNKNOWN_CA": "it does not know the authority that signed the certificate",
    "CERTIFICATE_EXPIRED": "the certificate has expired",
    "CERTIFICATE_REVOKED": "the certificate has been revoked",
    "BAD_CERTIFICATE": "the certificate is bad",
    "CERTIFICATE_UNKNOWN": "the certificate is not acceptable",
    "UNSUPPORTED_CERTIFICATE": "the certificate is of an unsupported kind",
    "ACCESS_DENIED": "access denied",
}
"""The alert of the other side -> what it means. Matched at the end of OpenSSL's name for it."""

_VERSIONS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE")
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


class TlsSession:
    """See the module. Both sides call :meth:`handshake` with what arrives until it returns true, then :meth:`receive`
    and :meth:`send`; after each call :meth:`outgoing` has what must be sent, also when it raised."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> None:
        """``server_hostname``: what a client verifies if its context checks host names."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.established = False
        """Whether the handshake is complete."""
        self.ended = False
        """Whether the other side has said that it sends nothing more."""

    def handshake(self, data: bytes) -> bool:
        """Take what has arrived; true once application data can pass. Raises :class:`OctavoError`."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise explained(error) from error
        self.established = True
        return True

    def receive(self, data: bytes) -> bytes:
        """The application's bytes in what has arrived. Raises :class:`OctavoError`; the connection is over then."""
        incoming, tls = self._incoming, self._object
        incoming.write(data)
        chunks: list[bytes] = []
        try:
            while incoming.pending or tls.pending():
                chunk = tls.read(_RECORD_BYTES)
                if not chunk:
                    self.ended = True
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass  # a part of a record, or one that carries no data
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise explained(error) from error
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def send(self, data: bytes) -> None:
        """Encrypt bytes of the application. Raises :class:`OctavoError`."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._object.write(view) :]
        except ssl.SSLError as error:
            raise explained(error) from error

    def end(self) -> None:
        """Say that this side sends nothing more."""
        # It waits for the other side to say the same, or nothing can be said any more.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._object.unwrap()

    def outgoing(self) -> bytes:
        """The bytes that must be sent to the other side, once."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The verified certificate of the other side; None if it gave none."""
        return self._object.getpeercert() or None

    def version(self) -> str:
        """``TLSv1.3``, for example."""
        return self._object.version() or "TLS"


def explained(error: ssl.SSLError) -> OctavoError:
    """The meaning of a failure of OpenSSL. Refused certificates are :class:`UnauthorizedError`: trying again is no
    use."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnauthorizedError(f"TLS: the certificate of the other side is refused: {error.verify_message}")
    reason = error.reason or type(error).__name__
    for alert, meaning in _REFUSED_CERTIFICATE.items():
        if reason.endswith(f"ALERT_{alert}") or reason == alert:
            return UnauthorizedError(f"TLS: the other side refuses this side's certificate: {meaning}")
    if reason.endswith(_VERSIONS):
        return UnauthorizedError(f"TLS: the two sides accept no common version of TLS ({reason})")
    if reason in _NOT_TLS:
        return BookieUnavailableError(f"TLS: the other side does not speak TLS ({reason})", may_have_happened=False)
    return ProtocolError(f"TLS: {reason.replace('_', ' ').lower()}")
