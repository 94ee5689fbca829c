"""How the connections of a client are protected: what stands between a wire and its TCP connection, and how the client
proves who it is."""

import asyncio
import ipaddress
import secrets

from octavo.client.options import ClientOptions
from octavo.client.wire.protection import check_known_by_certificate
from octavo.client.wire.wire import Wire
from octavo.protocol.errors import InvalidArgumentError, UnauthorizedError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Hello
from octavo.security.contexts import ClientFiles, check_bookie
from octavo.security.login import ClientLogin
from octavo.security.scram import NONCE_BYTES, Key
from octavo.security.secret_files import read_secret
from octavo.security.tls_options import Tls
from octavo.security.tls_session import TlsSession
from octavo.security.tls_transport import TlsProtocol


class WireSecurity:
    """See the module. Made once per client: the files of TLS are read then."""

    def __init__(self, options: ClientOptions) -> None:
        """Raises :class:`InvalidArgumentError` for files that cannot be used."""
        self._tls = Tls() if options.tls is True else options.tls or None
        self._files = ClientFiles(self._tls) if self._tls is not None else None
        self._key_file = options.key_file
        if self._key_file is not None:
            read_key(self._key_file)

    def protocol(self, wire: Wire, bookie_id: BookieId, host: str, *, registered: str | None) -> asyncio.Protocol:
        """The protocol to give to the event loop for the wire of a connection to ``host``. ``registered``: what the
        bookie's registration says of TLS; None: it has none."""
        if self._files is None or self._tls is None or (self._tls.registered_only and registered == "off"):
            return wire
        by_id = self._tls.verify == "bookie-id"
        session = TlsSession(self._files.context(), server_side=False, server_hostname=None if by_id else host)

        def established(session: TlsSession) -> None:
            if by_id:
                check_bookie(session, bookie_id)

        return TlsProtocol(session, wire, established=established, failed=wire.not_connected)

    def login(self, theirs: Hello, transport: asyncio.Transport) -> ClientLogin | None:
        """How to authenticate to a bookie that requires it; None: it knows the client by its certificate. Raises
        :class:`UnauthorizedError` if there is no way, :class:`InvalidArgumentError` for a key file that has become
        unusable."""
        if self._key_file is None:
            check_known_by_certificate(theirs)
            return None
        if transport.get_extra_info("tls_session") is None and not _is_within_host(transport):
            raise UnauthorizedError(
                f"bookie {theirs.bookie_id} asks for the key of this client without TLS: a key is used over TLS or "
                "within one host only"
            )
        return ClientLogin(
            read_key(self._key_file),
            cluster_id=theirs.cluster_id,
            bookie_id=theirs.bookie_id,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )


def read_key(path: str) -> Key:
    """The key in a file. Raises :class:`InvalidArgumentError`, which never shows the key."""
    try:
        text = read_secret(path, "key file").decode("ascii")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"key file {path}: not a key") from error
    try:
        return Key.from_text(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"key file {path}: {error.message}") from None


def _is_within_host(transport: asyncio.Transport) -> bool:
    name = transport.get_extra_info("peername")
    try:
        return isinstance(name, tuple) and ipaddress.ip_address(str(name[0])).is_loopback
    except ValueError:
        return False
