"""A gateway: a port at which clients of Kafka's protocol use the logs of a cluster.

Any number of gateways serve a cluster, and each leads its share of the logs (rule K9). One whose session in the
metadata store has ended leads nothing any more, and ends.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import field
from typing import Final, Self

from octavo.client.client import Client
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.coordinating.coordinator import Clocks, GroupLimits
from octavo.gateway.coordinating.coordinators import Coordinators
from octavo.gateway.coordinating.lag_watch import LagWatch
from octavo.gateway.counts import Counts
from octavo.gateway.leading.gateways import Gateways
from octavo.gateway.leading.leaders import Leaders
from octavo.gateway.leading.retaining import Retaining
from octavo.gateway.service.administration import AdministrationService
from octavo.gateway.service.authentication import AuthenticationService
from octavo.gateway.service.cluster import ClusterService
from octavo.gateway.service.commits import CommitService
from octavo.gateway.service.epochs import EpochService
from octavo.gateway.service.facts import Facts
from octavo.gateway.service.fetch import FetchService
from octavo.gateway.service.groups import GroupService
from octavo.gateway.service.offsets import OffsetsService
from octavo.gateway.service.produce import ProduceService
from octavo.gateway.service.settings import SettingsService
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.producer_ids import ProducerIds
from octavo.gateway.wire.apis import Api, Request
from octavo.gateway.wire.budget import ByteBudget
from octavo.gateway.wire.connection import Pieces, RequestHandler
from octavo.gateway.wire.fields import MalformedError
from octavo.gateway.wire.server import GatewayServer, TlsListener
from octavo.metadata import MetadataStore
from octavo.metadata.own_tasks import tasks_cancelled
from octavo.metrics.clock import precise_seconds
from octavo.protocol.errors import InternalError, InvalidArgumentError, OctavoError, UnauthorizedError
from octavo.protocol.light_dataclass import dataclass

REQUEST_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of large requests, over all connections."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of answers to consumers, over all connections."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The settings of a gateway, as an operator chooses them."""

    host: str = "127.0.0.1"
    port: int = 9092
    """0: any free one."""
    advertised_host: str | None = None
    """Where clients reach the gateway; None: :attr:`host`."""
    advertised_port: int | None = None
    """At which port; None: the one on which it listens."""

    write_quorum: int = 3
    """Copies of each batch of a topic, unless its creator says otherwise."""
    ack_quorum: int = 2
    partitions: int = 1
    """Of a topic, unless its creator says otherwise."""
    creates_topics: bool = True
    """Whether a topic that a client names is made, if there is none."""
    groups: GroupLimits = field(default_factory=GroupLimits)
    """Bounds of consumer groups."""
    password: bytes = field(default=b"", repr=False)
    """Of the logs of topics, which are private then: other clients of the cluster cannot read them."""

    @property
    def advertised(self) -> str:
        """The host at which clients reach the gateway."""
        return self.advertised_host or self.host


