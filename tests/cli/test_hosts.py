"""What `octavo bookies` and `octavo doctor` say of the hosts of a cluster, as a table."""

import pytest
from octavo.cli.bookies import as_json, as_table
from octavo.cli.cluster.hosts import remarks
from octavo.cli.doctor import hosts_finding
from octavo.client.bookie_status import BookieStatus
from octavo.metadata import BookieState
from octavo.protocol.ids import BookieId

EACH_ITS_OWN = "every bookie runs on a host of its own"


def bookies(layout: str) -> list[BookieStatus]:
    """``bookies("x y/s ? -")``: on host x; on y in rack /s; one that registers no host; one that is unavailable."""
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
    found = remarks(bookies(layout))
    assert len(found) == len(texts)
    assert all(part.startswith(text) for part, text in zip(found, texts, strict=True)), found
    finding = hosts_finding(bookies(layout))
    assert (finding.check, finding.result, finding.detail) == ("hosts", result, "; ".join(found) or EACH_ITS_OWN)


def test_table_and_json_have_the_host_of_each_bookie() -> None:
    headers, rows = as_table(bookies("x ? -"), 0.0)
    assert [row[headers.index("host")] for row in rows] == ["x", None, None]
    assert [as_json(bookie)["host_id"] for bookie in bookies("x ? -")] == ["x", None, None]
