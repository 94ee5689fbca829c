"""What docs/metadata-format.md says is what the code does. ``pytest --rewrite`` makes the examples in it again."""

import ast
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from octavo.client.log.chain.bounds import LIST_BYTES_MAX as CHAIN_BYTES_MAX
from octavo.client.log.chain.bounds import MAKING_MAX
from octavo.client.log.documents.chain import TERMS_MAX
from octavo.client.log.documents.names import ages_document, cursors_document, list_document, lock_name
from octavo.client.log.documents.states import LogState
from octavo.gateway.groups.entries import MARK
from octavo.gateway.leading.gateways import gateway_lock, node_lock
from octavo.gateway.records.names import anchor_document, page_document, snapshot_document
from octavo.gateway.records.snapshot import PAGE_PRODUCERS
from octavo.gateway.topics.catalogue import LOCK as TOPICS_LOCK
from octavo.gateway.topics.changes import DOCUMENT as TOPIC_CHANGES
from octavo.gateway.topics.document import TopicState, topic_document
from octavo.gateway.topics.producer_ids import DOCUMENT as PRODUCER_IDS
from octavo.metadata.cluster.principals import DOCUMENT as PRINCIPALS
from octavo.metadata.cluster.principals import PRINCIPALS_MAX
from octavo.metadata.cluster.registration import BookieState
from octavo.metadata.cluster.repair_states import DOCUMENT as CONDITIONS
from octavo.metadata.cluster.repair_states import REASON_CHARACTERS_MAX, Condition
from octavo.metadata.encoding import encode_object
from octavo.metadata.ledger.checks import CLIENT_NAME_CHARACTERS_MAX, CUSTOM_METADATA_BYTES_MAX
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LedgerState, SyncMode
from octavo.metadata.sqlite import change_feed, database
from octavo.metadata.sqlite.store import open_sqlite_store
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.metadata.store.driver import Kind
from octavo.metadata.stream import pages
from octavo.metadata.stream.model import StreamState
from octavo.metadata.updates.cluster_release import DOCUMENT as RELEASE
from octavo.metadata.updates.garbage_hold import DOCUMENT as GARBAGE_HOLD
from octavo.metadata.zookeeper.layout import FOLDERS, VALUE_BYTES_MAX, Paths, Stat, version_of
from octavo.pipeline.base.datasets import Tags
from octavo.pipeline.base.manifest import RECENT_MAX, SEGMENT_LEDGERS_MAX
from octavo.protocol.entries import Digest
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId
from octavo.repair.base import balance_document, documents, waits
from octavo.repair.base.planning import JOBS_MAX, BlockedClass, Why
from octavo.security.roles import Role
from support.metadata_examples import EXAMPLES, LEDGER, LOG_ID, PAGE, PAGE_TOKEN, REGISTRATION, Example, token_of
from support.tree import ROOT, library_modules, syntax_tree

