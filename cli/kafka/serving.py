"""The process of ``octavo gateway``: what it tells its supervisor, and shows of itself, while it serves."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.admin.server import AdminServer
from octavo.bookie.log_output import use_log_outputs
from octavo.bookie.notify import notify_supervisor
from octavo.bookie.process_health import Pulse
from octavo.cli.kafka.observing import Observed
from octavo.cli.output import print_json, print_line
from octavo.cli.own_host import Address
from octavo.cli.session import CommandError, Session
from octavo.gateway.gateway import GatewaySettings
from octavo.gateway.security_settings import SecuritySettings
from octavo.gateway.serving import serving


async def serve(
    session: Session, settings: GatewaySettings, security: SecuritySettings, observing: Address | None
) -> None:
    """Serve until the gateway is lost, or cancelled.

    ``observing``: where health and metrics are answered over HTTP; None: nowhere.

    Raises:
        CommandError: An address cannot be used, or the gateway's session has ended.
        OctavoError: The metadata store or the bookies do not answer.
    """
    use_log_outputs()
    process = ProcessStatistics()
    pulse = Pulse(process, os.environ, time.perf_counter)
    async with AsyncExitStack() as running:
        pulse.start()
        running.callback(pulse.stop)
        observed = None
        if observing is not None:
            observed = Observed(observing, process)
            server = AdminServer(observed.answer)
            running.push_async_callback(server.stop)
            with _naming(f"{observing.host}:{observing.port}"):
                await server.listen_on(observing.host, observing.port)
        with _naming(f"{settings.host}:{settings.port}"):
            gateway = await running.enter_async_context(serving(session.metadata_uri, settings, security))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload_files)
        if observed is not None:
            observed.gateway = gateway
        address = f"{settings.host}:{gateway.port}"
        if session.as_json:
            print_json({"event": "ready", "address": address})
        else:
            print_line(f"Kafka clients connect to {address}")
        notify_supervisor("READY=1", os.environ)
        pulse.ready()
        running.callback(notify_supervisor, "STOPPING=1", os.environ)
        await gateway.wait_lost()
    raise CommandError("the gateway's session in the metadata store has ended: other gateways may lead its partitions")


@contextmanager
def _naming(address: str) -> Iterator[None]:
    """Name the address that cannot be used."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot listen on {address}: {error.strerror or error}") from error
