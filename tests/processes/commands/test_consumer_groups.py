"""Consumer groups of clients that others have written, at a gateway; members and gateways are killed (rule K10)."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands.gateways import GROUPS, Member, gateway, run_client
from support.commands.processes import Up, free_neighbours, octavo, wait_until

CLIENTS = ["aiokafka", "kafka-python", "confluent-kafka"]
PARTITIONS = 4
COUNT = 200


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--kafka", 0) as running:
        yield running.wait_ready()


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_a_topic_and_one_takes_over_from_one_that_was_killed(up: Up, client: str) -> None:
    topic = group = f"work-{client}"
    run_client(GROUPS, "topic", up.kafka, topic, PARTITIONS)
    with Member(client, up.kafka, group, topic) as killed, Member(client, up.kafka, group, topic) as left:
        wait_until(lambda: len(killed.assigned) == len(left.assigned) == PARTITIONS // 2, "both have partitions")
        assert sorted(killed.assigned + left.assigned) == list(range(PARTITIONS))
        run_client(GROUPS, "produce", up.kafka, topic, PARTITIONS, 0, COUNT)
        wait_until(lambda: {*killed.numbers, *left.numbers} == set(range(COUNT)), "all numbers are read")
        assert killed.numbers
        assert left.numbers
        killed.kill()
        run_client(GROUPS, "produce", up.kafka, topic, PARTITIONS, COUNT, 2 * COUNT)
        wait_until(lambda: {*left.numbers} >= set(range(COUNT, 2 * COUNT)), "the one that is left reads all numbers")
        assert left.assigned == list(range(PARTITIONS))
        left.end()
    (found,) = run_client(GROUPS, "committed", up.kafka, group, topic, PARTITIONS)
    assert found == {str(partition): 2 * COUNT // PARTITIONS for partition in range(PARTITIONS)}


def test_a_group_is_shown_reset_and_deleted(up: Up) -> None:
    metadata = ("--metadata", up.uri)

    def group(*arguments: object) -> list[Any]:
        done = octavo("group", *arguments, "--json", *metadata)
        assert done.status == 0, done
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def lags() -> list[int]:
        return [one["lag"] for one in group("show", "readers")[0]["offsets"]]

    run_client(GROUPS, "topic", up.kafka, "read", PARTITIONS)
    run_client(GROUPS, "produce", up.kafka, "read", PARTITIONS, 0, COUNT)
    octavo("group", "show", "readers", *metadata).failed_with_one_line(1, "there is no group 'readers'")
    with Member("confluent-kafka", up.kafka, "readers", "read") as member:
        wait_until(lambda: member.has_read_and_committed(COUNT), "all is read and committed")
        (shown,) = group("show", "readers")
        assert (shown["state"], [one["partitions"] for one in shown["members"]]) == (
            "Stable", [[["read", partition] for partition in range(PARTITIONS)]]
        )  # fmt: skip
        assert lags() == [0] * PARTITIONS
        octavo("group", "reset", "readers", "--to", "end", *metadata).failed_with_one_line(1, "has 1 members")
        octavo("group", "delete", "readers", "--yes", *metadata).failed_with_one_line(1, "has 1 members")
        member.end()
    listed = {one["group"]: one for one in group("list")}
    assert listed["readers"] == {
        "group": "readers", "protocol": "classic", "state": "Empty", "members": 0, "lag": 0
    }  # fmt: skip
    group("reset", "readers", "--to", "beginning")
    assert lags() == [COUNT // PARTITIONS] * PARTITIONS
    group("reset", "readers", "--to", "5", "--topic", "read", "--partition", 1)
    assert lags() == [50, 45, 50, 50]
    group("reset", "readers", "--to", "2100-01-01T00:00:00+00:00")
    assert lags() == [0] * PARTITIONS, "no record has this time: the end"
    group("reset", "readers", "--to", "2020-01-01T00:00:00+00:00", "--topic", "read")
    assert lags() == [50] * PARTITIONS
    (reset,) = group("reset", "readers", "--to", "1000000")
    assert [one["offset"] for one in reset] == [50] * PARTITIONS, "an offset beyond the end becomes the end"
    assert lags() == [0] * PARTITIONS
    plain = octavo("group", "show", "readers", *metadata)
    assert plain.status == 0
    assert b"group readers, Empty, 0 members" in plain.stdout
    octavo("group", "reset", "readers", "--to", "0", "--partition", 1, *metadata).failed_with_one_line(
        2, "needs --topic"
    )
    octavo("group", "reset", "readers", "--to", "0", "--topic", "none", *metadata).failed_with_one_line(
        1, "no topic 'none'"
    )
    octavo("group", "delete", "readers", *metadata).failed_with_one_line(1, "loses its offsets; give --yes to confirm")
    assert group("delete", "readers", "--yes") == [{"deleted": "readers"}]
    octavo("group", "show", "readers", *metadata).failed_with_one_line(1, "there is no group 'readers'")


def test_without_a_gateway_nothing_is_known_of_groups(tmp_path: Path) -> None:
    with Up(tmp_path / "data").wait_ready() as up:
        octavo("group", "list", "--metadata", up.uri).failed_with_one_line(1, "no gateway runs")


def test_no_commit_that_was_answered_goes_back_when_the_gateway_is_killed(tmp_path: Path) -> None:
    """A member of each client goes on by itself at the next gateway, and reads everything."""
    port = free_neighbours(1)
    address = f"127.0.0.1:{port}"
    with Up(tmp_path / "data").wait_ready() as up, ExitStack() as stack:
        serving = ExitStack()
        stack.callback(serving.close)
        first = serving.enter_context(gateway(up.uri, port))
        run_client(GROUPS, "topic", address, "work", PARTITIONS)
        members = {client: stack.enter_context(Member(client, address, client, "work")) for client in CLIENTS}
        run_client(GROUPS, "produce", address, "work", PARTITIONS, 0, COUNT)
        wait_until(
            lambda: all(len(one.committed) == PARTITIONS for one in members.values()),
            lambda: f"the gateway: {first.poll()}; {members}",
        )
        serving.close()  # kills it
        answered = {client: dict(one.committed) for client, one in members.items()}
        serving.enter_context(gateway(up.uri, port))
        for client, offsets in answered.items():
            (found,) = run_client(GROUPS, "committed", address, client, "work", PARTITIONS)
            assert all(found[partition] >= offset for partition, offset in offsets.items()), (found, offsets)
        run_client(GROUPS, "produce", address, "work", PARTITIONS, COUNT, 2 * COUNT)
        for member in members.values():
            wait_until(partial(member.has_read_and_committed, 2 * COUNT), partial(repr, member))
            member.end()
