"""The gateway of ``octavo up --kafka``: runs in the process of ``octavo up``, as long as the cluster does.

Its security is that of the bookies, which are the user's as well: what the environment does not say of the gateway
(``OCTAVO_GATEWAY_TLS``), it takes from what it says of the bookies (``OCTAVO_BOOKIE_TLS``). To bookies it connects as
clients of this environment do, and where that names no certificate, with the bookies' own.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from octavo.cli.session import CommandError, print_error, read_password

if TYPE_CHECKING:
    from octavo.gateway.security_settings import SecuritySettings
    from octavo.security.tls_options import Tls

NAME: Final = "the gateway"
HOST: Final = "127.0.0.1"

_PAUSE_SECONDS: Final = 1.0
"""Before a gateway that ended is started again."""


async def keep_gateway(uri: str, port: int, bookies: int, on_ready: Callable[[str], object]) -> None:
    """Run a gateway, and start it again when its session has ended. ``on_ready`` is called with its address each time.

    Raises:
        CommandError: It could not start the first time.
    """
    from octavo.gateway.gateway import GatewaySettings  # noqa: PLC0415 - `octavo up` need not have a gateway
    from octavo.gateway.serving import serving  # noqa: PLC0415
    from octavo.protocol.errors import OctavoError  # noqa: PLC0415

    security, tls = security_of(os.environ), tls_to_bookies(os.environ)
    settings = GatewaySettings(
        host=HOST, port=port, write_quorum=min(3, bookies), ack_quorum=min(2, bookies), password=read_password(None)
    )
    was_ready = False
    while True:
        try:
            async with serving(uri, settings, security, tls=tls) as gateway:
                was_ready = True
                on_ready(f"{HOST}:{gateway.port}")
                await gateway.wait_lost()
            print_error("the gateway's session in the metadata store has ended; starting it again")
        except (OSError, OctavoError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if not was_ready:
                raise CommandError(f"the gateway cannot serve on {HOST}:{port}: {reason}") from error
            print_error(f"the gateway has ended: {reason}; starting it again")
        await asyncio.sleep(_PAUSE_SECONDS)


def security_of(environment: Mapping[str, str]) -> "SecuritySettings":
    """The settings of the gateway that say who may use it, as the environment has them."""
    from octavo.gateway.security_settings import SecuritySettings  # noqa: PLC0415

    def said(name: str) -> str | None:
        return environment.get(f"OCTAVO_GATEWAY_{name}") or environment.get(f"OCTAVO_BOOKIE_{name}") or None

    def path(text: str | None) -> Path | None:
        return None if text is None else Path(text)

    return SecuritySettings(
        tls=said("TLS") or "off",
        tls_certificate=path(said("TLS_CERTIFICATE")),
        tls_key=path(said("TLS_KEY")),
        tls_ca=path(said("TLS_CA")),
        tls_minimum=said("TLS_MINIMUM") or "1.3",
        auth=said("AUTH") or "auto",
        audit_file=path(environment.get("OCTAVO_GATEWAY_AUDIT_FILE") or None),
    )


def tls_to_bookies(environment: Mapping[str, str]) -> "Tls | None":
    """How the gateway connects to bookies, where the environment says nothing of clients; None: as it says."""
    from octavo.security.tls_options import Tls  # noqa: PLC0415

    if Tls.from_environment(environment) is not None or environment.get("OCTAVO_BOOKIE_TLS", "off") == "off":
        return None
    names = {part: environment.get(f"OCTAVO_BOOKIE_TLS_{part.upper()}") for part in ("ca", "certificate", "key")}
    return Tls(ca=names["ca"], certificate=names["certificate"], key=names["key"])