class Service:
    """The answers to all requests. Those that come before :meth:`begin` wait for it."""

    def __init__(
        self,
        store: MetadataStore,
        catalogue: Catalogue,
        leaders: Leaders,
        coordinators: Coordinators,
        *,
        gateways: Gateways,
        facts: Facts,
        producer_ids: ProducerIds,
        answers: ByteBudget,
        counts: Counts,
        clock_ms: Callable[[], int],
    ) -> None:
        async def count_bookies() -> int:
            return len(await store.list_bookies())

        cluster = ClusterService(catalogue, leaders, gateways, facts)
        authentication = AuthenticationService()
        commits = CommitService(coordinators, catalogue, clock_ms)
        groups = GroupService(coordinators, catalogue)
        epochs = EpochService(coordinators, catalogue)
        settings = SettingsService(catalogue)
        administration = AdministrationService(catalogue, leaders, producer_ids, count_bookies)
        self._handlers: dict[Api, Callable[[Request, AsyncExitStack], Awaitable[Pieces | None]]] = {
            Api.PRODUCE: ProduceService(catalogue, leaders, clock_ms).answer,
            Api.FETCH: FetchService(catalogue, leaders, answers).answer,
            Api.API_VERSIONS: cluster.versions,
            Api.SASL_HANDSHAKE: authentication.handshake,
            Api.SASL_AUTHENTICATE: authentication.authenticate,
            Api.METADATA: cluster.metadata,
            Api.LIST_OFFSETS: OffsetsService(catalogue, leaders).list,
            Api.CREATE_TOPICS: administration.create_topics,
            Api.DELETE_TOPICS: administration.delete_topics,
            Api.CREATE_PARTITIONS: administration.create_partitions,
            Api.DELETE_RECORDS: administration.delete_records,
            Api.DESCRIBE_CONFIGS: settings.describe,
            Api.ALTER_CONFIGS: settings.alter,
            Api.INCREMENTAL_ALTER_CONFIGS: settings.alter_some,
            Api.INIT_PRODUCER_ID: administration.init_producer_id,
            Api.OFFSET_COMMIT: commits.commit,
            Api.OFFSET_FETCH: commits.fetch,
            Api.OFFSET_DELETE: commits.delete,
            Api.FIND_COORDINATOR: groups.find_coordinator,
            Api.JOIN_GROUP: groups.join,
            Api.SYNC_GROUP: groups.sync,
            Api.HEARTBEAT: groups.heartbeat,
            Api.LEAVE_GROUP: groups.leave,
            Api.CONSUMER_GROUP_HEARTBEAT: epochs.heartbeat,
            Api.CONSUMER_GROUP_DESCRIBE: epochs.describe,
            Api.DESCRIBE_GROUPS: groups.describe,
            Api.LIST_GROUPS: groups.list,
            Api.DELETE_GROUPS: groups.delete,
        }
        self._counts = counts
        self._begun = asyncio.Event()

    def begin(self) -> None:
        """Answer from now on."""
        self._begun.set()

    async def answer(self, request: Request, held: AsyncExitStack) -> Pieces | None:
        """The answer behind its header; None where there is none."""
        await self._begun.wait()
        begun, received = precise_seconds(), len(request.body)
        try:
            pieces = await self._handlers[request.api](request, held)
        except MalformedError:
            self._counts.malformed(request.api, received=received)
            raise
        sent = sum(map(len, pieces or ()))
        seconds = precise_seconds() - begun
        self._counts.answered(request.api, request.outcome, seconds, received=received, sent=sent)
        return pieces


