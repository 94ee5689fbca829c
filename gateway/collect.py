"""The metrics of a gateway, taken from the objects that count them: every value is a number that is at hand."""

from collections import Counter
from collections.abc import Iterator

from octavo.gateway.gateway import Gateway
from octavo.gateway.groups.epoch_group import EPOCH_STATES
from octavo.gateway.groups.group import GroupState
from octavo.metrics import table
from octavo.metrics.exposition import Sample


def samples(gateway: Gateway, *, software: str) -> Iterator[Sample]:
    """Every metric of the gateway, but for those of its process. ``software``: its version."""
    yield from _requests(gateway)
    yield from _partitions(gateway)
    yield from _groups(gateway)
    yield Sample(table.GATEWAY_SERVES, int(gateway.serves))
    yield Sample(table.GATEWAY_METADATA_UP, int(gateway.store.answers))
    for op, seconds in list(gateway.store.seconds.items()):
        yield Sample(table.GATEWAY_METADATA_SECONDS, seconds, (op,))
    yield Sample(table.GATEWAY_START_TIME_SECONDS, gateway.started_at_ms / 1000)
    yield Sample(table.GATEWAY_BUILD_INFO, 1, (software, str(gateway.gateways.node_id)))


def _requests(gateway: Gateway) -> Iterator[Sample]:
    counts, server = gateway.counts, gateway.server
    for (api, code), count in list(counts.requests.items()):
        yield Sample(table.GATEWAY_REQUESTS, count, (api.name, code))
    for api, histogram in list(counts.seconds.items()):
        yield Sample(table.GATEWAY_REQUEST_SECONDS, histogram, (api.name,))
    yield Sample(table.GATEWAY_RECEIVED_BYTES, counts.received_bytes)
    yield Sample(table.GATEWAY_SENT_BYTES, counts.sent_bytes)
    yield Sample(table.GATEWAY_BATCHES, counts.batches)
    yield Sample(table.GATEWAY_RECORDS, counts.records)
    yield Sample(table.GATEWAY_BATCH_BYTES, counts.batch_bytes)
    yield Sample(table.GATEWAY_FETCHED_BYTES, counts.fetched_bytes)
    yield Sample(table.GATEWAY_CONNECTIONS, server.connections)
    yield Sample(table.GATEWAY_CONNECTIONS_REFUSED, server.refused)
    for name, budget in gateway.budgets.items():
        yield Sample(table.GATEWAY_HELD_BYTES, budget.held, (name,))
        yield Sample(table.GATEWAY_BUDGET_WAITS, budget.waits, (name,))


def _partitions(gateway: Gateway) -> Iterator[Sample]:
    leaders = gateway.leaders
    yield Sample(table.GATEWAY_GATEWAYS, len(gateway.gateways.present))
    yield Sample(table.GATEWAY_TOPICS, len(gateway.catalogue.all()))
    yield Sample(table.GATEWAY_PARTITIONS, len(leaders), ("leading",))
    yield Sample(table.GATEWAY_PARTITIONS, leaders.opening, ("opening",))
    appends = [led.appends for led in leaders.led]
    yield Sample(table.GATEWAY_BATCHES_UNDER_WAY, sum(len(one.under_way) for one in appends))
    yield Sample(table.GATEWAY_PRODUCERS, sum(len(one.producers) for one in appends))
    yield Sample(table.GATEWAY_LEADS_LOST, leaders.lost, ("partition",))
    yield Sample(table.GATEWAY_LEADS_LOST, gateway.coordinators.lost, ("coordinator",))


def _groups(gateway: Gateway) -> Iterator[Sample]:
    running = gateway.coordinators.running
    groups = [group for coordinator in running for group in coordinator.groups.values()]
    epochs = [group for coordinator in running for group in coordinator.epoch_groups.values()]
    of_epochs = {group.group_id for group in epochs}
    states = Counter(group.state.shown for group in groups if group.group_id not in of_epochs)
    states.update(group.state for group in epochs)
    yield Sample(table.GATEWAY_COORDINATORS, len(running))
    for state in dict.fromkeys((*(one.shown for one in GroupState), *EPOCH_STATES)):
        yield Sample(table.GATEWAY_GROUPS, states[state], (state,))
    yield Sample(
        table.GATEWAY_MEMBERS, sum(len(one.members) for one in groups) + sum(len(one.members) for one in epochs)
    )
    watch = gateway.lag_watch
    for lag in watch.lags:
        yield Sample(table.GATEWAY_GROUP_LAG, lag.records, (lag.group_id, lag.topic, str(lag.partition)))
    for group_id, seconds in watch.behind_seconds.items():
        yield Sample(table.GATEWAY_GROUP_BEHIND_SECONDS, seconds, (group_id,))
    yield Sample(table.GATEWAY_GROUP_OFFSETS_LEFT_OUT, watch.left_out)
