"""Where bookies are, and where bookies were that have gone (rule M6)."""

from octavo.client.choose.locations import Location, Locations, has_own_host, location_of
from octavo.metadata import BookieRegistration, BookieState
from octavo.protocol.ids import BookieId


def bookie(name: str, host: str | None, rack: str = "/r") -> BookieRegistration:
    return BookieRegistration(
        bookie_id=BookieId(name), address="h:1", state=BookieState.WRITABLE, version="1", boot_id="b", rack=rack,
        host_id=host,
    )  # fmt: skip


def hosts(known: Locations) -> dict[str, str]:
    return {name: location.host for name, location in known.known.items()}


def test_bookies_that_register_no_host_are_on_hosts_of_their_own() -> None:
    one, other = location_of(bookie("a", None)), location_of(bookie("b", None))
    assert one.host != other.host
    assert has_own_host(one)
    assert location_of(bookie("a", "a")) == Location("/r", "a") != one
    assert not has_own_host(location_of(bookie("a", "a")))


def test_location_of_a_bookie_that_has_gone_is_remembered_and_that_of_one_that_moved_is_not() -> None:
    known = Locations()
    known.note([bookie("a", "x"), bookie("b", "y", "/s")])
    known.note([bookie("a", "z")])
    assert known.known == {"a": ("/r", "z"), "b": ("/s", "y")}


def test_bookie_that_did_not_come_back_moves_along_with_those_of_its_host_that_did() -> None:
    """The id of the host is that of its start: the host has restarted, and one of its bookies has failed."""
    known = Locations()
    known.note([bookie("a", "boot-1"), bookie("b", "boot-1"), bookie("c", "boot-5")])
    known.note([bookie("c", "boot-5")])
    assert hosts(known) == {"a": "boot-1", "b": "boot-1", "c": "boot-5"}
    known.note([bookie("b", "boot-2"), bookie("c", "boot-5")])
    assert hosts(known) == {"a": "boot-2", "b": "boot-2", "c": "boot-5"}
    known.note([bookie("b", "boot-3")])
    assert hosts(known) == {"a": "boot-3", "b": "boot-3", "c": "boot-5"}


def test_bookie_that_moves_to_another_host_takes_none_of_its_old_host_along_while_one_is_there() -> None:
    known = Locations()
    known.note([bookie("a", "x"), bookie("b", "x"), bookie("gone", "x")])
    known.note([bookie("a", "y"), bookie("b", "x")])
    assert hosts(known) == {"a": "y", "b": "x", "gone": "x"}
