"""A gateway as a program runs it: with a client, a metadata store, a clock and chance of its own."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import structlog
from octavo.client.client import Client
from octavo.client.client_name import default_client_name
from octavo.client.options import ClientOptions
from octavo.client.wire.protection import options_with_environment
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.gateway.security_settings import SecuritySettings
from octavo.gateway.wire.server import TlsListener
from octavo.metadata import MetadataStore
from octavo.metadata.connect import open_cluster
from octavo.metadata.updates.principals_watch import PrincipalsWatch
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass
from octavo.security.audit import Audit
from octavo.security.certificates import CertificateKeeper
from octavo.security.contexts import ServerContext
from octavo.security.loopback import is_loopback
from octavo.security.tls_options import Tls

log = structlog.get_logger("octavo.gateway")


@asynccontextmanager
async def serving(
    uri: str, settings: GatewaySettings, security: SecuritySettings | None = None, *, tls: Tls | None = None
) -> AsyncIterator[Gateway]:
    """Serve the clients of the cluster with this metadata store for the time of a block, beside its other gateways.

    The block is to end when ``gateway.wait_lost()`` returns or raises. ``tls``: how the gateway connects to bookies;
    None: as the environment says.

    Raises:
        OSError: The address cannot be used.
        InvalidArgumentError: Settings need one another, or files cannot be used.
        OctavoError: The metadata store or the bookies do not answer.
    """
    security = security or SecuritySettings()
    security.check(settings.host, has_password=bool(settings.password))
    name = f"gateway of {default_client_name()}"
    options = options_with_environment(ClientOptions(tls=tls))
    async with AsyncExitStack() as stack:
        guarded = await _Guarded.begin(security, settings, stack)
        store = await open_cluster(uri, lease_seconds=options.lease_seconds)
        try:
            # The client uses this store, and closes it: the locks of logs and of the gateway are of one session.
            cluster_id = await store.cluster_id()
            client = Client(store, cluster_id=cluster_id, options=options, client_name=default_client_name())
        except BaseException:
            await store.close()
            raise
        await stack.enter_async_context(client)
        await guarded.follow(store, stack)
        gateway = await Gateway.start(
            client, store, settings, name=name, clock_ms=_now_ms, rng=random.Random(), access=guarded.access,
            tls=guarded.listener,
        )  # fmt: skip
        stack.push_async_callback(gateway.close)
        gateway.reload_files = guarded.reload_files
        guarded.access.audit.gateway = f"{settings.advertised}:{settings.advertised_port or gateway.port}"
        yield gateway


@dataclass(frozen=True, slots=True)
class _Guarded:
    """The parts that decide which clients are served."""

    access: GatewayAccess
    listener: TlsListener | None
    keeper: CertificateKeeper | None

    @classmethod
    async def begin(cls, security: SecuritySettings, settings: GatewaySettings, stack: AsyncExitStack) -> "_Guarded":
        """The audit log is written, and the certificate followed, from now on."""
        audit = Audit(security.audit)
        try:
            audit.start()
        except OSError as error:
            raise InvalidArgumentError(f"audit_file {security.audit_file}: {error.strerror or error}") from error
        stack.push_async_callback(audit.stop)
        required = security.authentication_required(settings.host)
        if not required and not is_loopback(settings.host):
            log.warning(
                "gateway is open to all: every host that reaches its port can read and write",
                host=settings.host, remedy='set auth = "required"',
            )  # fmt: skip
        listener = keeper = None
        if security.tls != "off":
            keeper = CertificateKeeper(security.files, reload_seconds=security.tls_reload_seconds)

            def changed(context: ServerContext) -> None:
                audit.note("certificate_changed", expires_at=int(context.expires_at))

            keeper.changed = changed
            keeper.start()
            stack.push_async_callback(keeper.stop)
            listener = TlsListener(partial(_current, keeper), security.tls == "optional", security.arrivals)
        return cls(GatewayAccess(audit, required=required), listener, keeper)

    def reload_files(self) -> None:
        """Open the audit log again, and read the files of TLS again. Existing connections stay open."""
        self.access.audit.reopen()
        if self.keeper is not None:
            self.keeper.reload()

    async def follow(self, store: MetadataStore, stack: AsyncExitStack) -> None:
        """Before the port opens: no client is served by principals that are not known yet."""
        if self.access.required:
            watch = PrincipalsWatch(store, self.access)
            await watch.start()
            stack.push_async_callback(watch.stop)


def _current(keeper: CertificateKeeper) -> ServerContext:
    return keeper.current


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
