"""How the connections of a client are protected: what stands between a wire and its TCP connection."""

import asyncio
import os
from dataclasses import replace

from octavo.client.options import ClientOptions
from octavo.client.wire.wire import Wire
from octavo.protocol.ids import BookieId
from octavo.security.contexts import ClientFiles, check_bookie
from octavo.security.tls_options import Tls
from octavo.security.tls_session import TlsSession
from octavo.security.tls_transport import TlsProtocol


def options_with_environment(options: ClientOptions) -> ClientOptions:
    """The options, with what the environment says where they say nothing. Raises :class:`InvalidArgumentError`."""
    if options.tls is not None:
        return options
    return replace(options, tls=Tls.from_environment(os.environ) or False)


class WireSecurity:
    """See the module. Made once per client: the files of TLS are read then."""

    def __init__(self, options: ClientOptions) -> None:
        """Raises :class:`InvalidArgumentError` for files that cannot be used."""
        self._tls = Tls() if options.tls is True else options.tls or None
        self._files = ClientFiles(self._tls) if self._tls is not None else None

    def protocol(self, wire: Wire, bookie_id: BookieId, host: str, *, registered: str | None) -> asyncio.Protocol:
        """What to give to the event loop for the wire of a connection to ``host``. ``registered``: what the bookie's
        registration says of TLS; None: it has none."""
        if self._files is None or self._tls is None or (self._tls.registered_only and registered == "off"):
            return wire
        by_id = self._tls.verify == "bookie-id"
        session = TlsSession(self._files.context(), server_side=False, server_hostname=None if by_id else host)

        def established(session: TlsSession) -> None:
            if by_id:
                check_bookie(session, bookie_id)

        return TlsProtocol(session, wire, established=established, failed=wire.not_connected)