class Gateway:
    """See the module. Made by :meth:`start`."""

    def __init__(
        self,
        server: GatewayServer,
        catalogue: Catalogue,
        leaders: Leaders,
        coordinators: Coordinators,
        gateways: Gateways,
        *,
        retaining: Retaining,
        lag_watch: LagWatch,
        store: MetadataStore,
        budgets: Mapping[str, ByteBudget],
        counts: Counts,
        started_at_ms: int,
        port: int,
    ) -> None:
        self.server = server
        """The port for clients."""
        self.store = store
        """The metadata store of the cluster."""
        self.budgets = budgets
        """The memory of requests, and of answers."""
        self.counts = counts
        """Of the requests that were answered."""
        self.started_at_ms = started_at_ms
        """When the gateway began to serve."""
        self.catalogue = catalogue
        """The topics."""
        self.leaders = leaders
        """Of partitions."""
        self.coordinators = coordinators
        """Of consumer groups."""
        self.gateways = gateways
        """This one, and the others of the cluster."""
        self.retaining = retaining
        """Applies the retention of topics."""
        self.lag_watch = lag_watch
        """Looks at the lag of consumer groups."""
        self.port = port
        """The port on which it listens."""
        self.reload_files: Callable[[], object] = lambda: None
        """Reads the files of TLS again, and opens the audit log again, where there are any."""
        loop = asyncio.get_running_loop()
        self._following = [
            loop.create_task(catalogue.follow()),
            loop.create_task(gateways.follow(self._give_up_others)),
            loop.create_task(coordinators.run()),
            loop.create_task(retaining.run()),
            loop.create_task(lag_watch.run()),
        ]

    def _give_up_others(self) -> None:
        self.leaders.give_up_others()
        self.coordinators.give_up_others()

    @classmethod
    async def start(
        cls,
        client: Client,
        store: MetadataStore,
        settings: GatewaySettings,
        *,
        name: str,
        clock_ms: Callable[[], int],
        rng: random.Random,
        steady_ms: Callable[[], int] | None = None,
        access: GatewayAccess | None = None,
        tls: TlsListener | None = None,
    ) -> Self:
        """Serve the clients of a cluster, beside its other gateways.

        Client and store stay the caller's; they are closed after the gateway. The store is that of the client: the
        locks of the logs that the gateway leads, and its own, are of one session. ``clock_ms`` is the time of day.
        ``steady_ms`` is the clock by which members' sessions end; None: that of the event loop. ``access``: who the
        clients are; None: every client may do everything. It knows the principals already. ``tls`` None: the port does
        not speak TLS.

        Raises:
            InvalidArgumentError: Topics are private, and the password is not theirs.
            OSError: The address cannot be used.
            OctavoError: The metadata store or the bookies do not answer.
        """
        cluster_id = await store.cluster_id()
        steady_ms = steady_ms or _loop_clock()
        async with AsyncExitStack() as undo:
            gateways = await Gateways.enter(store, name)
            undo.push_async_callback(gateways.close)
            producer_ids = ProducerIds(store)
            leaders = Leaders(
                client,
                store,
                name=name,
                clock_ms=clock_ms,
                gateways=gateways,
                highest_ids_stop=producer_ids.highest_stop,
                password=settings.password,
            )
            undo.push_async_callback(leaders.close)
            catalogue = Catalogue(
                client,
                store,
                rng,
                name=name,
                write_quorum=settings.write_quorum,
                ack_quorum=settings.ack_quorum,
                partitions=settings.partitions,
                before_deletion=leaders.delete,
                on_gone=leaders.drop,
                password=settings.password,
            )
            await catalogue.load()
            await _check_password(client, catalogue)
            coordinators = Coordinators(
                client,
                catalogue,
                Clocks(clock_ms, steady_ms),
                name=name,
                gateways=gateways,
                rng=rng,
                limits=settings.groups,
            )
            undo.push_async_callback(coordinators.close)
            requests, answers = ByteBudget(REQUEST_BYTES_MAX), ByteBudget(ANSWER_BYTES_MAX)
            counts = Counts()
            service = Service(
                store,
                catalogue,
                leaders,
                coordinators,
                gateways=gateways,
                facts=Facts(cluster_id, settings.creates_topics),
                producer_ids=producer_ids,
                answers=answers,
                counts=counts,
                clock_ms=clock_ms,
            )
            server = GatewayServer(RequestHandler(service.answer, access or GatewayAccess()), requests, tls=tls)
            undo.push_async_callback(server.close)
            port = await server.start(settings.host, settings.port)
            await gateways.take_part(settings.advertised, settings.advertised_port or port)
            service.begin()
            undo.pop_all()
        return cls(
            server,
            catalogue,
            leaders,
            coordinators,
            gateways,
            retaining=Retaining(catalogue, leaders, gateways),
            lag_watch=LagWatch(client, store, catalogue, leaders, coordinators, steady_ms=steady_ms),
            store=store,
            budgets={"requests": requests, "answers": answers},
            counts=counts,
            started_at_ms=clock_ms(),
            port=port,
        )

    @property
    def serves(self) -> bool:
        """Whether the gateway may lead what falls to it: its lease lives, and it takes part."""
        return self.gateways.is_current and self.gateways.node_id in self.gateways.present

    async def wait_lost(self) -> None:
        """Return once other gateways may lead what this one leads.

        Raises:
            OctavoError: A task of the gateway's own has ended. Without it the gateway learns of no topics or gateways
                any more, or members of groups wait for ever; so it is to end, and begin again.
        """
        lost = asyncio.get_running_loop().create_task(self.gateways.wait_lost())
        try:
            own = [*self._following, *self.gateways.watching]
            done, _ = await asyncio.wait([lost, *own], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {lost}:
                raise _reason_of(task)
        finally:
            lost.cancel()

    async def close(self) -> None:
        """Give all partitions and groups to the other gateways, serving meanwhile, then end all connections."""
        await self.gateways.leave()
        await self.coordinators.close()
        await self.leaders.close()
        for task in self._following:
            task.cancel()
        await asyncio.wait(self._following)
        await self.server.close()
        await self.gateways.close()


def _reason_of(ended: asyncio.Task[None]) -> OctavoError:
    """The reason why a task has ended that does not end by itself."""
    if ended.cancelled():
        return tasks_cancelled("the gateway")
    error = ended.exception()
    if isinstance(error, OctavoError):
        return error
    defect = InternalError(f"the gateway has a defect: {error!r}")
    defect.__cause__ = error
    return defect


async def _check_password(client: Client, catalogue: Catalogue) -> None:
    """Raise :class:`InvalidArgumentError` unless the password is that of the private topics."""
    topic = next((one for one in catalogue.all() if one.is_private), None)
    if topic is not None:
        try:
            await (await client.open_log(topic.log_name(0), password=catalogue.password)).close()
        except UnauthorizedError as error:
            text = f"topic {topic.name} is private, and the password of this gateway is not that of its logs"
            raise InvalidArgumentError(f"{text}: give all gateways the same one (--password-file)") from error


def _loop_clock() -> Callable[[], int]:
    loop = asyncio.get_running_loop()
    return lambda: int(loop.time() * 1000)
