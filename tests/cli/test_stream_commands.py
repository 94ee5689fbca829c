"""Streams among the ledgers of a cluster, as commands meet them. No bookie is needed."""

import asyncio
import json
import tarfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from octavo.cli.main import main
from octavo.metadata import open_metadata_store
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LOG_KEY
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import PAGES_PREFIX, page_document
from octavo.metadata.updates.dump import RESTORED_TERMS_SKIPPED, ClusterFacts, DumpEnd, DumpWriter, read_dump
from octavo.metadata.updates.garbage_hold import read_hold
from octavo.metadata.updates.page_out import page_out
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.places import place
from support.commands.processes import Finished
from support.metadata.ledger_metadata import bookie_ids, open_ledger
from support.metadata.stream_metadata import open_stream, stream_fragment
from support.waiting import WAIT_SECONDS

LEDGER = open_ledger(0)
OPEN = replace(
    open_stream(stream_fragment(1, 0, 0), stream_fragment(2, 0, 5, "abd", 50), start=3), ledger_id=LedgerId(1)
)
RESTING = replace(OPEN, ledger_id=LedgerId(2)).at_rest(place(2, 6), 120)
STORED: tuple[EitherMetadata, ...] = (LEDGER, OPEN, RESTING)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A cluster with a ledger and two streams."""
    made = f"sqlite:///{tmp_path}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(made, create=True) as store:
            for _ in STORED:
                await store.allocate_ledger_id()
            await store.create_ledger(LEDGER)
            await store.create_stream(OPEN)
            await store.create_stream(RESTING)

    asyncio.run(make())
    return made


@pytest.fixture
def octavo(capfdbinary: pytest.CaptureFixture[bytes], uri: str) -> "Run":
    return Run(capfdbinary, uri)


class Run:
    """Runs a command in this process."""

    def __init__(self, captured: pytest.CaptureFixture[bytes], uri: str) -> None:
        self._captured = captured
        self.uri = uri

    def __call__(self, *arguments: object, uri: str | None = None) -> Finished:
        status = main([*map(str, arguments), "--metadata", uri or self.uri])
        shown = self._captured.readouterr()
        return Finished(status, shown.out, shown.err.decode())


async def stored(uri: str) -> list[EitherMetadata]:
    async with await open_metadata_store(uri) as store:
        return [(await store.read_either(one)).value async for one in store.list_ledgers()]


def terms_skipped(restored: EitherMetadata) -> int:
    """How many terms the restore of a stream has left out: some, and one for each second since the dump."""
    assert isinstance(restored, StreamMetadata)
    assert RESTORED_TERMS_SKIPPED <= restored.terms_skipped <= RESTORED_TERMS_SKIPPED + WAIT_SECONDS
    return restored.terms_skipped


def test_streams_are_listed_among_ledgers(octavo: Run) -> None:
    listed = [json.loads(line) for line in octavo("ledger", "list", "--json").stdout.splitlines()]
    assert [(one["ledger_id"], one["kind"], one["state"]) for one in listed] == [
        (0, "ledger", "open"), (1, "stream", "open"), (2, "stream", "at-rest"),
    ]  # fmt: skip
    named = octavo("ledger", "list", "--bookie", "d", "--state", "open", "--where", "app=orders", "--json")
    assert [json.loads(line)["ledger_id"] for line in named.stdout.splitlines()] == [1]
    resting = octavo("ledger", "list", "--state", "at-rest", "--json").stdout.splitlines()
    assert [json.loads(line)["ledger_id"] for line in resting] == [2]


def test_streams_are_counted_among_ledgers(octavo: Run) -> None:
    assert json.loads(octavo("cluster", "show", "--ledgers", "--json").stdout)["ledgers"] == 3


def test_streams_are_listed_with_what_their_users_count(octavo: Run) -> None:
    """Positions and entries, never places, which are ids of entries on bookies; the payload that is kept; the log."""
    asyncio.run(_name_log(octavo.uri))
    ledger, writing, resting = (json.loads(line) for line in octavo("ledger", "list", "--json").stdout.splitlines())
    facts = ("entries", "last_entry_id", "first_position", "last_position", "length", "log")
    assert [ledger[key] for key in facts] == [None, None, None, None, 0, None]
    assert [writing[key] for key in facts] == [None, None, 3, None, 50, None]
    assert [resting[key] for key in facts] == [9, None, 3, 11, 120, "orders\x1b[2J"]
    listed = octavo("ledger", "list").stdout.decode()
    header, *rows = [line.split() for line in listed.splitlines()]
    assert header == ["ledger", "kind", "state", "entries", "length", "created", "log"]
    assert [row[:5] for row in rows] == [
        ["0", "ledger", "open", "-", "0"], ["1", "stream", "open", "-", "50"], ["2", "stream", "at-rest", "9", "120"],
    ]  # fmt: skip
    assert "\x1b" not in listed, "a name does nothing to the terminal"


async def _name_log(uri: str) -> None:
    async with await open_metadata_store(uri) as store:
        current = await store.read_stream(RESTING.ledger_id)
        named = replace(current.value, custom_metadata={LOG_KEY: b"orders\x1b[2J"})
        await store.compare_and_set_stream(named, current.version)


def test_a_stream_that_was_never_written_has_no_entries(octavo: Run) -> None:
    async def make() -> None:
        async with await open_metadata_store(octavo.uri) as store:
            stream = replace(open_stream(stream_fragment(1, 0, 0)), ledger_id=await store.allocate_ledger_id())
            await store.create_stream(stream.at_rest(EntryId(place(1, 0) - 1), 0))

    asyncio.run(make())
    *_, empty = (json.loads(line) for line in octavo("ledger", "list", "--json").stdout.splitlines())
    assert (empty["entries"], empty["first_position"], empty["last_position"]) == (0, 0, None)
    assert octavo("ledger", "show", 3, "--json").json["last_position"] is None


def test_a_stream_is_shown_with_its_terms_and_positions(octavo: Run) -> None:
    shown = octavo("ledger", "show", 2, "--json").json
    assert (shown["kind"], shown["term"], shown["first_position"], shown["last_position"]) == ("stream", 2, 3, 11)
    assert (shown["ensemble_size"], shown["write_quorum"], shown["length"]) == (3, 3, 120)
    assert [(one["term"], one["first_position"]) for one in shown["fragments"]] == [(1, 0), (2, 5)]
    assert not {"owner", "keys", "verifier", "salt"} & shown.keys()
    assert octavo("ledger", "show", 1, "--json").json["last_position"] is None
    assert (shown["entries"], "last_entry_id" in shown) == (9, False)
    printed = octavo("ledger", "show", 2).stdout.decode()
    assert "at-rest" in printed
    assert [line.split()[:3] for line in printed.splitlines()[-3:]] == [
        ["first", "position", "term"], ["0", "1", "a"], ["5", "2", "a"],
    ]  # fmt: skip
    assert str(place(1, 0)) not in printed
    assert octavo("ledger", "show", 0, "--json").json["kind"] == "ledger"
    octavo("ledger", "show", 3).failed_with_one_line(1, "ledger 3 does not exist")


@pytest.mark.parametrize("command", ["read", "tail", "recover"])
def test_a_stream_is_not_opened_as_a_ledger(octavo: Run, uri: str, command: str) -> None:
    octavo("ledger", command, 1).failed_with_one_line(1, "ledger 1 is a stream")
    assert asyncio.run(stored(uri)) == list(STORED)


def test_a_stream_is_deleted(octavo: Run, uri: str) -> None:
    assert octavo("ledger", "delete", 1).status == 0
    assert asyncio.run(stored(uri)) == [LEDGER, RESTING]


def test_a_dump_carries_streams_and_a_restore_leaves_out_the_terms_after_it(
    octavo: Run, uri: str, tmp_path: Path
) -> None:
    """Rule T1: a writer of the time after the dump may have had any of the next terms."""
    dump, restored_uri = tmp_path / "dump", f"sqlite:///{tmp_path}/restored.db"
    assert octavo("cluster", "dump", dump, "--json").json["records"] == 3
    assert octavo("cluster", "restore", dump, "--json", uri=restored_uri).json["records"] == 3
    restored = asyncio.run(stored(restored_uri))
    skipped = terms_skipped(restored[1])
    assert restored == [LEDGER, replace(OPEN, terms_skipped=skipped), replace(RESTING, terms_skipped=skipped)]
    assert asyncio.run(stored(uri)) == list(STORED)

    async def hold() -> object:
        async with await open_metadata_store(restored_uri) as store:
            return await read_hold(store)

    assert asyncio.run(hold()) is not None


def dumped_earlier(dump: Path, other: Path, age: timedelta) -> Path:
    """The same dump, made so long before."""
    writer = DumpWriter()
    with dump.open("rb") as lines, other.open("wb") as written:
        for part in read_dump(lines, str(dump)):
            match part:
                case ClusterFacts():
                    written.write(writer.begin(part._replace(dumped_at=part.dumped_at - age)))
                case DumpEnd():
                    written.write(writer.end(part.ledger_ids_stop))
                case _:
                    written.write(writer.record(part))
    return other


def test_a_later_restore_leaves_out_what_an_earlier_one_has_given_out(octavo: Run, tmp_path: Path) -> None:
    """Bookies that served the cluster restored first hold entries of its ledgers and terms (rules B5 and T1)."""
    dump = tmp_path / "dump"
    octavo("cluster", "dump", dump)
    older = dumped_earlier(dump, tmp_path / "older", timedelta(hours=1))
    uris = [f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second")]
    first = octavo("cluster", "restore", dump, "--json", uri=uris[0]).json
    second = octavo("cluster", "restore", older, "--json", uri=uris[1]).json
    assert second["first_ledger_id"] - first["first_ledger_id"] > 2**30
    (_, earlier, _), (_, later, _) = (asyncio.run(stored(uri)) for uri in uris)
    assert isinstance(earlier, StreamMetadata)
    assert isinstance(later, StreamMetadata)
    assert later.terms_skipped - earlier.terms_skipped > 3000


async def _page_out(uri: str) -> StreamMetadata:
    """Put the first fragment of the open stream into a page, with a bookie that no other fragment names."""
    fragments = (replace(OPEN.fragments[0], bookies=bookie_ids(*"pqr")), OPEN.fragments[1])
    async with await open_metadata_store(uri) as store:
        await store.delete_ledger(OPEN.ledger_id)
        await store.create_stream(replace(OPEN, fragments=fragments))
        return (await page_out(store, OPEN.ledger_id, writer_token="w")).value


def test_what_lies_in_pages_is_shown_and_counted_and_found(octavo: Run, uri: str, tmp_path: Path) -> None:
    """Rule U1: a page is a part of the metadata."""
    root = asyncio.run(_page_out(uri))
    assert (len(root.pages), len(root.fragments)) == (1, 1)
    shown = octavo("ledger", "show", 1, "--json").json
    assert [(one["first_position"], one["bookies"]) for one in shown["fragments"]] == [
        (0, ["p", "q", "r"]), (5, ["a", "b", "d"]),
    ]  # fmt: skip
    assert (shown["pages"], shown["first_position"]) == (1, 3)
    assert b"p q r" in octavo("ledger", "show", 1).stdout
    named = octavo("ledger", "list", "--bookie", "q", "--json").stdout.splitlines()
    assert [json.loads(line)["ledger_id"] for line in named] == [1]
    bundle = tmp_path / "bundle.tar.gz"
    octavo("support-bundle", "--output", bundle)
    with tarfile.open(bundle) as archive:
        member = archive.extractfile("octavo-support/ledgers.json")
        assert member is not None
        assert json.loads(member.read())["fragments"] == 5


async def _keep_books(uri: str) -> None:
    async with await open_metadata_store(uri) as store:
        current = await store.read_stream(OPEN.ledger_id)
        await store.compare_and_set_stream(replace(current.value, full_copies=FullCopies.RECORDED), current.version)


def test_what_a_stream_owes_is_shown_also_of_pages(octavo: Run, uri: str) -> None:
    """Position 3 is the first one that is kept, and what goes on owes nothing yet (rule I9)."""
    asyncio.run(_page_out(uri))
    assert b"owes" not in octavo("ledger", "show", 1).stdout
    asyncio.run(_keep_books(uri))
    shown = octavo("ledger", "show", 1, "--json").json
    assert shown["full_copies"] == "recorded"
    assert [one["debt"] for one in shown["fragments"]] == [[place(1, 3), place(1, 4)], []]
    table = octavo("ledger", "show", 1).stdout
    assert b"owes copies of" in table
    assert b"3 to 4" in table


def test_a_dump_has_exactly_the_pages_that_the_metadata_name(octavo: Run, uri: str, tmp_path: Path) -> None:
    root = asyncio.run(_page_out(uri))
    left_over = page_document(root.ledger_id, replace(root.pages[0], token="ab"))

    async def documents(where: str, *made: str) -> set[str]:
        async with await open_metadata_store(where) as store:
            for name in made:
                await store.create_document(name, b"")
            return {name async for name in store.list_documents(PAGES_PREFIX)}

    named = page_document(root.ledger_id, root.pages[0])
    assert asyncio.run(documents(uri, left_over)) == {named, left_over}
    dump, restored_uri = tmp_path / "dump", f"sqlite:///{tmp_path}/restored.db"
    assert octavo("cluster", "dump", dump, "--json").json["records"] == 4
    assert octavo("cluster", "restore", dump, "--json", uri=restored_uri).json["records"] == 4
    assert asyncio.run(documents(restored_uri)) == {named}
    restored = asyncio.run(stored(restored_uri))[1]
    assert restored == root.restored(terms_skipped(restored))


def test_a_support_bundle_counts_streams(octavo: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    octavo("support-bundle", "--output", bundle)
    with tarfile.open(bundle) as archive:
        member = archive.extractfile("octavo-support/ledgers.json")
        assert member is not None
        counted = json.loads(member.read())
    assert counted == {"ledgers": {"open": 1, "stream open": 1, "stream at-rest": 1}, "fragments": 5}
