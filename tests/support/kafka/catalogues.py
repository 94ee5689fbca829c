"""The topics of a cluster for tests, as one of several gateways knows them."""

import random

from octavo.gateway.topics.catalogue import Catalogue, CatalogueTimes
from octavo.gateway.topics.document import Topic
from octavo.metadata import MetadataStore
from support.clusters.gateway_cluster import GatewayCluster


async def catalogue_of(
    cluster: GatewayCluster, store: MetadataStore, gone: list[Topic] | None = None, **times: float
) -> Catalogue:
    async def nothing(_topic: Topic) -> None: ...

    gone = [] if gone is None else gone
    rng = random.Random(len(cluster.logs.metadata.handles))
    catalogue = Catalogue(
        await cluster.logs.client(), store, rng, name="this gateway", write_quorum=3, ack_quorum=2, partitions=2,
        before_deletion=nothing, on_gone=gone.append, times=CatalogueTimes(**times),
    )  # fmt: skip
    await catalogue.load()
    return catalogue
