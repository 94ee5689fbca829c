"""URIs, paths, versions and values of the ZooKeeper driver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.metadata.store.driver import Kind, ledger_key
from octavo.metadata.store.values import Version
from octavo.metadata.zookeeper.layout import (
    FOLDERS,
    KEY_DIGITS,
    Guarded,
    LedgerIdCounter,
    Paths,
    Stat,
    decode_guarded,
    decode_layout,
    decode_ledger_ids,
    encode_guarded,
    encode_layout,
    encode_ledger_ids,
    escape,
    parents_of,
    parse_credentials,
    parse_uri,
    split_version,
    unescape,
    version_of,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import ID_MAX, LedgerId


@pytest.mark.parametrize(
    ("uri", "servers", "root"),
    [
        ("zk://host", [("host", 2181)], "/octavo"),
        ("zk://host/", [("host", 2181)], "/octavo"),
        ("zk://a:1,b.example:65535/x/y-1_2.3/", [("a", 1), ("b.example", 65535)], "/x/y-1_2.3"),
        ("zk://[::1]:2182,[fe80::1%eth0]/octavo", [("::1", 2182), ("fe80::1%eth0", 2181)], "/octavo"),
    ],
)
def test_uri_names_servers_and_root(uri: str, servers: list[tuple[str, int]], root: str) -> None:
    address = parse_uri(uri)
    assert list(address.servers) == servers
    assert address.root == root
    assert address.auth_file is None


def test_uri_may_name_a_file_of_credentials() -> None:
    assert parse_uri("zk://h/r?auth_file=/etc/octavo/zk%20auth").auth_file == "/etc/octavo/zk auth"


@pytest.mark.parametrize(
    "uri",
    [
        "zk://", "zk://:2181/octavo", "zk://h:0/o", "zk://h:65536/o", "zk://h:x/o", "zk://a,,b/o", "zk://::1/o",
        "zk://a b/o", "zk://h/a//b", "zk://h/../x", "zk://h/zookeeper", "zk://h/ä", "zk://h/o?timeout=3", "zk://h/o?auth_file=",
        f"zk://{'h' * 64}:2181/o", f"zk+tls://{'h' * 64}/o", f"zk://{'ä' * 63}/o", "zk://a..b/o", "zk://.a/o",
    ],
)  # fmt: skip
def test_uri_that_makes_no_sense_is_refused_and_named(uri: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parse_uri(uri)
    assert repr(uri) in refused.value.message


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgumentError, match="OCTAVO_ZOOKEEPER_AUTH") as refused:
        parse_uri("zk://octavo:secret@host/octavo")
    assert "secret" not in refused.value.message


def test_credentials_have_a_scheme() -> None:
    assert parse_credentials(" digest:octavo:s:cret\n", "here") == ("digest", b"octavo:s:cret")
    for wrong in ("", "octavo", "digest:octavo", ":a:b", "digest:"):
        with pytest.raises(InvalidArgumentError, match="the file") as refused:
            parse_credentials(wrong, "the file")
        assert not wrong or wrong not in refused.value.message.replace("digest:user:password", "")


@given(st.integers(0, ID_MAX))
def test_path_of_a_ledger_has_its_digits_in_order(ledger_id: int) -> None:
    path = Paths("/root").node(Kind.LEDGER, ledger_key(LedgerId(ledger_id)))
    parts = path.split("/")
    assert parts[:3] == ["", "root", "ledgers"]
    assert tuple(map(len, parts[3:])) == KEY_DIGITS
    assert int("".join(parts[3:])) == ledger_id
    assert Paths("/root").record_of(path) == (Kind.LEDGER, ledger_key(LedgerId(ledger_id)))


def test_folder_has_a_thousand_children_at_most() -> None:
    assert sum(KEY_DIGITS) == len(ledger_key(LedgerId(0)))
    assert max(KEY_DIGITS[1:]) == 3
    assert int(ledger_key(LedgerId(ID_MAX))[: KEY_DIGITS[0]]) < 10_000


@pytest.mark.parametrize(
    ("kind", "key"),
    [(Kind.DOCUMENT, "logs/orders/1"), (Kind.LOCK, "a/b"), (Kind.BOOKIE, "host:3181"), (Kind.COOKIE, "b1")],
)
def test_path_tells_its_record(kind: Kind, key: str) -> None:
    paths = Paths("/a/b")
    assert paths.record_of(paths.node(kind, key)) == (kind, key)
    assert paths.record_of(paths.folder(kind)) == (kind, None)
    assert unescape(escape(key)) == key
    assert "/" not in escape(key)


def test_other_paths_tell_of_no_record() -> None:
    paths = Paths("/a")
    assert paths.record_of(paths.layout) is None
    assert paths.record_of(paths.incarnation("b1")) is None
    assert paths.record_of("/elsewhere") is None


def test_folders_are_made_after_their_parents() -> None:
    made = {""}
    for folder in FOLDERS:
        assert folder.rpartition("/")[0] in made
        made.add(folder)
    assert parents_of("/a/b/c") == ["/a", "/a/b"]
    assert parents_of("/a") == []


@given(st.integers(1, 2**62), st.integers(0, 2**31 - 1))
def test_version_holds_the_node_and_its_version(created: int, version: int) -> None:
    whole = version_of(Stat(created, version, 0))
    assert split_version(whole) == (created, version)
    assert version_of(Stat(created, version + 1, 0)) > whole
    assert version_of(Stat(created + 1, 0, 0)) > whole


def test_version_that_wrapped_at_the_server_comes_back_as_it_was() -> None:
    assert split_version(version_of(Stat(7, -5, 0))) == (7, -5)
    assert split_version(Version(7 << 32)) == (7, 0)


@given(st.binary(max_size=100))
def test_guarded_value_comes_back(value: bytes) -> None:
    stored = Guarded("guard-1", "change-1", value)
    assert decode_guarded(encode_guarded(stored), "document x") == stored


def test_damage_of_a_guarded_value_is_found_wherever_it_is() -> None:
    data = encode_guarded(Guarded("guard-1", "change-1", b"value\nof two lines"))
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(MetadataError, match="document x"):
            decode_guarded(bytes(damaged), "document x")
    for cut in range(len(data)):
        with pytest.raises(MetadataError, match="document x"):
            decode_guarded(data[:cut], "document x")


def test_layout_and_ledger_ids_come_back() -> None:
    assert decode_layout(encode_layout("c1"), "/p") == "c1"
    assert decode_ledger_ids(encode_ledger_ids(LedgerIdCounter(ID_MAX)), "/p").next_id == ID_MAX
    with pytest.raises(MetadataError, match=r"/p.*being destroyed.*cluster destroy"):
        decode_layout(encode_layout("c1", destroying=True), "/p")
    with pytest.raises(MetadataError, match="/p"):
        decode_ledger_ids(b"7", "/p")
