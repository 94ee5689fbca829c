"""Access to the console: where it may listen, and the token that every request for data carries. Pure.

The console shows what the cluster's metadata contain and can drain bookies, and any user of the host, and any web page
in a browser on it, can reach a port of the host. So data are given only to requests with a token, which the command
prints as part of the address to open. The token stands behind the ``#``, which browsers send to no server; the page
sends it in the header ``Authorization``, which no other web page can set.
"""

import hmac
import ipaddress

from octavo.cli.own_host import Address
from octavo.protocol.errors import InvalidArgumentError

TOKEN_CHARACTERS_MIN = 16

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""Of every answer. The browser runs no script and loads nothing that does not come from the console itself, and refuses
to make markup from texts: names and metadata that clients chose are shown, never interpreted."""


def parse_listen(text: str) -> Address:
    """The address in ``HOST:PORT``. Raises :class:`InvalidArgumentError`, also for one beyond this host."""
    host, separator, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidArgumentError(f"--listen {text}: write HOST:PORT, for example 127.0.0.1:3190")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidArgumentError(f"--listen {text}: {host!r} is not an IP address") from None
    if not loopback:
        raise InvalidArgumentError(
            f"--listen {text}: the console speaks plain HTTP, so it listens only on loopback addresses. From another "
            f"host use `ssh -L 3190:127.0.0.1:{port} HOST`, or put a proxy with TLS before it"
        )
    return Address(host, int(port))


def check_token(token: str) -> str:
    """The token, if it is long enough and can stand in a header. Raises :class:`InvalidArgumentError`."""
    if (
        len(token) < TOKEN_CHARACTERS_MIN
        or not token.isascii()
        or not token.replace("-", "").replace("_", "").isalnum()
    ):
        raise InvalidArgumentError(
            f"a token consists of at least {TOKEN_CHARACTERS_MIN} letters, digits, - and _; `openssl rand -hex 24` "
            "makes one"
        )
    return token


def carries_token(authorization: str | None, token: str) -> bool:
    """Whether the header ``Authorization`` has the token. Takes the same time wherever they differ."""
    return hmac.compare_digest((authorization or "").encode(), f"Bearer {token}".encode())
