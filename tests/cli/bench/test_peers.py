"""scripts/compare_peers.py: which loads it is asked for, and what it concludes from the rounds."""

import sys

import pytest
from support.tree import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from compare_peers import ledger_case, medians, ratio_table, ratios, table
from peer_systems import Case, PeerError, client_result

CASE = Case("small", 10, 5, ledgers=2)


def result(rate: float) -> dict[str, float]:
    return {"rate": rate, "p50": 1000 / rate, "p99": 2000 / rate, "p99.9": 3000 / rate, "us": 1e6 / rate}


MEASURED = {
    "octavo": {"small": [result(100), result(400), result(200)]},
    "bookkeeper": {"small": [result(100), result(100), result(200)]},
}


def test_a_case_has_ledgers_and_adds_in_flight() -> None:
    assert ledger_case("10000/2000", 1024) == Case("1,024 B, 10,000 ledgers, 2,000 in flight", 1024, 2000, 0, 10_000)


@pytest.mark.parametrize("text", ["", "1000", "0/1000", "1000/0", "-1/5", "a/b", "1/2/3"])
def test_other_cases_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(PeerError, match="--ledgers takes LEDGERS/IN-FLIGHT"):
        ledger_case(text, 1024)


def test_medians_are_those_of_the_rounds() -> None:
    assert {system: figures["rate"] for system, figures in medians(MEASURED, CASE).items()} == {
        "octavo": 200,
        "bookkeeper": 100,
    }
    assert "| small | octavo | 200 | 5.00 | 10.00 | 15.00 | 5,000.00 |" in table(MEASURED, [CASE])


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios(MEASURED, CASE, "rate") == {"bookkeeper": [1, 4, 1]}
    assert "| small | bookkeeper | 1.00 (1.00 to 4.00) | 1.00 (0.25 to 1.00) |" in ratio_table(MEASURED, [CASE])


def test_the_result_of_a_java_client_is_its_last_line_of_json() -> None:
    printed = (
        '{"a line of the library": 1}\n'
        '{"entries_per_second": 5.0, "p50": 1.0, "p99": 2.0, "p99.9": 3.0, "processor_us": 4.0, "failed": 0}\nend\n'
    )
    assert client_result(printed, "x") == {"rate": 5.0, "p50": 1.0, "p99": 2.0, "p99.9": 3.0, "us": 4.0}
    with pytest.raises(PeerError, match="kafka: 3 adds failed"):
        client_result(printed.replace('"failed": 0', '"failed": 3'), "kafka")
    with pytest.raises(PeerError, match="kafka: the client has printed no result: oops"):
        client_result("oops", "kafka")
