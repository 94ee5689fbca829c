"""The messages written out give and take the bytes that aiozk's classes do."""

import struct

import pytest
from aiozk import protocol
from aiozk.protocol.stat import Stat as AiozkStat
from hypothesis import given
from hypothesis import strategies as st
from octavo.metadata.zookeeper.fast_messages import CreateMessage, Transaction, stat_at
from octavo.metadata.zookeeper.layout import Stat
from octavo.metadata.zookeeper.messages import (
    FOR_CREATOR,
    OPEN_TO_ALL,
    Answer,
    Node,
    check,
    create,
    delete,
    failed_part,
    failure_of,
    get,
    multi,
    set_value,
)

paths = st.text(min_size=1, max_size=40).map(lambda name: f"/{name}").filter(lambda path: path.isprintable())
acls = st.sampled_from([OPEN_TO_ALL, FOR_CREATOR])


def aiozk_create(path: str, value: bytes, acl: list[object], *, ephemeral: bool) -> protocol.Create2Request:
    message = protocol.Create2Request(path=path, data=value, acl=acl)
    message.set_flags(ephemeral=ephemeral)
    return message


@given(paths, st.binary(max_size=300), acls, st.booleans(), st.integers(1, 2**31 - 1))
def test_create_is_the_message_of_aiozk(path: str, value: bytes, acl: object, ephemeral: bool, xid: int) -> None:
    assert acl in {OPEN_TO_ALL, FOR_CREATOR}
    entries = (OPEN_TO_ALL if acl is OPEN_TO_ALL else FOR_CREATOR).entries
    ours = CreateMessage(path, value, OPEN_TO_ALL if acl is OPEN_TO_ALL else FOR_CREATOR, ephemeral=ephemeral)
    theirs = aiozk_create(path, value, list(entries), ephemeral=ephemeral)
    assert ours.serialize(xid) == theirs.serialize(xid)
    assert ours.serialize() == theirs.serialize()


def test_transaction_is_the_message_of_aiozk() -> None:
    requests = [create("/a", b"1", OPEN_TO_ALL), set_value("/b", b"22", 3), delete("/c", 4), check("/d", 5)]
    theirs = protocol.TransactionRequest()
    theirs.add(aiozk_create("/a", b"1", list(OPEN_TO_ALL.entries), ephemeral=False))
    for request in requests[1:]:
        theirs.add(request.message)
    assert multi(*requests).payload(9) == theirs.serialize(9)
    assert Transaction([request.message for request in requests]).serialize() == theirs.serialize()


@given(st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 11))
def test_what_is_known_of_a_node_is_read_as_by_aiozk(fields: tuple[int, ...]) -> None:
    body = b"before" + struct.pack("!qqqqiiiqiiq", *fields)
    theirs, _ = AiozkStat.parse(body, 6)
    assert stat_at(body, 6) == Stat(theirs.created_zxid, theirs.version, theirs.ephemeral_owner)


@pytest.mark.parametrize(("length", "value"), [(struct.pack("!i", 3) + b"abc", b"abc"), (struct.pack("!i", -1), b"")])
def test_node_is_read_also_without_a_value(length: bytes, value: bytes) -> None:
    stat = struct.pack("!qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    assert get("/a").parse(length + stat) == Node(value, Stat(1, 5, 8))


def test_answer_to_a_transaction_tells_of_each_part() -> None:
    stat = struct.pack("!qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    end = struct.pack("!i?i", -1, True, -1)
    created = struct.pack("!i?i", 15, False, 0) + struct.pack("!i", 2) + b"/a" + stat
    changed = struct.pack("!i?i", 5, False, 0) + stat
    deleted = struct.pack("!i?i", 2, False, 0)
    requests = (create("/a", b"", OPEN_TO_ALL), set_value("/b", b"", 0), delete("/c", 0))
    parts = multi(*requests).parse(created + changed + deleted + end)
    assert parts == [Answer(0, Stat(1, 5, 8)), Answer(0, Stat(1, 5, 8)), Answer(0)]
    assert failed_part(parts) is None
    assert failure_of(parts) == 0


def test_failed_transaction_tells_which_part_was_the_reason() -> None:
    parts = [struct.pack("!i?ii", -1, False, code, code) for code in (0, -110, -2)]
    answers = multi(*(create(path, b"", OPEN_TO_ALL) for path in ("/a", "/b", "/c"))).parse(
        b"".join(parts) + struct.pack("!i?i", -1, True, -1)
    )
    assert failed_part(answers) == 1
    assert failure_of(answers) == -110
