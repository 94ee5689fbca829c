"""The audit log: which events it holds, that it cannot be flooded, how it is rotated, and what it never holds."""

# ruff: noqa: ASYNC240 - small files of the tests

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from octavo.bookie.admin.http_messages import HttpError, HttpRequest
from octavo.metadata import open_metadata_store
from octavo.protocol.errors import OctavoError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Authenticate, LacAnswer, ReadFlag, ReadLac
from octavo.security.audit import Audit, AuditFile
from octavo.security.roles import Role
from octavo.security.scram import MECHANISM
from support.admin import ask, attended_bookie
from support.clusters.principals import DOCUMENTS, GUARDED, KEYS, PRINCIPALS, raw, set_principals
from support.clusters.tls_bookies import Cluster, cluster_of
from support.metadata.memory_stores import memory_uri
from support.raw_client import PASSWORD, add, key_of, read, seal
from support.waiting import eventually, wait_until

LEDGER = 7


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(path: Path) -> list[str]:
    return [line["event"] for line in lines(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@asynccontextmanager
async def audited(path: Path) -> AsyncIterator[tuple[Cluster, Audit]]:
    """A bookie that requires authentication, with an audit log."""
    audit = Audit(AuditFile(path))
    audit.start()
    async with cluster_of(GUARDED, documents=DOCUMENTS, audit=audit) as cluster:
        yield cluster, audit
    await audit.stop()


async def written(audit: Audit, path: Path, count: int) -> list[dict[str, Any]]:
    await eventually(lambda: audit.lines >= count, f"{count} lines")
    return lines(path)


async def test_it_tells_who_was_known_fenced_and_was_refused(path: Path) -> None:
    async with audited(path) as (cluster, audit):
        (bookie,) = cluster.bookies
        async with raw(bookie, Role.APPEND) as writer:
            assert not isinstance(await writer.ask(add(LEDGER, seal(LEDGER, 0, [b"payload"]))), OctavoError)
            for _ in range(2):
                fence = ReadLac(LEDGER, key_of(LEDGER), ReadFlag.FENCE, 0, None, 0, 0, 0)
                assert isinstance(await writer.ask(fence), LacAnswer)
        async with raw(bookie, Role.OBSERVE) as curious:
            for first in range(5):
                assert isinstance(await curious.ask(read(LEDGER, first, 9)), UnauthorizedError)
        async with raw(bookie) as stranger:
            await stranger.ask(Authenticate(MECHANISM, "the-admin", bytes(32)))
            stranger.send(Authenticate(MECHANISM, "the-admin", bytes(32)))
            await stranger.receive()
        await set_principals(cluster, PRINCIPALS.without("the-repair"))
        found = await written(audit, path, 7)
    start, known, fence_line, observer, refusal, wrong_key, changed = found[:7]
    assert (start["event"], start["auth"], start["tls"], start["bookie"]) == ("start", "required", "off", "b1")
    assert (known["event"], known["principal"], known["by"], known["outcome"]) == (
        "authenticate",
        "the-append",
        "key",
        "ok",
    )
    assert known["peer"].startswith("127.0.0.1:")
    assert (fence_line["event"], fence_line["principal"], fence_line["ledger"]) == ("fence", "the-append", LEDGER)
    assert observer["principal"] == "the-observe"
    assert (refusal["event"], refusal["reason"], refusal["operation"]) == ("request", "role", "READ")
    assert (wrong_key["event"], wrong_key["outcome"], wrong_key["name"]) == ("authenticate", "refused", "the-admin")
    assert (changed["event"], changed["name"], changed["change"]) == ("principal_changed", "the-repair", "removed")
    (rest,) = lines(path)[7:]
    assert (rest["reason"], rest["count"]) == ("role", 4), "four more refusals like the first, told at the end"


async def test_it_tells_the_term_of_a_fence_that_ends_one(path: Path) -> None:
    async with audited(path) as (cluster, audit):
        async with raw(cluster.bookies[0], Role.APPEND) as writer:
            for term in (0, 3, 2):
                fence = ReadLac(LEDGER, key_of(LEDGER), ReadFlag.FENCE, term, None, 0, 0, 0)
                assert isinstance(await writer.ask(fence), LacAnswer)
        found = await written(audit, path, 4)
    assert [line.get("term") for line in found if line["event"] == "fence"] == [None, 3], "a late fence ends nothing"


async def test_it_tells_of_deletions_and_of_what_administrators_do(path: Path, tmp_path: Path) -> None:
    audit = Audit(AuditFile(path))
    audit.start()
    async with (
        await open_metadata_store(memory_uri("audited"), create=True) as store,
        attended_bookie(tmp_path / "b", store, audit=audit) as (bookie, attendant),
    ):
        wanted = {"read_only": True, "reason": "moving"}
        answer = await ask(tmp_path / "b" / "admin.sock", "POST", "/api/v1/bookie/read-only", wanted)
        assert answer.status == 200
        assert (await ask(tmp_path / "b" / "admin.sock", "GET", "/healthz")).status == 200
        headers = {"content-type": "application/json", "host": "localhost"}
        with pytest.raises(HttpError):
            await attendant.answer(
                HttpRequest(
                    method="POST", target="/api/v1/bookie/read-only", headers=headers, body=b"{}", trusted=False
                )
            )
        await bookie.service.storage.writer.delete(LedgerId(LEDGER))
        found = await written(audit, path, 4)
    await audit.stop()
    by_event = {(line["event"], line["outcome"]): line for line in found}
    assert len(found) == len(by_event) == 4, "observing is no event"
    assert by_event["admin", "ok"]["path"] == "/api/v1/bookie/read-only"
    assert by_event["admin", "ok"]["values"] == {"read_only": "True", "reason": "moving"}
    assert by_event["admin", "refused"]["reason"] == "not on the socket"
    assert by_event["delete", "ok"]["ledger"] == LEDGER


async def test_secrets_and_payloads_are_in_no_line(path: Path) -> None:
    async with audited(path) as (cluster, audit):
        (bookie,) = cluster.bookies
        async with raw(bookie, Role.APPEND) as writer:
            await writer.ask(add(LEDGER, seal(LEDGER, 0, [b"the payload"]), key=key_of(LEDGER)))
            await writer.ask(read(LEDGER, 0, 9, fence=True))
            await writer.ask(add(LEDGER, seal(LEDGER, 1, [b"the payload"]), key=b"wrong key"))
        await written(audit, path, 3)
    said = path.read_bytes()
    assert b"fence" in said
    for secret in (b"the payload", PASSWORD, key_of(LEDGER), key_of(LEDGER).hex().encode(), b"wrong key"):
        assert secret not in said
    for key in KEYS.values():
        assert key.to_text().partition(":")[2].encode() not in said
        assert key.secret.hex().encode() not in said


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_a_full_file_is_renamed_between_two_lines_and_old_ones_go(path: Path) -> None:
    audit = Audit(AuditFile(path, bytes_max=1000, files_max=3))
    audit.start()
    for number in range(100):
        audit.note("test", number=number)
    await audit.stop()
    names = sorted(found.name for found in path.parent.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    kept = [line["number"] for name in reversed(names) for line in lines(path.parent / name)]
    assert kept == list(range(kept[0], 100)), "the latest, none twice, none torn"
    assert all((path.parent / name).stat().st_size <= 1000 for name in names)
    assert path.stat().st_mode & 0o777 == 0o600
    assert audit.lines == 100


async def test_a_file_that_another_program_renamed_is_opened_again_on_request(path: Path) -> None:
    audit = Audit(AuditFile(path))
    audit.start()
    audit.note("before")
    await eventually(lambda: audit.lines == 1)
    path.rename(path.with_suffix(".old"))
    audit.note("between")
    await eventually(lambda: audit.lines == 2)
    audit.reopen()
    audit.note("after")
    await audit.stop()
    assert events(path.with_suffix(".old")) == ["before", "between"]
    assert events(path) == ["after"]


async def test_what_cannot_be_written_is_counted_and_told_later(path: Path) -> None:
    path.parent.joinpath("logs").mkdir()
    path = path.parent / "logs" / "audit.jsonl"
    audit = Audit(AuditFile(path))
    audit.start()
    audit.note("first")
    await eventually(lambda: audit.lines == 1)
    path.parent.rename(path.parent.with_name("gone"))
    audit.reopen()
    for _ in range(3):
        audit.note("lost")
    await eventually(lambda: audit.lines_lost == 3)
    path.parent.mkdir()
    audit.note("again")
    await audit.stop()
    assert [(line["event"], line.get("count")) for line in lines(path)] == [("audit_lost", 3), ("again", None)]
    assert audit.lines_lost == 3


async def test_a_disk_that_hangs_delays_nothing_and_costs_bounded_memory(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    audit = Audit(AuditFile(pipe, bytes_max=0))
    audit.start()
    loop = asyncio.get_running_loop()
    for _ in range(12_000):  # the pipe takes a few hundred lines, then the thread waits
        audit.note("test", text="x" * 200)
    assert loop.is_running()
    wait_until(lambda: audit.lines_lost > 0, "lines are lost")
    lost = audit.lines_lost
    while audit.lines < 12_000 - lost:
        try:
            os.read(reader, 1 << 20)
        except BlockingIOError:
            await asyncio.sleep(0)
    os.close(reader)
    await audit.stop()


def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    audit = Audit(AuditFile(tmp_path / "missing" / "audit.jsonl"))
    with pytest.raises(OSError, match="No such file"):
        audit.start()


async def test_without_a_file_nothing_is_noted() -> None:
    audit = Audit()
    audit.start()
    audit.note("test")
    audit.refused("test", "reason")
    audit.reopen()
    await audit.stop()
    assert (audit.enabled, audit.lines, audit.lines_lost) == (False, 0, 0)
