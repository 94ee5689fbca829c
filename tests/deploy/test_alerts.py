"""The alert rules: each fires when it should and not before, by Prometheus's own tool; each has a runbook."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from debian_tools import program
from support.tree import ROOT

RULES = ROOT / "deploy" / "prometheus" / "octavo.rules.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"

ALERT = re.compile(
    r"- alert: (?P<name>\w+)\n\s+expr: >-\n\s+(?P<expr>.+)\n(?:\s+for: \w+\n)?"
    r"\s+labels:\n\s+severity: (?P<severity>\w+)\n"
    r"\s+annotations:\n\s+summary: (?P<summary>.+)\n\s+description: (?P<description>.+)\n\s+runbook: (?P<runbook>\S+)\n"
)
ALERTS = {found["name"]: found for found in ALERT.finditer(RULES.read_text())}

BOOKIE = 'job="octavo",instance="b1:3180"'
GATEWAY = 'job="octavo-gateway",instance="g1:9180"'


class Case(NamedTuple):
    """Values of series once a minute, and the minute at which the alert first fires."""

    alert: str
    series: dict[str, str]
    fires_at_minute: int
    labels: dict[str, str] = {}  # noqa: RUF012 - a default that is never changed

    @property
    def process(self) -> dict[str, str]:
        """The labels of the process that is affected."""
        found = dict(part.split("=") for part in (GATEWAY if self.alert.startswith("Gateway") else BOOKIE).split(","))
        return {name: value.strip('"') for name, value in found.items()}


def one(name: str, values: str, labels: str = "", process: str = BOOKIE) -> dict[str, str]:
    return {f"{name}{{{process}{labels}}}": values}


def of_gateway(name: str, values: str, labels: str = "") -> dict[str, str]:
    return one(f"octavo_gateway_{name}", values, labels, GATEWAY)


def slow(name: str, process: str = BOOKIE) -> dict[str, str]:
    """A histogram of which a twentieth of the samples takes longer than 0.4 s, from minute 20 on."""
    quick, late = "0+100x20 2095+95x60", "0+100x20 2100+100x60"
    return {
        f'{name}_bucket{{{process},le="0.05"}}': quick,
        f'{name}_bucket{{{process},le="0.4"}}': quick,
        f'{name}_bucket{{{process},le="0.8"}}': late,
        f'{name}_bucket{{{process},le="+Inf"}}': late,
    }


DISK = ',path="/d",role="data"'

CASES = [
    Case("BookieDown", one("up", "1x9 0x60"), 11),
    Case("BookieUnregistered", one("octavo_bookie_registered", "1x9 0x60"), 12),
    Case("MetadataDown", one("octavo_bookie_metadata_up", "1x9 0x60"), 12),
    Case("BookieReadOnly", one("octavo_bookie_state", "0x9 1x60", ',state="read-only"'), 15, {"state": "read-only"}),
    Case(
        "DiskFullSoon",
        one("octavo_bookie_disk_free_bytes", "1000x60 1000-3x100", DISK)
        | one("octavo_bookie_disk_read_only_threshold_bytes", "500x200"),
        110,
        {"path": "/d", "role": "data"},
    ),
    Case("DamagedData", one("octavo_bookie_damage_total", "0x9 1x60", ',kind="entry"'), 10, {"kind": "entry"}),
    Case("BookieInDoubt", one("octavo_bookie_in_doubt", "0x9 1x60"), 15),
    Case("RepairBlocked", one("octavo_bookie_repair_ledgers", "0x9 3x60", ',state="short"'), 40, {"state": "short"}),
    Case("RepairBrake", one("octavo_bookie_repair_suspended", "0x9 1x60", ',reason="brake"'), 15, {"reason": "brake"}),
    Case("DuplicateRefused", one("octavo_bookie_duplicates_refused_total", "0x9 1x60"), 10),
    Case("JournalSyncSlow", slow("octavo_bookie_journal_sync_seconds"), 32),
    Case("EventLoopSlow", slow("octavo_bookie_loop_lag_seconds"), 32),
    Case("BookieHeldBack", one("octavo_bookie_held_back_seconds_total", "0x20 0+12x60"), 34),
    Case("CheckpointStuck", one("octavo_bookie_checkpoint_age_seconds", "0+60x60"), 21),
    Case("GarbageStuck", one("octavo_bookie_garbage_round_age_seconds", "0+600x60"), 37),
    Case("ScrubStale", one("octavo_bookie_scrub_round_age_seconds", "0+86400x60"), 15),
    Case("ConnectionsRefused", one("octavo_bookie_connections_refused_total", "0x9 3x60"), 10),
    Case("CertificateExpires", one("octavo_bookie_certificate_expiry_seconds", f"{14 * 86400 + 600}x60"), 11),
    Case("AccessDenied", one("octavo_bookie_denied_total", "0x9 0+10x60", ',reason="key"'), 17),
    Case(
        "DescriptorsLow", one("process_open_fds", "10x9 90x60") | one("process_max_fds", "100x70"), 20,
    ),
    Case("RepairStuck", one("octavo_bookie_repair_ledgers", "0x9 5x200", ',state="queued"'), 70, {"state": "queued"}),
    Case(
        "RepairPaused", one("octavo_bookie_repair_suspended", "0x9 1x100", ',reason="paused"'), 70,
        {"reason": "paused"},
    ),
    Case("ClocksDisagree", one("octavo_bookie_repair_clock_ahead_seconds", "-60x9 -61x60"), 20),
    Case("GatewayDown", one("up", "1x9 0x60", process=GATEWAY), 11),
    Case(
        "GatewayStorageErrors",
        of_gateway("requests_total", "0x9 1x60", ',api="FETCH",code="KAFKA_STORAGE_ERROR"')
        | of_gateway("requests_total", "0+50x60", ',api="FETCH",code="NOT_LEADER_OR_FOLLOWER"'),
        10,
    ),
    Case("GatewayLeadsLost", of_gateway("leads_lost_total", "0x9 0+1x60", ',kind="partition"'), 16),
    Case(
        "GatewayPartitionsWait", of_gateway("partitions", "0x9 1x60", ',state="opening"'), 15, {"state": "opening"}
    ),
    Case("GatewayConnectionsRefused", of_gateway("connections_refused_total", "0x9 3x60"), 10),
    Case("GatewayMemoryFull", of_gateway("budget_waits_total", "0x20 0+120x60", ',budget="answers"'), 34),
    Case("GatewayLoopSlow", slow("octavo_gateway_loop_lag_seconds", GATEWAY), 32),
    Case(
        "GatewayGroupBehind", of_gateway("group_behind_seconds", "0x9 0+60x60", ',group="billing"'), 31,
        {"group": "billing"},
    ),
]  # fmt: skip


def alert_at(case: Case, minute: int, *, fires: bool) -> dict[str, Any]:
    found = ALERTS[case.alert]
    labels = {"severity": found["severity"]} | case.process | case.labels

    def filled(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: labels[label[1]], text.strip('"'))

    annotations = {name: filled(found[name]) for name in ("summary", "description", "runbook")}
    expected = [{"exp_labels": labels, "exp_annotations": annotations}] if fires else []
    return {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": expected}


def alert_test(series: dict[str, str], *expected: dict[str, Any]) -> dict[str, Any]:
    """What promtool is to evaluate once a minute on these series, and what it is to find."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": list(expected),
    }


