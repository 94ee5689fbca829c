"""How the command line connects to gateways: TLS and a key, as it does to bookies."""

import secrets
import ssl
from dataclasses import replace
from typing import Final, Self

from octavo.client.options import ClientOptions
from octavo.client.wire.protection import options_with_environment
from octavo.client.wire.security import read_key
from octavo.protocol.light_dataclass import dataclass
from octavo.security.contexts import client_context
from octavo.security.salted_login import SaltedLogin
from octavo.security.tls_options import Tls

_NONCE_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Protection:
    """TLS and the key of connections to gateways. ``tls`` None: it is plain. ``key_file`` None: no key is shown."""

    tls: Tls | None = None
    key_file: str | None = None

    @classmethod
    def from_environment(cls) -> Self:
        """As the common options and the environment say.

        Raises:
            InvalidArgumentError: They contradict one another.
        """
        options = options_with_environment(ClientOptions())
        return cls(options.tls if isinstance(options.tls, Tls) else None, options.key_file)

    def context(self) -> ssl.SSLContext | None:
        """For a new connection. The certificate must be for the gateway's host, whatever is verified of bookies: it has
        no bookie's id.

        Raises:
            InvalidArgumentError: A file cannot be used.
        """
        return None if self.tls is None else client_context(replace(self.tls, verify="host"))

    def login(self) -> SaltedLogin:
        """For a new connection of the principal whose key there is.

        Raises:
            InvalidArgumentError: The file cannot be used.
        """
        assert self.key_file is not None, "without a key there is no login"
        return SaltedLogin(read_key(self.key_file), secrets.token_urlsafe(_NONCE_BYTES))

    @property
    def advice(self) -> str:
        """The options that are missing, perhaps, where a gateway closes the connection."""
        missing = [] if self.tls is not None else ["--tls-ca, if it speaks TLS"]
        missing += [] if self.key_file is not None else ["--key-file, if its clients must be principals"]
        return f"; give {' and '.join(missing)}" if missing else ""