PAGE_PATH = ROOT / "docs" / "metadata-format.md"
TEXT = PAGE_PATH.read_text(encoding="utf-8")
COLUMNS = 96
FENCE = re.compile(r"^```([\w-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CITED = re.compile(r"`([\w/]+\.py)(?:: ([\w.]+))?`")


class Section(NamedTuple):
    """A part of the page, from one heading to the next."""

    title: str
    text: str

    @property
    def modules(self) -> set[str]:
        return {path for path, _ in CITED.findall(self.text)}

    @property
    def examples(self) -> list[str]:
        return [name for name, _ in FENCE.findall(self.text) if name in EXAMPLES]

    @property
    def tables(self) -> list[list[list[str]]]:
        """The rows of each table, the head first."""
        found: list[list[list[str]]] = [[]]
        for line in self.text.splitlines():
            if line.startswith("|"):
                found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            elif found[-1]:
                found.append([])
        return [[rows[0], *rows[2:]] for rows in found if rows]

    @property
    def fields(self) -> dict[str, list[str]]:
        """The rows of the table of fields, by the names of the fields."""
        rows = [row for table in self.tables if table[0][0] == "field" for row in table[1:]]
        return {name: row for row in rows for name in re.findall(r"`([^`]+)`", row[0])}

    @property
    def lists(self) -> dict[str, list[list[str]]]:
        """The rows of each table of a list with a fixed number of items, by its path."""
        heads = [(re.fullmatch(r"in `(.+)`", table[0][0]), table) for table in self.tables]
        return {found[1]: table[1:] for found, table in heads if found is not None}


@cache
def sections() -> list[Section]:
    parts = re.split(r"^##+ (.+)$", TEXT, flags=re.MULTILINE)
    return [Section(title, text) for title, text in zip(parts[1::2], parts[2::2], strict=True)]


def section_of(example: str) -> Section:
    (section,) = [section for section in sections() if example in section.examples]
    return section


def broken(stored: bytes) -> str:
    """A stored value as the page shows it."""
    lines = stored.decode("ascii").splitlines()
    return "".join(line[at : at + COLUMNS] + "\n" for line in lines for at in range(0, len(line), COLUMNS))


def as_hex(value: bytes) -> str:
    digits = value.hex()
    return "".join(digits[at : at + 64] + "\n" for at in range(0, len(digits), 64))


RELEASE_LINE = EXAMPLES["release"].stored
BLOCKS = {
    **{name: broken(example.stored) for name, example in EXAMPLES.items()},
    "release-hex": as_hex(RELEASE_LINE),
    "release-covered-hex": as_hex(re.sub(rb'"crc32c":"\w+",', b"", RELEASE_LINE)),
    "zookeeper-version": f"{version_of(Stat(created=7, version=2, owner=0)):016x}\n",
    "sqlite-schema": database.SCHEMA.lstrip(),
    "sqlite-changes": "".join(f"{statement};\n" for statement in change_feed.CHANGES_SCHEMA),
}
"""What stands in each block of the page."""


def test_examples_are_what_is_written(*, rewrite: bool) -> None:
    if rewrite:
        PAGE_PATH.write_text(FENCE.sub(lambda found: f"```{found[1]}\n{BLOCKS[found[1]]}```", TEXT), encoding="utf-8")
        return
    assert dict(FENCE.findall(TEXT)) == BLOCKS, "if that is intended, run with --rewrite and review the page"
    assert len(FENCE.findall(TEXT)) == len(BLOCKS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_read_as_what_they_are(name: str) -> None:
    example = EXAMPLES[name]
    assert example.decode(example.stored) == example.value


# --- fields -----------------------------------------------------------------------------------------------------------


def paths_in(value: Any, maps: set[str], prefix: str = "") -> Iterator[str]:
    """The path of every field in a decoded example, without what is in maps, whose keys are data."""
    for name, inner in value.items():
        path = prefix + name
        yield path
        if isinstance(inner, dict) and path not in maps:
            yield from paths_in(inner, maps, f"{path}.")
        elif isinstance(inner, list):
            for item in inner:
                if isinstance(item, dict):
                    yield from paths_in(item, maps, f"{path}[].")


def objects_of(name: str) -> list[dict[str, Any]]:
    """The JSON objects in an example: of most, one. What a guarded node holds is another document."""
    lines = [line for line in EXAMPLES[name].stored.splitlines() if line != MARK.rstrip()]
    return [json.loads(line) for line in (lines[:1] if name == "zookeeper-guarded" else lines)]


SEVERAL = {"Dump", "Entry of a coordinator"}
"""Sections about several objects, one after another, that are no document of the metadata store."""

DOCUMENT_SECTIONS = [section for section in sections() if section.examples]
TITLES = [section.title for section in DOCUMENT_SECTIONS]


@pytest.mark.parametrize("section", DOCUMENT_SECTIONS, ids=TITLES)
def test_each_field_of_the_examples_has_a_row_and_each_row_is_in_an_example(section: Section) -> None:
    maps = {name for name, row in section.fields.items() if row[1] == "map"}
    seen = {path for name in section.examples for value in objects_of(name) for path in paths_in(value, maps)}
    common = set() if "format" in section.fields else {"format", "crc32c"}
    assert set(section.fields) == seen - common


@pytest.mark.parametrize("section", DOCUMENT_SECTIONS, ids=TITLES)
def test_a_field_that_may_be_missing_is_left_out_of_an_example_and_no_other_is(section: Section) -> None:
    """A field that every example of a document has need not be there always, but one that an example leaves out is
    marked. Fields that the code reads as ``added_later`` are marked, too."""
    if section.title in SEVERAL:
        return  # each of its objects has other fields
    optional = {name.rpartition(".")[2] for name, row in section.fields.items() if row[2]}
    for name in section.examples:
        for value in objects_of(name):
            assert {field for field in section.fields if "." not in field} - optional <= value.keys()
    for path in section.modules & FIELDS_BY_MODULE.keys():
        names = {name.rpartition(".")[2] for name in section.fields}
        assert (FIELDS_BY_MODULE[path].optional & names) - optional - ALWAYS.get(section.title, set()) == set()


ALWAYS = {
    "Stream": {"debt"},
}
"""Fields that a module reads as missing of one document, and that another one of it has."""


def items_at(value: Any, path: str) -> list[Any]:
    """The lists at a path such as ``stream.page_references[]`` or ``cursors{}``."""
    for part in path.removesuffix("[]").removesuffix("{}").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return []
    return list(value.values()) if path.endswith("{}") else value if path.endswith("[]") else [value]


LISTS = [(section, path) for section in DOCUMENT_SECTIONS for path in section.lists]
LIST_IDS = [f"{section.title}: {path}" for section, path in LISTS]


def is_of_type(value: Any, kind: str) -> bool:
    """Whether a value is of a type as the page names it."""
    types: dict[str, tuple[type, ...]] = {
        "integer": (int,), "ms": (int,), "number": (int, float), "text": (str,), "base64": (str,), "instant": (str,),
        "flag": (bool,), "list": (list,), "map": (dict,), "object": (dict,), "null": (type(None),),
    }  # fmt: skip
    return any(type(value) in types[one] for one in kind.split(" or "))


@pytest.mark.parametrize(("section", "path"), LISTS, ids=LIST_IDS)
def test_the_items_of_a_list_are_those_of_its_table(section: Section, path: str) -> None:
    rows = section.lists[path]
    assert [row[0] for row in rows] == [str(at) for at in range(len(rows))]
    found = [item for name in section.examples for value in objects_of(name) for item in items_at(value, path)]
    assert found
    for item in found:
        assert len(item) == len(rows)
        assert [row for row, one in zip(rows, item, strict=True) if not is_of_type(one, row[1])] == []
    assert path.removesuffix("[]").removesuffix("{}") in section.fields


@pytest.mark.parametrize("section", DOCUMENT_SECTIONS, ids=TITLES)
def test_values_are_of_the_types_in_the_table(section: Section) -> None:
    for name in section.examples:
        for value in objects_of(name):
            for field, row in section.fields.items():
                kinds = row[1].split(", ")
                names = re.findall(r"`([^`]+)`", row[0])
                kind = kinds[names.index(field)] if len(kinds) > 1 else row[1]
                assert all(is_of_type(one, kind) for one in values_at(value, field)), field


def values_at(value: Any, path: str) -> list[Any]:
    """All values of a field such as ``stream.keys[].salt``."""
    found = [value]
    for part in path.split("."):
        found = [one[part.removesuffix("[]")] for one in found if part.removesuffix("[]") in one]
        if part.endswith("[]"):
            found = [item for one in found for item in one]
    return found


def with_checksum(fields: dict[str, Any]) -> bytes:
    """The stored form of changed fields of an example."""
    if "crc32c" not in fields:
        return json.dumps(fields).encode()
    rest = {name: value for name, value in fields.items() if name not in {"crc32c", "format"}}
    return encode_object(rest, format_number=fields["format"])


@pytest.mark.parametrize(("section", "path"), LISTS, ids=LIST_IDS)
def test_a_list_with_a_further_item_is_refused_or_kept_as_the_page_says(section: Section, path: str) -> None:
    name = next(name for name in section.examples if items_at(objects_of(name)[0], path))
    example, (fields, *others) = EXAMPLES[name], objects_of(name)
    for item in items_at(fields, path):
        item.append(17)
    changed = with_checksum(fields) if not others else MARK + with_checksum(fields)
    if path == "stream.page_references[]":
        assert example.encode(example.decode(changed)) == changed
        return
    with pytest.raises(MetadataError):
        example.decode(changed)


# --- no field, encoder or writer of documents is forgotten ------------------------------------------------------------

ENCODERS = {"encode_object", "encode_texts", "with_checksum"}
READS = {"get", "optional", "added_later", "bytes_of", "instant"}
OWN_JSON = {"pipeline/base/manifest.py", "metadata/updates/dump.py"}
"""Modules that write JSON without :mod:`octavo.metadata.encoding`."""


class ModuleFields(NamedTuple):
    """The names of fields that a module writes or reads, and those of them that it does without."""

    names: set[str]
    optional: set[str]


def fields_of(tree: ast.Module, *, own_json: bool = False) -> ModuleFields:
    names: set[str] = set()
    optional: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in READS
            and node.args
        ):
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                names.add(node.args[0].value)
                if node.func.attr == "added_later":
                    optional.add(node.args[0].value)
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and isinstance(node.ops[0], ast.In):
            if isinstance(node.left.value, str):
                names.add(node.left.value)
                optional.add(node.left.value)
        elif isinstance(node, ast.Dict):
            names |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if isinstance(node.slice.value, str) and (own_json or isinstance(node.ctx, ast.Store)):
                names.add(node.slice.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r'"(\w+)":', node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            names |= set(re.findall(r'"(\w+)":', node.value.decode()))
    return ModuleFields({name for name in names if re.fullmatch(r"[a-z]\w*", name)}, optional)


def encoders_of(tree: ast.Module) -> set[str]:
    """The functions and methods of a module that make a stored form."""
    found = set()
    for outer in tree.body:
        functions = outer.body if isinstance(outer, ast.ClassDef) else [outer]
        prefix = f"{outer.name}." if isinstance(outer, ast.ClassDef) else ""
        for function in functions:
            calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            if isinstance(function, ast.FunctionDef) and any(
                isinstance(call, ast.Name) and call.id in ENCODERS for call in calls
            ):
                found.add(prefix + function.name)
    return found


STORES = {"create_document", "put_document", "compare_and_set_document"}
ABOUT_DOCUMENTS = re.compile(rf"\b(?:{'|'.join(ENCODERS | STORES)})\(")
TREES = {
    path.as_posix(): syntax_tree(path)
    for name, path in library_modules().items()
    if name != "octavo.metadata.encoding"
    and (path.as_posix() in OWN_JSON or ABOUT_DOCUMENTS.search((ROOT / path).read_text("utf-8")))
}
"""The modules that make or store a document."""

FIELDS_BY_MODULE = {
    path: fields_of(tree, own_json=path in OWN_JSON)
    for path, tree in TREES.items()
    if path in OWN_JSON or encoders_of(tree)
}


def test_every_module_that_makes_a_stored_form_is_found() -> None:
    assert len(FIELDS_BY_MODULE) >= 15
    assert "fragments" in FIELDS_BY_MODULE["metadata/ledger/model.py"].names
    assert "debt" in FIELDS_BY_MODULE["metadata/ledger/model.py"].optional
    assert fields_of(ast.parse('encode_object({"new": 1, **({} if x else {"newer": x})})')).names == {"new", "newer"}
    assert fields_of(ast.parse('reader.added_later("new", int, 0)')).optional == {"new"}


@pytest.mark.parametrize("path", FIELDS_BY_MODULE)
def test_every_field_that_a_module_writes_or_reads_has_a_row(path: str) -> None:
    about = [section for section in sections() if path in section.modules]
    named = {name.rpartition(".")[2] for section in about for name in section.fields} | {"format", "crc32c"}
    assert FIELDS_BY_MODULE[path].names - named == set()


def test_every_encoder_is_named() -> None:
    cited = set(CITED.findall(TEXT))
    encoders = {
        (path, name)
        for path, tree in TREES.items()
        for name in encoders_of(tree)
        if not name.rpartition(".")[2].startswith("_")
    }
    by_others = {("metadata/stream/pages.py", "extended_page")}
    assert encoders - cited - by_others == set()
    assert {path for path in FIELDS_BY_MODULE if path not in {path for path, _ in cited}} == set()


def test_every_module_that_stores_a_document_is_named() -> None:
    store = {"metadata/store/store.py"}
    storing = {
        path
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STORES
    }
    (section,) = [section for section in sections() if section.title == "Every document"]
    paragraph = section.text.partition("Modules that store documents:")[2]
    assert {path for path, _ in CITED.findall(paragraph)} == storing - store


# --- the table of all documents ---------------------------------------------------------------------------------------


def documents_table() -> dict[str, list[str]]:
    """The rows of the table of all documents, by the headings that they link to."""
    (section,) = [section for section in sections() if section.title == "Every document"]
    return {row[0]: row for row in section.tables[0][1:]}


def test_the_table_has_every_document() -> None:
    rows = {
        f"[{section.title[0].lower()}{section.title[1:]}](#{anchor_of(section.title)})" for section in DOCUMENT_SECTIONS
    }
    common = {"[guarded nodes](#guarded-nodes)"}
    assert documents_table().keys() | common == {
        re.sub(r"\[layout of zookeeper\]", "[layout of ZooKeeper]", row) for row in rows
    }


def anchor_of(title: str) -> str:
    return title.lower().replace(" ", "-")


def row_of(name: str) -> list[str]:
    anchor = anchor_of(section_of(name).title)
    return next(row for label, row in documents_table().items() if label.endswith(f"(#{anchor})"))


PLAIN = [name for name in EXAMPLES if name not in {"zookeeper-guarded", "dump", "group-entries"}]


@pytest.mark.parametrize("name", PLAIN)
def test_formats_are_those_of_the_table(name: str) -> None:
    # A format that only some documents have stands with the field that brings it: "2; 3 with `keys`".
    formats = re.findall(r"(\d+)(?: with `(\w+)`)?", row_of(name)[2])
    example = objects_of(name)[0]
    assert str(example["format"]) in {number for number, field in formats if not field or field in example}


@pytest.mark.parametrize("name", PLAIN)
def test_unknown_fields_are_kept_or_dropped_as_the_table_says(name: str) -> None:
    example, (fields,) = EXAMPLES[name], objects_of(name)
    changed = with_checksum({**fields, "zz_new": [1]})
    kept = b'"zz_new"' in example.encode(example.decode(changed))
    assert row_of(name)[3] == ("kept" if kept else "dropped")


NAMES = {
    "stream/ID/REVISION-TOKEN": pages.page_document(LEDGER.ledger_id, PAGE.reference)
    .replace("/9/", "/ID/").replace(PAGE.reference.name, "REVISION-TOKEN"),
    "log-cursors/LOG-ID": cursors_document("LOG-ID"),
    "log-ages/LOG-ID": ages_document("LOG-ID"),
    "logs/LOG-ID": lock_name("LOG-ID"),
    "logs/nNAME": list_document("NAME"),
    "logs/norders_seu": list_document("orders/eu"),
    "kafka/topics/TOPIC": topic_document("TOPIC"),
    "kafka/producer-ids": PRODUCER_IDS,
    "kafka/nodes/N": node_lock(1).replace("1", "N"),
    "kafka/gateways/N": gateway_lock(1).replace("1", "N"),
    "kafka/topics": TOPICS_LOCK,
    "kafka/topic-changes": TOPIC_CHANGES,
    "kafka/anchors/LOG-ID": anchor_document("LOG-ID"),
    "kafka/producers/LOG-ID/POSITION": snapshot_document("LOG-ID", 812).replace(f"{812:019}", "POSITION"),
    "kafka/producers/LOG-ID/POSITION-NUMBER": page_document("LOG-ID", 812, 7)
    .replace(f"{812:019}-7", "POSITION-NUMBER"),
    "repair/bookies": CONDITIONS,
    "repair/work/HEX": documents.work_name(BookieId("b1")).replace(b"b1".hex(), "HEX"),
    "repair/done/HEX": documents.done_name(BookieId("b1")).replace(b"b1".hex(), "HEX"),
    "repair/blocked/HEX": documents.blocked_name(BookieId("b1")).replace(b"b1".hex(), "HEX"),
    "repair/accepted/ID": documents.accepted_name(LEDGER.ledger_id).replace("9", "ID"),
    "repair/accepted/ID-TERM": documents.accepted_name(LEDGER.ledger_id, 3).replace("9-3", "ID-TERM"),
    "repair/summary": documents.SUMMARY,
    "repair/checks": documents.CHECKS,
    "repair/balance": balance_document.DOCUMENT,
    "repair/auditor": documents.AUDITOR_LOCK,
    "repair/clock": waits.DOCUMENT,
    "cluster/version": RELEASE,
    "cluster/garbage-hold": GARBAGE_HOLD,
    "security/principals": PRINCIPALS,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_documents_and_locks_are_those_of_the_code(name: str) -> None:
    assert NAMES[name] == name
    assert re.search(rf"`(document:|lock:)?{re.escape(name)}`", TEXT)


@pytest.mark.parametrize(
    ("titles", "values"),
    [
        (["Ledger"], LedgerState), (["Ledger"], SyncMode), (["Ledger"], FullCopies), (["Ledger"], Digest),
        (["Stream"], StreamState), (["List of a chain", "Log that is a stream"], LogState),
        (["Registration"], [state for state in BookieState if state is not BookieState.UNAVAILABLE]),
        (["Conditions of bookies"], Condition), (["Plan"], Why), (["Report"], BlockedClass), (["Principals"], Role),
        (["Topic"], TopicState),
    ],
)  # fmt: skip
def test_every_value_of_an_enumeration_is_named(titles: list[str], values: Any) -> None:
    text = "".join(section.text for section in sections() if section.title in titles)
    assert [value.value for value in values if f"`{value.value}`" not in text] == []


def test_keys_of_custom_metadata_are_named() -> None:
    texts = [path.read_text("utf-8") for path in map(ROOT.joinpath, library_modules().values())]
    keys = {key for text in texts for key in re.findall(r'^[A-Z_]+_KEY(?:: Final)? = "(octavo\.[\w.-]+)"', text, re.M)}
    keys |= {value for name, value in vars(Tags).items() if name.isupper()}
    assert "octavo.log" in keys
    (section,) = [section for section in sections() if section.title == "Ledger"]
    assert {key for key in keys if f"`{key}`" not in section.text} == set()


# --- where it lies ----------------------------------------------------------------------------------------------------


def test_keys_and_nodes_of_records_are_those_of_the_code() -> None:
    (section,) = [section for section in sections() if section.title == "Where it lies"]
    rows = [[cell.strip("`") for cell in row] for row in section.tables[0][1:]]
    assert [row[0] for row in rows] == [kind.value for kind in Kind]
    for kind, key, node, _ in rows:
        assert Paths("").node(Kind(kind), key) == f"/{node}"


def test_nodes_of_zookeeper_are_listed() -> None:
    (section,) = [section for section in sections() if section.title == "ZooKeeper"]
    listed = {name for row in section.tables[0][1:] for name in re.findall(r"`([^`]+)`", row[0])}
    paths = Paths("")
    singles = {path.removeprefix("/") for path in (paths.layout, paths.ledger_ids, paths.confirmation)}
    assert listed == (set(FOLDERS) - {"bookies"}) | singles | {"waiters"}
    assert paths.folder(Kind.WAITER) == "/waiters"


async def test_a_sqlite_file_holds_the_stored_forms_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with await open_sqlite_store(path, create=True) as store:
        while await store.allocate_ledger_id() < LEDGER.ledger_id:
            pass
        await store.create_ledger(LEDGER)
        await store.create_document(RELEASE, RELEASE_LINE)
        await store.register_bookie(REGISTRATION)
        await store.lock(documents.AUDITOR_LOCK, "b1")
        with closing(sqlite3.connect(path)) as file:
            rows = file.execute("SELECT kind, key, value, session IS NULL FROM records ORDER BY kind, key").fetchall()
            number, version = (
                file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
    assert rows == [
        ("bookie", "b1", EXAMPLES["registration"].stored, 0),
        ("document", "cluster/version", RELEASE_LINE, 1),
        ("ledger", "0000000000000000009", EXAMPLES["ledger"].stored, 1),
        ("lock", "repair/auditor", b"b1", 0),
    ]
    assert f"`application_id` {number} (`OCTV`) and\n`user_version` {version}" in TEXT


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_page_of_a_stream_is_named_by_its_contents() -> None:
    assert PAGE.reference.token == token_of(PAGE.value)
    assert PAGE.reference.name == "0-" + token_of(PAGE.value)
    example: Example = EXAMPLES["stream-page"]
    assert example.stored == PAGE.value


@pytest.mark.parametrize(
    "sentence",
    [
        f"No value has more than {VALUE_BYTES_MAX:,} bytes",
        f"A document has at most {DOCUMENT_BYTES_MAX:,} bytes",
        f"have at most {CUSTOM_METADATA_BYTES_MAX:,} bytes, keys and values together",
        f"name of that client, at most {CLIENT_NAME_CHARACTERS_MAX} characters",
        f"The tail has at most {pages.TAIL_BYTES_MAX:,} bytes",
        f"With more than {pages.TAIL_FRAGMENTS_MAX} fragments, or {pages.TAIL_BYTES_DUE:,} bytes",
        f"in the background, {pages.MOVED_FRAGMENTS_MAX} at a time",
        f"At most {pages.PAGE_FRAGMENTS_MAX:,} fragments, and {pages.PAGE_BYTES_MAX:,} bytes",
        f"ledgers that candidates are about to create (rule L1). At most {MAKING_MAX}",
        f"the latest {TERMS_MAX} terms",
        f"From {CHAIN_BYTES_MAX:,} bytes on",
        f"reason, at most {REASON_CHARACTERS_MAX} characters",
        f"At most {JOBS_MAX:,} jobs",
        f"Without bookies, and with short reasons, where {documents.LIST_BYTES_MAX:,} bytes are used up",
        f"the first {documents.BLOCKED_MAX:,} of them, in at most {documents.LIST_BYTES_MAX:,} bytes",
        f"id of a bookie to a list, in at most {documents.LIST_BYTES_MAX // 2:,} bytes",
        f"Ledgers that an operator wants checked, at most {documents.CHECKS_MAX:,}",
        f"Who may connect to bookies, at most {PRINCIPALS_MAX:,}",
        f"The producers of a partition, at most {PAGE_PRODUCERS:,} in a page",
        f"the ledgers published last, in order. At most {RECENT_MAX:,}",
        f"as in the head. At most {SEGMENT_LEDGERS_MAX:,}",
    ],
)
def test_limits_in_the_text_are_those_of_the_code(sentence: str) -> None:
    assert sentence in " ".join(TEXT.split())


def test_ids_in_the_examples_are_of_the_form_that_the_text_says() -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", LOG_ID)
    assert re.fullmatch(r"[0-9a-f]{32}", PAGE_TOKEN)
