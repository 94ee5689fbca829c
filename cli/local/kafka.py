"""The gateway of ``octavo up --kafka``: runs in the process of ``octavo up``, as long as the cluster does."""

import asyncio
from collections.abc import Callable
from typing import Final

from octavo.cli.session import CommandError, print_error

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

    settings = GatewaySettings(host=HOST, port=port, write_quorum=min(3, bookies), ack_quorum=min(2, bookies))
    was_ready = False
    while True:
        try:
            async with serving(uri, settings) as gateway:
                was_ready = True
                on_ready(f"{HOST}:{gateway.port}")
                await gateway.wait_lost()
            print_error("the gateway's session in the metadata store has ended; starting it again")
        except (OSError, OctavoError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if not was_ready:
                raise CommandError(f"the gateway cannot listen on {HOST}:{port}: {reason}") from error
            print_error(f"the gateway has ended: {reason}; starting it again")
        await asyncio.sleep(_PAUSE_SECONDS)