def try_rules(folder: Path, *tests: dict[str, Any]) -> None:
    """Test the rules with promtool."""
    file = folder / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)


def promtool(*arguments: str | Path) -> None:
    """Run Prometheus's tool, which must find nothing wrong."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should_and_not_a_minute_before(tmp_path: Path) -> None:
    promtool("check", "rules", RULES)
    try_rules(
        tmp_path,
        *(
            alert_test(
                case.series,
                alert_at(case, case.fires_at_minute - 1, fires=False),
                alert_at(case, case.fires_at_minute, fires=True),
            )
            for case in CASES
        ),
    )


def test_a_queue_of_repair_that_becomes_shorter_is_not_stuck(tmp_path: Path) -> None:
    series = one("octavo_bookie_repair_ledgers", "1000-5x150", ',state="queued"')
    try_rules(tmp_path, alert_test(series, alert_at(Case("RepairStuck", series, 0), 100, fires=False)))


def test_a_bookie_that_starts_or_stops_need_not_be_registered(tmp_path: Path) -> None:
    series = one("octavo_bookie_registered", "0x60") | one("octavo_bookie_state", "1x60", ',state="starting"')
    try_rules(tmp_path, alert_test(series, alert_at(Case("BookieUnregistered", series, 0), 30, fires=False)))


def test_clocks_of_clients_count_as_those_of_the_auditor(tmp_path: Path) -> None:
    case = Case("ClocksDisagree", one("octavo_client_clock_ahead_seconds", "0x9 86400x60"), 20)
    try_rules(tmp_path, alert_test(case.series, alert_at(case, 19, fires=False), alert_at(case, 20, fires=True)))


def test_every_alert_is_tested_and_has_a_runbook_of_its_own() -> None:
    assert len(ALERTS) == RULES.read_text().count("- alert:")
    assert [case.alert for case in CASES] == list(ALERTS)
    pages = {ROOT / "docs" / found["runbook"]: found for found in ALERTS.values()}
    assert {path for path in RUNBOOKS.glob("*.md") if path.name != "README.md"} == set(pages)
    index = (RUNBOOKS / "README.md").read_text()
    for path, found in pages.items():
        text = path.read_text()
        assert text.startswith(f"# {found['name']}\n")
        assert {"## Check", "## Mend"} <= {*text.splitlines()}
        assert f"| [{found['name']}]({path.name}) | {found['severity']} |" in index


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_only_for_processes_of_octavo_and_says_which_is_affected(name: str) -> None:
    found = ALERTS[name]
    assert ('job="octavo-gateway"' if name.startswith("Gateway") else 'job="octavo"') in found["expr"]
    assert found["severity"] in {"critical", "warning"}
    assert "$labels.instance" in found["summary"]
