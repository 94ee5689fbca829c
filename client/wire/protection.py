"""Protection of connections as far as it needs neither TLS nor a key: most clients load no more of it."""

import asyncio
import os
from dataclasses import replace

from octavo.client.options import ClientOptions
from octavo.protocol.errors import UnauthorizedError
from octavo.protocol.messages import EXTENSION_DENIED, EXTENSION_PRINCIPAL, Hello
from octavo.security.tls_options import Tls


def options_with_environment(options: ClientOptions) -> ClientOptions:
    """The options, with what the environment says where they say nothing. Raises :class:`InvalidArgumentError`."""
    tls = options.tls if options.tls is not None else Tls.from_environment(os.environ) or False
    return replace(options, tls=tls, key_file=options.key_file or os.environ.get("OCTAVO_KEY_FILE") or None)


def login_without_key(theirs: Hello, _transport: asyncio.Transport) -> None:
    """How a client that has neither TLS nor a key authenticates: not at all. Raises :class:`UnauthorizedError`."""
    check_known_by_certificate(theirs)


def check_known_by_certificate(theirs: Hello) -> None:
    """Raise :class:`UnauthorizedError` unless the bookie knows the client by its certificate."""
    if EXTENSION_PRINCIPAL not in theirs.extensions:
        reason = theirs.extensions.get(EXTENSION_DENIED, b"").decode(errors="replace")
        raise UnauthorizedError(
            f"bookie {theirs.bookie_id} requires authentication: {reason or 'the client is not known'}; connect with "
            "key_file= or a certificate of a principal (`octavo access add NAME` makes NAME one)"
        )
