"""The ports of `octavo up`: which bookie takes which, and what is said when some are taken."""

import socket
from pathlib import Path

import pytest
from octavo.cli.local.ports import check_free, choose_ports, read_ports, remember_ports
from octavo.cli.session import CommandError
from octavo.protocol.errors import InvalidArgumentError
from support.commands.processes import free_neighbours

NAMES = ("bookie-1", "bookie-2", "bookie-3")


@pytest.mark.parametrize(
    ("base_port", "remembered", "ports"),
    [
        (None, {}, (3181, 3182, 3183)),
        (4000, {}, (4000, 4001, 4002)),
        (0, {}, (0, 0, 0)),
        (None, {"bookie-1": 4000, "bookie-2": 4001, "bookie-3": 4002}, (4000, 4001, 4002)),
        (None, {"bookie-1": 34567, "bookie-2": 33001}, (34567, 33001, 34568)),
        (None, {"bookie-9": 4000}, (3181, 3182, 3183)),
        (5000, {"bookie-1": 4000}, (5000, 5001, 5002)),
        (0, {"bookie-1": 4000}, (0, 0, 0)),
    ],
)
def test_ports_are_those_of_the_option_or_those_of_before(
    base_port: int | None, remembered: dict[str, int], ports: tuple[int, ...]
) -> None:
    assert choose_ports(NAMES, base_port, remembered) == dict(zip(NAMES, ports, strict=True))


def test_a_further_bookie_takes_no_port_that_another_had() -> None:
    remembered = {"bookie-1": 4001, "bookie-2": 4000}
    assert choose_ports(NAMES, None, remembered) == {"bookie-1": 4001, "bookie-2": 4000, "bookie-3": 4002}


@pytest.mark.parametrize(("base_port", "remembered"), [(65534, {}), (None, {"bookie-1": 65535})])
def test_ports_above_the_highest_are_refused(base_port: int | None, remembered: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="3 bookies would need ports above 65535"):
        choose_ports(NAMES, base_port, remembered)


def test_all_ports_that_are_taken_are_named_with_their_bookies() -> None:
    first = free_neighbours(3)
    ports = dict(zip(NAMES, range(first, first + 3), strict=True))
    check_free(ports)
    with socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", first + 2)):
        with pytest.raises(CommandError) as refused:
            check_free(ports)
        check_free({"bookie-2": first + 1, "bookie-4": 0})
    assert f"ports {first} (bookie-1), {first + 2} (bookie-3) are in use" in str(refused.value)
    assert "--base-port" in str(refused.value)


def test_ports_of_bookies_that_do_not_run_now_are_kept(tmp_path: Path) -> None:
    remember_ports(tmp_path, {"bookie-1": 4000, "bookie-2": 4001, "bookie-3": 4002})
    remember_ports(tmp_path, {"bookie-1": 5000})
    assert read_ports(tmp_path) == {"bookie-1": 5000, "bookie-2": 4001, "bookie-3": 4002}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"bookie-1": "4000"}', '{"bookie-1": 0, "bookie-2": true}'])
def test_a_file_with_something_else_in_it_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports.json").write_text(text, encoding="utf-8")
    assert read_ports(tmp_path) == {}
