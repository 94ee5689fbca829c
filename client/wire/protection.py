"""Whether the connections of a client are protected. Only then the modules of TLS and of keys are loaded."""

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.client.options import ClientOptions
from octavo.protocol.errors import UnauthorizedError
from octavo.protocol.messages import EXTENSION_DENIED, EXTENSION_PRINCIPAL, Hello
from octavo.security.tls_options import Tls

if TYPE_CHECKING:
    from octavo.client.wire.security import WireSecurity


def options_with_environment(options: ClientOptions) -> ClientOptions:
    """The options, with what the environment says where they say nothing. Raises :class:`InvalidArgumentError`."""
    tls = options.tls if options.tls is not None else Tls.from_environment(os.environ) or False
    return replace(options, tls=tls, key_file=options.key_file or os.environ.get("OCTAVO_KEY_FILE") or None)


def security_of(options: ClientOptions) -> "WireSecurity | None":
    """What protects the connections; None: nothing does. Raises :class:`InvalidArgumentError` for files that cannot be
    used."""
    if not options.tls and options.key_file is None:
        return None
    from octavo.client.wire.security import WireSecurity  # noqa: PLC0415 - see the module

    return WireSecurity(options)


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
