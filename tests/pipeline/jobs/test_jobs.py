"""The jobs, on real bookies: what was planted is found, what was copied is the same, what was counted is right."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from octavo.cli.main import main
from octavo.metadata import Fragment, LedgerMetadata, open_metadata_store
from octavo.pipeline.base.options import ClusterOptions
from octavo.pipeline.jobs.export import InputFormat, Timestamps, export, ingest
from octavo.pipeline.jobs.inventory import Inventory, inventory
from octavo.pipeline.jobs.log_formats import FORMATS
from octavo.pipeline.jobs.loglines import log_columns, loglines
from octavo.pipeline.jobs.verify import VerifySummary, fragments_on_one_host, verify
from octavo.protocol.entries import Digest, derive_secrets, make_verifier
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.clusters.secrets import write_secret
from support.commands.processes import Up
from support.raw_client import PASSWORD, RawClient, add, seal
from support.spark import bookie_ids, bookies_of, collected, ledger_payloads, scan, with_client, write_ledger
from support.tree import ROOT

import octavo

NASTY_LINES = [b"", b"\r", b"a\r", b"\xff\xfe\x00", b"plain", b"tab\t\xc3\xa9"]


@pytest.fixture(scope="module")
def jobs(spark: SparkSession, module_folder: Path) -> Iterator[Up]:
    """A cluster of its own: jobs look at everything in it."""
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


# --- verify ----------------------------------------------------------------------------------------------------------


async def plant_ledger(up: Up, bookies: dict[str, str], harm: dict[str, dict[int, bytes | None]]) -> int:
    """A closed ledger of ten entries, put on the bookies by hand: with other bytes, or none, where ``harm`` says so."""
    async with await open_metadata_store(up.uri) as store:
        ledger_id = await store.allocate_ledger_id()
        secrets = derive_secrets(PASSWORD, ledger_id)
        metadata = LedgerMetadata(
            ledger_id=LedgerId(ledger_id),
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=3,
            fragments=(Fragment(EntryId(0), tuple(map(BookieId, bookies))),),
            digest=Digest.CRC32C,
            created_at=datetime.now(UTC),
            verifier=make_verifier(secrets, Digest.CRC32C, b"s" * 16),
            salt=b"s" * 16,
        )
        version = await store.create_ledger(metadata)
        payloads = [b"%d" % entry_id for entry_id in range(10)]
        for bookie_id, address in bookies.items():
            own = dict(enumerate(payloads)) | harm.get(bookie_id, {})
            entries = [seal(ledger_id, entry_id, [p])[0] for entry_id, p in sorted(own.items()) if p is not None]
            host, _, port = address.rpartition(":")
            async with RawClient(host, int(port)) as raw:
                await raw.greet()
                await raw.ask(add(ledger_id, entries))
        await store.compare_and_set_ledger(metadata.closed(EntryId(9), 10), version)
        return ledger_id


def findings(spark: SparkSession, report: Path) -> set[tuple[int, str, int, int, str]]:
    rows = spark.read.parquet(str(report / "findings")).collect()
    return {(row.ledger_id, row.bookie, row.first_entry, row.last_entry, row.problem) for row in rows}


def test_verify_finds_each_flipped_bit_missing_and_other_entry_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    password = tmp_path / "password"
    write_secret(password, b"secret")
    with Up(directory) as up:
        cluster = ClusterOptions(up.wait_ready().uri, password_file=str(password))
        payloads = [b"marker-%05d " % number + b"x" * 500 for number in range(3000)]
        plain = write_ledger(up.uri, payloads, sizes=(3, 3, 3))
        write_ledger(up.uri, [b"striped"] * 500, sizes=(3, 2, 2))
        write_ledger(up.uri, [b"mac"] * 50, sizes=(3, 3, 3), password=b"secret", digest=octavo.Digest.HMAC_SHA256)
        write_ledger(up.uri, [b"foreign"] * 50, sizes=(3, 3, 3), password=b"x", digest=octavo.Digest.HMAC_SHA256)
        write_ledger(up.uri, [], sizes=(3, 3, 3))
        sound = verify(spark, cluster, report=tmp_path / "sound")
        assert sound.sound, sound
        assert (sound.ledgers, sound.replicas) == (4, 3 * 3000 + 2 * 500 + 2 * 3 * 50)
        assert findings(spark, tmp_path / "sound") == set()
        bookies = bookies_of(up)
        one, two, _ = bookies
        harm: dict[str, dict[int, bytes | None]] = {one: {3: None, 4: None}, two: {7: b"other"}}
        planted = with_client(up.uri, lambda _: plant_ledger(up, bookies, harm))
        assert up.stop() == 0
    expected = {(planted, one, 3, 4, "missing"), (planted, two, 7, 7, "differs")}
    folders = {folder.name: folder for folder in directory.iterdir() if folder.is_dir()}
    flipped = [(0, 17, 0), (1, 1234, 5), (2, 2999, 7)]
    names = flip_bits(folders, flipped)
    with Up(directory) as up:
        up.wait_ready()
        found = verify(spark, cluster, report=tmp_path / "harmed")
        ids = bookie_ids(up)
        expected |= {(plain, ids[name], entry_id, entry_id, "unknown") for name, entry_id in names}
        assert findings(spark, tmp_path / "harmed") == expected
        assert {name: count for name, count in found.problems.items() if count} == {
            "missing": 2, "differs": 1, "unknown": 3,
        }  # fmt: skip
        assert found.ledgers_with_problems == tuple(sorted((plain, planted)))
        by_bookie = spark.read.parquet(str(tmp_path / "harmed" / "replicas")).where(f"ledger_id = {plain}").collect()
        assert sorted(row.unknown for row in by_bookie) == [1, 1, 1]
        assert {row.entries for row in by_bookie} == {3000}


def flip_bits(folders: dict[str, Path], places: list[tuple[int, int, int]]) -> list[tuple[str, int]]:
    """Turn over one bit of these entries in the files of the first, second, ... bookie; gives names and entries."""
    done = []
    names = sorted(name for name in folders if "bookie" in name)
    for index, entry_id, bit in places:
        marker = b"marker-%05d " % entry_id
        (place,) = [
            (file, at)
            for file in sorted(folders[names[index]].rglob("*.log"))
            if file.is_file() and (at := file.read_bytes().find(marker)) >= 0
        ]
        file, at = place
        data = bytearray(file.read_bytes())
        data[at + 100] ^= 1 << bit
        file.write_bytes(data)
        done.append((names[index], entry_id))
    return done


def test_an_entry_that_no_bookie_has_is_named_with_each_bookie_or_becomes_one_row_without_a_value(
    spark: SparkSession, cluster: Up, capfd: pytest.CaptureFixture[str]
) -> None:
    bookies = bookies_of(cluster)
    harm: dict[str, dict[int, bytes | None]] = {bookie_id: {5: None, 6: None} for bookie_id in bookies}
    ledger_id = with_client(cluster.uri, lambda _: plant_ledger(cluster, bookies, harm))
    password = {"passwordVariable": "OCTAVO_PLANTED"}
    with pytest.raises(PySparkException, match="needs its password"):
        scan(spark, cluster.uri, ledgers=ledger_id, **password).count()
    planted = {"passwordFile": cluster.directory.parent / "planted"}
    write_secret(planted["passwordFile"], PASSWORD)
    with pytest.raises(PySparkException) as caught:
        scan(spark, cluster.uri, ledgers=ledger_id, **planted).collect()
    assert f"DataLossError: ledger {ledger_id} entry 5 cannot be read" in str(caught.value)
    for bookie_id in bookies:
        assert f"bookie {bookie_id}: has no such entry" in str(caught.value)
    rows = collected(scan(spark, cluster.uri, ledgers=ledger_id, failOnDataLoss="false", **planted))
    assert rows == [(ledger_id, i, None if i in {5, 6} else b"%d" % i) for i in range(10)]
    verify_it = ["pipeline", "verify", "--metadata", cluster.uri, "--ledgers", str(ledger_id)]
    capfd.readouterr()
    assert main(verify_it) == 1
    assert "30 replicas of entries" in (printed := capfd.readouterr().out)
    assert f"problems in ledgers {ledger_id}\n" in printed
    assert main([*verify_it, "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert (told["sound"], told["problems"]["missing"], told["ledgers_with_problems"]) == (False, 6, [ledger_id])


def test_fragments_with_all_bookies_on_one_host_are_counted(spark: SparkSession) -> None:
    """Fragment 1/0 only: 1/5 is on two hosts, 2/0 on one bookie, and of 3/0 it is not known; 4/0 was not looked at."""
    rows = [(1, 0, "a"), (1, 0, "b"), (1, 5, "a"), (1, 5, "c"), (2, 0, "a"), (3, 0, "a"), (3, 0, "gone"), (4, 0, None)]
    frame = spark.createDataFrame(rows, "ledger_id long, fragment long, bookie string")
    assert fragments_on_one_host(frame, {"a": "x", "b": "x", "c": "y"}) == 1
    assert fragments_on_one_host(frame, {}) == 0


def test_verify_and_inventory_look_at_logs_and_name_what_has_no_end(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Up(tmp_path / "data") as up:
        uri = up.wait_ready().uri
        cluster = ClusterOptions(uri)
        verify_it = ["pipeline", "verify", "--metadata", uri]
        assert main([*verify_it, "--ledgers", "7"]) == 3
        printed = capfd.readouterr().out
        assert "not verified: 1 ledgers that do not exist\n" in printed
        assert "nothing was verified\n" in printed
        assert "sound" not in printed

        async def write(client: octavo.Client) -> tuple[VerifySummary, VerifySummary, Inventory]:
            async with client.create_log("orders", 3, 3, 3) as log:
                async with log.lead() as writer:
                    await writer.add(b"")
                    empty_start = await asyncio.to_thread(verify, spark, cluster)
                async with log.lead() as writer:
                    await writer.add_many([b"x" * 100] * 50)
                async with log.lead() as writer:
                    await writer.add_many([b"y" * 100] * 20)
                    running = await asyncio.to_thread(verify, spark, cluster, report=tmp_path / "report")
                    counted = await asyncio.to_thread(inventory, spark, cluster)
            return empty_start, running, counted

        nothing, running, counted = with_client(uri, write)
        assert (nothing.sound, nothing.replicas, nothing.not_covered) == (False, 0, {"running-term": 1})
        assert (running.sound, running.ledgers, running.streams) == (True, 1, 1)
        assert (running.replicas, running.not_covered) == (3 * 51, {"running-term": 1})
        assert running.on_one_host >= 2, "both terms that are over are on the bookies of this machine"
        assert (counted.total.ledgers, counted.total.entries, counted.total.length) == (1, 51, 5000)
        assert counted.not_counted == {"stream": 1}
        assert [(share.entries, share.length) for share in counted.by_bookie] == [(51, 5000)] * 3
        assert [(share.name, share.ledgers) for share in counted.by_kind] == [("stream", 1)]
        (row,) = spark.read.parquet(str(tmp_path / "report" / "not_covered")).collect()
        assert (row.stream, row.first_entry, row.why) == (True, 51, "running-term")
        capfd.readouterr()
        exported = ["pipeline", "export", str(tmp_path / "exported"), "--metadata", uri, "--ledgers", "all"]
        assert main(exported) == 0
        assert "left out: 1 stream;" in capfd.readouterr().out
        assert loglines(spark, cluster, ledgers="0-9").streams_left_out == 1
        assert loglines(spark, cluster, ledgers="app=none").streams_left_out == 0
        assert main(verify_it) == 0
        assert "1 ledger (1 of them streams), 213 replicas of entries" in capfd.readouterr().out
        assert main([*verify_it, "--json"]) == 0
        told = json.loads(capfd.readouterr().out)
        assert (told["sound"], told["streams"], told["not_covered"]) == (True, 1, {})


# --- export and ingest -----------------------------------------------------------------------------------------------


def test_what_is_exported_and_ingested_again_is_the_same_byte_for_byte(
    spark: SparkSession, jobs: Up, tmp_path: Path
) -> None:
    cluster = ClusterOptions(jobs.uri)
    first = write_ledger(jobs.uri, [*NASTY_LINES, b"2026-01-02T03:04:05Z x"], custom_metadata={"test": b"round"})
    second = write_ledger(jobs.uri, [b"%d" % i for i in range(3000)], custom_metadata={"test": b"round"})
    times = Timestamps(r"^(\S+Z)")
    exported = export(spark, cluster, str(tmp_path / "out"), ledgers="test=round", timestamps=times)
    assert (exported.entries, exported.payload_bytes) == (3007, sum(map(len, NASTY_LINES)) + 22 + 10_890)
    table = spark.read.parquet(str(tmp_path / "out"))
    assert [str(row.time) for row in table.where("time is not null").collect()] == ["2026-01-02 03:04:05"]
    done = ingest(spark, cluster, str(tmp_path / "out"), "again", input_format=InputFormat.PARQUET)
    assert done == exported
    again = scan(spark, jobs.uri, dataset="again").select("ledger_id").distinct().collect()
    by_key = {origin_of(jobs, row.ledger_id): row.ledger_id for row in again}
    assert set(by_key) == {first, second}
    for old, new in by_key.items():
        assert ledger_payloads(jobs.uri, new) == ledger_payloads(jobs.uri, old)
    with pytest.raises(PySparkException, match="already exists"):
        export(spark, cluster, str(tmp_path / "out"), dataset="again")
    assert export(spark, cluster, str(tmp_path / "out"), dataset="again", overwrite=True) == done
    with pytest.raises(InvalidArgumentError, match="give one of ledgers, dataset and log"):
        export(spark, cluster, str(tmp_path / "none"))


def origin_of(up: Up, ledger_id: int) -> int:
    """The ledger that this one was made from."""
    metadata = with_client(up.uri, lambda client: client.ledger_metadata(ledger_id))
    return int(metadata.custom_metadata["octavo.key"])


def test_lines_of_text_and_json_become_entries(spark: SparkSession, jobs: Up, tmp_path: Path) -> None:
    cluster = ClusterOptions(jobs.uri)
    (tmp_path / "lines").write_bytes(b"\n".join(NASTY_LINES) + b"\n")
    done = ingest(spark, cluster, str(tmp_path / "lines"), "text", input_format=InputFormat.TEXT)
    assert (done.entries, done.payload_bytes) == (len(NASTY_LINES), sum(map(len, NASTY_LINES)))
    (row,) = scan(spark, jobs.uri, dataset="text").select("ledger_id").distinct().collect()
    assert ledger_payloads(jobs.uri, row.ledger_id) == NASTY_LINES
    (tmp_path / "jsonl").write_text('{"a": "x", "b": 1}\n{"a": "y"}\n')
    source = str(tmp_path / "jsonl")
    ingest(spark, cluster, source, "json", input_format=InputFormat.JSON_LINES)
    ingest(spark, cluster, source, "field", input_format=InputFormat.JSON_LINES, field="a")
    assert values(spark, jobs, "json") == [b'{"a": "x", "b": 1}', b'{"a": "y"}']
    assert values(spark, jobs, "field") == [b"x", b"y"]
    with pytest.raises(PySparkException, match="a line is not JSON with a field b"):
        ingest(spark, cluster, source, "field", input_format=InputFormat.JSON_LINES, field="b")
    assert values(spark, jobs, "field") == [b"x", b"y"]
    ingest(spark, cluster, source, "field", input_format=InputFormat.TEXT, overwrite=True)
    assert values(spark, jobs, "field") == [b'{"a": "x", "b": 1}', b'{"a": "y"}']


def values(spark: SparkSession, up: Up, dataset: str) -> list[bytes]:
    rows = scan(spark, up.uri, dataset=dataset).orderBy("ledger_id", "entry_id").collect()
    return [bytes(row.value) for row in rows]


# --- inventory and loglines ------------------------------------------------------------------------------------------


def test_inventory_adds_up(spark: SparkSession, tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:
        up.wait_ready()
        cluster = ClusterOptions(up.uri)
        plots = [tmp_path / "plot.png", tmp_path / "plot.html"]
        empty = inventory(spark, cluster, plot=plots[0])
        assert (empty.total.ledgers, empty.by_bookie, empty.imbalance) == (0, (), 1.0)
        for number in range(4):
            write_ledger(up.uri, [b"x" * 100] * 30, custom_metadata={"app": b"orders", "n": b"%d" % number})
        write_ledger(up.uri, [b"x" * 10] * 30, sizes=(3, 2, 2))
        found = inventory(spark, cluster, plot=plots[1])
        assert (found.total.ledgers, found.total.entries, found.total.length) == (5, 150, 12_300)
        assert {(share.ledgers, share.entries, share.length) for share in found.by_bookie} == {(5, 140, 12_200)}
        assert {share.name for share in found.by_bookie} == set(bookies_of(up))
        assert found.imbalance == pytest.approx(1.0)
        assert [(share.name, share.ledgers) for share in found.by_state] == [("closed", 5)]
        assert [(share.name, share.ledgers) for share in found.by_age] == [("under an hour", 5)]
        assert [(share.name, share.ledgers) for share in found.by_custom_metadata] == [("app=orders", 4)]
        assert json.loads(json.dumps(found.to_json()))["total"]["entries"] == 150
        assert plots[0].read_bytes().startswith(b"\x89PNG")
        page = plots[1].read_text()
        assert "<svg" in page
        assert "src=" not in page, "nothing is loaded from elsewhere"
        with pytest.raises(InvalidArgumentError, match=r"must end in \.png, \.svg or \.html"):
            inventory(spark, cluster, plot=tmp_path / "plot.pdf")


LOG_LINES = {
    b"081109 203615 148 INFO dfs.DataNode: PacketResponder 1 for block blk_388 terminating": (
        "hdfs", "2008-11-09 20:36:15", "INFO", "dfs.DataNode", "PacketResponder <*> for block blk_<*> terminating",
    ),
    b"081109 203715 148 INFO dfs.DataNode: PacketResponder 2 for block blk_-69 terminating": (
        "hdfs", "2008-11-09 20:37:15", "INFO", "dfs.DataNode", "PacketResponder <*> for block blk_<*> terminating",
    ),
    b"2015-07-29 17:41:44,747 - INFO  [QuorumPeer[myid=1]/0:0:0:0:0:0:0:0:2181:FastLeader@774] - Time out: 3200": (
        "zookeeper", "2015-07-29 17:41:44.747000", "INFO", "FastLeader", "Time out: <*>",
    ),
    b"Jun  4 15:16:01 combo sshd(pam_unix)[19939]: failure from 218.188.2.4 ": (
        "syslog", "1970-06-04 15:16:01", None, "sshd(pam_unix)", "failure from <*> ",
    ),
    b"- 1131566461 2005.11.09 dn228 Nov 9 12:01:01 dn228/dn228 crond(pam_unix)[2915]: session closed\r": (
        "thunderbird", "2005-11-09 20:01:01", None, "crond(pam_unix)", "session closed",
    ),
    b"03-17 16:13:38.819  1702  8671 D PowerManagerService: acquire lock=233570404": (
        "android", "1970-03-17 16:13:38.819000", "D", "PowerManagerService", "acquire lock=<*>",
    ),
    b"something else altogether": ("unparsed", "None", None, None, "something else altogether"),
}  # fmt: skip
"""Line -> form, time, level, component, template."""


def test_log_lines_become_columns_and_counts(spark: SparkSession, jobs: Up, tmp_path: Path) -> None:
    assert {known.name for known in FORMATS if re.compile(known.pattern).groups != 4} == set()
    ledger_id = write_ledger(jobs.uri, list(LOG_LINES))
    rows = log_columns(scan(spark, jobs.uri, ledgers=ledger_id)).orderBy("entry_id").collect()
    got = [(row.format, str(row.time), row.level, row.component, row.template) for row in rows]
    assert got == list(LOG_LINES.values())
    sample = (ROOT / "scripts" / "sample" / "dpkg.log").read_bytes().splitlines()
    write_ledger(jobs.uri, sample, custom_metadata={"test": b"loglines"})
    table = str(tmp_path / "table")
    plot = tmp_path / "plot.html"
    found = loglines(spark, ClusterOptions(jobs.uri), ledgers=f"{ledger_id},test=loglines", table=table, plot=plot)
    assert found.lines == len(sample) + len(LOG_LINES)
    assert {(count.name, count.lines) for count in found.by_format} >= {("hdfs", 2), ("syslog", 1)}
    assert sum(count.lines for count in found.by_level) == found.lines
    assert {count.name: count.lines for count in found.by_hour}["2008-11-09 20:00"] == 2
    assert spark.read.parquet(table).count() == found.lines
    assert "Lines by hour and level" in plot.read_text()


def test_a_summary_that_found_something_is_not_sound() -> None:
    assert VerifySummary(1, 3, 100, {"missing": 0, "differs": 0}, ()).sound
    assert not VerifySummary(1, 3, 100, {"missing": 0, "differs": 1}, (4,)).sound
    assert not VerifySummary(0, 0, 0, {"missing": 0, "differs": 0}, ()).sound, "nothing was looked at"
