"""A real Prometheus that scrapes a real bookie and a gateway answers every query of the dashboard, and loads the alert
rules."""

import asyncio
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import make_dashboard
import pytest
from debian_tools import program
from octavo.metrics.table import BOOKIE_METRICS, CLIENT_METRICS, GATEWAY_METRICS
from octavo.protocol.errors import NoSuchLedgerError
from support.commands.gateways import CLIENTS, gateway, run_client
from support.commands.processes import BookieProcess, free_neighbours
from support.tree import ROOT
from support.waiting import WAIT_SECONDS, wait_until

import octavo

RULES = ROOT / "deploy" / "prometheus" / "octavo.rules.yml"

EMPTY = (*make_dashboard.EMPTY_WHEN_HEALTHY, "certificate_expiry")
"""In queries that find nothing while nothing is wrong, or without TLS."""


def test_the_alert_rules_ask_only_for_metrics_that_exist() -> None:
    tables = (*BOOKIE_METRICS.values(), *GATEWAY_METRICS.values(), *CLIENT_METRICS.values())
    names = {metric.name for metrics in tables for metric in metrics}
    names |= {f"{name}_bucket" for name in names} | {"up"}
    asked = {
        word.partition("{")[0]
        for line in RULES.read_text().splitlines()
        for word in line.replace("(", " ").replace(")", " ").split()
        if word.startswith(("octavo_", "process_", "up{"))
    }
    assert asked <= names
    assert len(asked) > 10


@pytest.fixture(scope="module")
def prometheus(module_folder: Path) -> Iterator[str]:
    """The address of a Prometheus with the alert rules that scrapes a bookie and a gateway, which clients use."""
    web = free_neighbours(4)
    admin, kafka, observing = web + 1, web + 2, web + 3
    settings = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in (("octavo", admin), ("octavo-gateway", observing))
        ],
    }
    configuration = module_folder / "prometheus.yml"
    configuration.write_text(json.dumps(settings))
    uri = f"sqlite:///{module_folder}/metadata.db"
    options = ("--port", 0, "--metadata", uri)
    with (
        BookieProcess(module_folder / "bookie", *options, OCTAVO_BOOKIE_ADMIN_LISTEN=f"127.0.0.1:{admin}") as bookie,
        (module_folder / "prometheus.log").open("wb") as log,
        ExitStack() as gateways,
    ):
        bookie.wait_ready()
        single = ("--write-quorum", 1, "--ack-quorum", 1)
        gateways.enter_context(gateway(uri, kafka, "--admin-listen", f"127.0.0.1:{observing}", *single))
        run_client(CLIENTS, "aiokafka", f"127.0.0.1:{kafka}")
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={module_folder / 'series'}",
                f"--web.listen-address=127.0.0.1:{web}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            address = f"http://127.0.0.1:{web}"
            wait_until(lambda: len(answer(address, "octavo_bookie_entries_added_total")) == 1, "a first scrape")
            use_bookie(uri)
            time_of_two_scrapes(address)
            yield f"{address} {admin} {observing}"
        finally:
            process.kill()
            process.wait()


def use_bookie(uri: str) -> None:
    async def use() -> None:
        async with octavo.connect(uri) as client:
            async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.add_many([b"x"] * 100)
            async with client.open_ledger(ledger.id) as reader:
                assert len([entry async for entry in reader]) == 100
            with pytest.raises(NoSuchLedgerError):
                await client.ledger_metadata(ledger.id + 1)

    asyncio.run(use())


def time_of_two_scrapes(address: str) -> None:
    """Wait until rates can be computed."""

    def scrapes() -> int:
        found = answer(address, "count_over_time(octavo_bookie_entries_added_total[1m])")
        return int(found[0]["value"][1]) if found else 0

    begun = scrapes()
    wait_until(lambda: scrapes() >= begun + 3, "three scrapes")


def answer(address: str, query: str) -> list[Any]:
    """What Prometheus answers; nothing while it does not listen yet."""
    parameters = urllib.parse.urlencode({"query": query, "time": time.time()})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{parameters}", timeout=WAIT_SECONDS) as response:
            found = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it is starting
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except (urllib.error.URLError, ConnectionError):
        return []
    assert found["status"] == "success", found
    result: list[Any] = found["data"]["result"]
    return result


def test_every_query_of_the_dashboard_is_answered(prometheus: str) -> None:
    address = prometheus.split(maxsplit=1)[0]
    unanswered = [query for query in make_dashboard.queries() if not any(part in query for part in EMPTY)]

    def all_answered() -> bool:
        # Again, because a scrape that takes too long on a busy machine makes every series stale until the next one.
        unanswered[:] = [query for query in unanswered if not answer(address, query)]
        return not unanswered

    wait_until(all_answered, f"answers to {unanswered}")
    for query in make_dashboard.queries():
        answer(address, query)  # raises if Prometheus does not understand it


def test_the_rules_are_loaded_and_none_fires_for_a_healthy_bookie(prometheus: str) -> None:
    address = prometheus.split(maxsplit=1)[0]
    with urllib.request.urlopen(f"{address}/api/v1/rules", timeout=WAIT_SECONDS) as response:
        (group,) = json.load(response)["data"]["groups"]
    assert len(group["rules"]) == RULES.read_text().count("- alert:")
    assert [rule["name"] for rule in group["rules"] if rule["health"] not in {"ok", "unknown"}] == []
    assert answer(address, 'ALERTS{alertstate="firing"}') == []


def test_prometheus_own_tool_finds_nothing_wrong_with_the_metrics(prometheus: str) -> None:
    for port in prometheus.split()[1:]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as response:
            text = response.read()
        done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stderr.decode()) == (0, "")
