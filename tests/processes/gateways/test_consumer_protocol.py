"""The consumer protocol, KIP-848, with clients that others have written: members and gateways are killed (rule K16)."""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from support.commands.gateways import GROUPS, Member, gateway, run_client
from support.commands.processes import Up, free_neighbours, octavo, wait_until

CLIENT = "consumer-protocol"
PARTITIONS = 6
COUNT = 240


def test_members_share_a_topic_and_tools_show_the_group(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--kafka", 0) as running:
        up = running.wait_ready()

        def group(*arguments: object) -> list[Any]:
            done = octavo("group", *arguments, "--json", "--metadata", up.uri)
            assert done.status == 0, done
            return [json.loads(line) for line in done.stdout.decode().splitlines()]

        run_client(GROUPS, "topic", up.kafka, "work", PARTITIONS)
        with Member(CLIENT, up.kafka, "team", "work") as first, Member(CLIENT, up.kafka, "team", "work") as second:
            wait_until(
                lambda: len(first.assigned) == len(second.assigned) == PARTITIONS // 2, lambda: f"{first}{second}"
            )
            assert sorted(first.assigned + second.assigned) == list(range(PARTITIONS))
            run_client(GROUPS, "produce", up.kafka, "work", PARTITIONS, 0, COUNT)
            wait_until(lambda: {*first.numbers, *second.numbers} == set(range(COUNT)), lambda: f"{first}{second}")
            (shown,) = group("show", "team")
            assert (shown["protocol"], shown["assignor"], len(shown["members"])) == ("consumer", "uniform", 2)
            partitions = sorted(one[1] for member in shown["members"] for one in member["partitions"])
            assert partitions == list(range(PARTITIONS))
            assert [(one["group"], one["protocol"]) for one in group("list")] == [("team", "consumer")]
            plain = octavo("group", "show", "team", "--metadata", up.uri)
            assert b"2 members, protocol consumer" in plain.stdout
            first.end()
            wait_until(lambda: second.assigned == list(range(PARTITIONS)), lambda: f"{second}")
            second.end()
        listed = [(one["group"], one["protocol"], one["state"]) for one in group("list")]
        assert listed == [("team", "consumer", "Empty")]


def have_read(members: list[Member], first: int, stop: int) -> bool:
    """Whether some member has each of these numbers."""
    return {number for one in members for number in one.numbers} >= set(range(first, stop))


def test_members_and_gateways_are_killed_and_no_commit_goes_back(tmp_path: Path) -> None:
    """Of three members one is killed, then the gateway that coordinates. The two that are left go on by themselves."""
    ports = [free_neighbours(2) + number for number in range(2)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    both = ",".join(addresses)
    with Up(tmp_path / "data").wait_ready() as up, ExitStack() as stack:
        serving = [stack.enter_context(ExitStack()) for _ in ports]
        for place, port in zip(serving, ports, strict=True):
            place.enter_context(gateway(up.uri, port))
        run_client(GROUPS, "topic", both, "work", PARTITIONS)
        killed, *left = members = [stack.enter_context(Member(CLIENT, both, "team", "work")) for _ in range(3)]

        def told() -> str:
            return repr(members)

        wait_until(lambda: all(len(one.assigned) == PARTITIONS // 3 for one in members), told)
        run_client(GROUPS, "produce", both, "work", PARTITIONS, 0, COUNT)
        wait_until(lambda: {*killed.numbers, *left[0].numbers, *left[1].numbers} == set(range(COUNT)), told)
        wait_until(lambda: sum(len(one.committed) for one in members) == PARTITIONS, told)
        killed.kill()
        for number, gone in enumerate(serving):
            answered = {partition: offset for one in members for partition, offset in one.committed.items()}
            gone.close()  # kills the gateway
            left_over = addresses[1 - number]
            (found,) = run_client(GROUPS, "committed", left_over, "team", "work", PARTITIONS)
            assert all(found[partition] >= offset for partition, offset in answered.items()), (found, answered)
            first, stop = COUNT * (number + 1), COUNT * (number + 2)
            run_client(GROUPS, "produce", left_over, "work", PARTITIONS, first, stop)
            wait_until(partial(have_read, left, first, stop), told)
            wait_until(lambda: sorted(left[0].assigned + left[1].assigned) == list(range(PARTITIONS)), told)
            gone.enter_context(gateway(up.uri, ports[number]))
        for one in left:
            one.end()
        (found,) = run_client(GROUPS, "committed", both, "team", "work", PARTITIONS)
        assert found == {str(partition): 3 * COUNT // PARTITIONS for partition in range(PARTITIONS)}
