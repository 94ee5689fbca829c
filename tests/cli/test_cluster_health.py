"""What `octavo cluster status` finds wrong, as a table; what `octavo doctor` says of a clock, and of hosts."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo.cli.bookies import as_json, as_table
from octavo.cli.cluster.health import Severity, examine
from octavo.cli.cluster.hosts import remarks
from octavo.cli.doctor import certificate_finding, clock_finding, clocks_of_store, hosts_finding, reachable
from octavo.client.bookie_status import BookieStatus
from octavo.metadata import BookieState
from octavo.metadata.clocks.proven_time import BootTime, Moment, ProvenTime
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.updates.garbage_hold import GarbageHold
from octavo.protocol.errors import OctavoError, OctavoTimeoutError, UnauthorizedError
from octavo.protocol.ids import BookieId
from octavo.repair.base.waits import DOCUMENT, Waits
from support.metadata.interposed_store import InterposedStore

GOOD: dict[str, Any] = {"disk_space_low": False, "in_doubt": False, "entries_damaged": 0}


def bookie(name: str, state: BookieState = BookieState.WRITABLE, version: str = "0.1.0", **facts: Any) -> BookieStatus:
    if state is BookieState.UNAVAILABLE:
        return BookieStatus(BookieId(name), f"{name}:3181", state, None)
    return BookieStatus(BookieId(name), f"{name}:3181", state, version, "/r", GOOD | facts)


SHORT: dict[str, Any] = {"disk_short_free_bytes": 500_000_000, "disk_short_wanted_bytes": 2_000_000_000}
NOW, DAY = 1_800_000_000.0, 86_400.0
THREE = [bookie("a"), bookie("b"), bookie("c")]


def without_facts(error: OctavoError | None = None) -> BookieStatus:
    return BookieStatus(BookieId("d"), "d:3181", BookieState.WRITABLE, "0.1.0", "/r", None, error)


PROBLEM, WARNING = Severity.PROBLEM, Severity.WARNING


def test_a_healthy_cluster_has_no_findings() -> None:
    assert examine(THREE, None, now=NOW) == []


@pytest.mark.parametrize(
    ("bookies", "severity", "text"),
    [
        ([], PROBLEM, "has no bookie"),
        ([*THREE, bookie("d", BookieState.UNAVAILABLE)], PROBLEM, "bookie d at d:3181 is not registered"),
        ([*THREE, without_facts()], PROBLEM, "does not answer: check"),
        ([*THREE, without_facts(OctavoTimeoutError("late"))], PROBLEM, "does not answer (late): check"),
        (
            [*THREE, without_facts(UnauthorizedError("no role"))],
            PROBLEM,
            "does not show its state to this client: no r",
        ),
        ([*THREE, bookie("d", BookieState.READ_ONLY)], WARNING, "read-only: its log says why"),
        (
            [*THREE, bookie("d", BookieState.READ_ONLY, **SHORT)],
            WARNING,
            "read-only: a disk is short of space, 0.5 GB free, 2.0 GB wanted",
        ),
        ([*THREE, bookie("d", in_doubt=True)], WARNING, "in doubt"),
        ([*THREE, bookie("d", entries_damaged=2)], PROBLEM, "2 damaged"),
        ([*THREE, bookie("d", index_damage=1)], PROBLEM, "1 damaged"),
        ([*THREE, bookie("d", disk_space_low=True)], WARNING, "less than disk_warn_bytes of disk space left"),
        ([*THREE, bookie("d", version="0.2.0")], WARNING, "0.1.0, 0.2.0"),
        ([*THREE, bookie("d", certificate_expires_at=NOW + 13.5 * DAY)], WARNING, "expires in 13 days"),
        ([*THREE, bookie("d", certificate_expires_at=NOW - 1)], PROBLEM, "d at d:3181 has expired"),
        (THREE[:2], WARNING, "2 writable bookies"),
        ([bookie(name, BookieState.READ_ONLY) for name in "abc"], PROBLEM, "0 writable bookies"),
    ],
)
def test_each_thing_that_is_wrong_is_found(bookies: list[BookieStatus], severity: Severity, text: str) -> None:
    assert any(found.severity is severity and text in found.text for found in examine(bookies, None, now=NOW))


@pytest.mark.parametrize("expires_at", [0, NOW + 15 * DAY])
def test_a_bookie_without_a_certificate_or_with_one_that_lasts_is_healthy(expires_at: float) -> None:
    assert examine([*THREE, bookie("d", certificate_expires_at=expires_at)], None, now=NOW) == []


@pytest.mark.parametrize(
    ("days", "result", "words"),
    [(14, "ok", "in 14 days"), (13, "warning", "write a new one"), (-1, "failed", "expired")],
)
def test_doctor_tells_how_long_a_certificate_lasts(days: int, result: str, words: str) -> None:
    finding = certificate_finding("certificate of b", days)
    assert finding.result == result
    assert words in finding.detail


def test_problems_come_first_and_a_hold_on_garbage_collection_is_a_warning() -> None:
    hold = GarbageHold("restored", datetime(2026, 1, 1, tzinfo=UTC))
    findings = examine([*THREE, bookie("d", BookieState.UNAVAILABLE)], hold, now=NOW)
    assert [found.severity for found in findings] == [PROBLEM, WARNING]
    assert "restored" in findings[1].text


@pytest.mark.parametrize(
    ("clock", "result", "words"),
    [
        (100.5, "ok", "within"),
        (99.2, "ok", "within"),
        (101.9, "ok", "within"),
        (102.1, "warning", "ahead of"),
        (98.9, "warning", "behind"),
    ],
)
def test_a_clock_is_compared_with_the_time_in_which_it_was_read(clock: float, result: str, words: str) -> None:
    found = clock_finding("b", clock, before=100.0, after=101.0)
    assert (found.result, words in found.detail) == (result, True)


@pytest.mark.parametrize(("ahead_seconds", "result"), [(0, "ok"), (3600, "warning"), (-3600, "warning")])
async def test_doctor_compares_the_clock_of_the_metadata_store(ahead_seconds: int, result: str) -> None:
    async with open_memory_store(MemoryServer()) as real:
        store = InterposedStore(real)

        async def time_ms() -> int:
            return int((time.time() + ahead_seconds) * 1000)

        store.interpose("time_ms", time_ms)
        (found,) = await clocks_of_store(store.face)
        assert (found.check, found.result) == ("clock of the metadata store", result)


async def test_doctor_tells_that_the_clock_of_the_auditor_was_wrong() -> None:
    async with open_memory_store(MemoryServer()) as store:
        right = Waits(ProvenTime(Moment(1000, 1000, BootTime("a", 5))))
        version = await store.create_document(DOCUMENT, right.encode())
        assert len(await clocks_of_store(store)) == 1
        wrong = Waits(ProvenTime(Moment(86_401_000, 1000, BootTime("a", 5))))
        await store.compare_and_set_document(DOCUMENT, wrong.encode(), version)
        _, found = await clocks_of_store(store)
        assert (found.check, found.result) == ("clocks of repair", "warning")
        assert "the clock of the auditor is 86,400 s ahead" in found.detail


async def test_doctor_tells_that_a_bookie_is_registered_at_a_host_that_cannot_be_looked_up() -> None:
    found = await reachable("a", f"{'h' * 64}:3181")
    assert (found.check, found.result) == ("bookie a", "failed")
    assert "is not the name of a host" in found.detail


# --- octavo bookies ---------------------------------------------------------------------------------------------------


def test_the_table_of_bookies_says_why_details_are_missing() -> None:
    headers, rows = as_table(THREE, NOW)
    assert headers[-1] == "certificate"
    assert {len(row) for row in rows} == {len(headers)}
    headers, rows = as_table([*THREE, without_facts(UnauthorizedError("no\nrole"))], NOW)
    assert headers[-1] == "no details because"
    assert [row[-1] for row in rows] == [None, None, None, "no role"]
    assert {len(row) for row in rows} == {len(headers)}


def test_the_table_of_bookies_says_how_much_space_a_bookie_lacks() -> None:
    others = [bookie("a", disk_short_free_bytes=0, disk_short_wanted_bytes=0), without_facts()]
    headers, rows = as_table([bookie("d", BookieState.READ_ONLY, **SHORT), *others], NOW)
    assert headers[-1] == "short of space"
    assert [row[-1] for row in rows] == ["0.5 GB free, 2.0 GB wanted", None, None]
    assert {len(row) for row in rows} == {len(headers)}


def test_bookies_as_json_say_why_details_are_missing() -> None:
    assert as_json(without_facts(UnauthorizedError("no role")))["no_details_because"] == "no role"
    assert as_json(bookie("a", no_details_because="none of its business"))["no_details_because"] is None


# --- hosts -----------------------------------------------------------------------------------------------------------

EACH_ITS_OWN = "every bookie runs on a host of its own"


def on_hosts(layout: str) -> list[BookieStatus]:
    """``on_hosts("x y/s ? -")``: on host x; on y in rack /s; one that registers no host; one that is unavailable."""
    found = []
    for number, word in enumerate(layout.split()):
        host, _, rack = word.partition("/")
        state = BookieState.UNAVAILABLE if host == "-" else BookieState.WRITABLE
        found.append(
            BookieStatus(
                BookieId(f"b{number}"), f"b{number}:1", state, None if host == "-" else "0.1.0",
                None if host == "-" else f"/{rack or 'r'}", host_id=None if host in {"-", "?"} else host,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("layout", "result", "texts"),
    [
        ("", "ok", []),
        ("x", "ok", []),
        ("x y z", "ok", []),
        ("x y", "ok", []),
        ("x y z - -", "ok", []),
        ("x x y y z", "ok", ["5 bookies run on 3 hosts: the copies of an entry go to different hosts"]),
        ("x x x", "warning", ["all 3 bookies run on one host: it holds every copy"]),
        ("x x -", "warning", ["all 2 bookies run on one host"]),
        ("x x y", "warning", ["3 bookies run on 2 hosts: of 3 copies of an entry two or more are on one host"]),
        ("? ? ?", "warning", ["3 bookies of 3 did not say on which host"]),
        ("x y ?", "warning", ["1 bookie of 3 did not say on which host"]),
        ("x x ?", "warning", ["3 bookies run on 2 hosts: of 3", "1 bookie of 3 did not say"]),
        (
            "x/s x y z",
            "warning",
            ["4 bookies run on 3 hosts", "host x has bookies in several racks (/r, /s): a rack ho"],
        ),
    ],
)
def test_hosts_in_words(layout: str, result: str, texts: list[str]) -> None:
    found = remarks(on_hosts(layout))
    assert len(found) == len(texts)
    assert all(part.startswith(text) for part, text in zip(found, texts, strict=True)), found
    finding = hosts_finding(on_hosts(layout))
    assert (finding.check, finding.result, finding.detail) == ("hosts", result, "; ".join(found) or EACH_ITS_OWN)


def test_table_and_json_have_the_host_of_each_bookie() -> None:
    headers, rows = as_table(on_hosts("x ? -"), 0.0)
    assert [row[headers.index("host")] for row in rows] == ["x", None, None]
    assert [as_json(bookie)["host_id"] for bookie in on_hosts("x ? -")] == ["x", None, None]
