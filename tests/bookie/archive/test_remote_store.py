"""What a remote store answers becomes one of a few errors, by what can be done about it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from octavo.bookie.archive.errors import (
    ArchiveError,
    ObjectDamagedError,
    ObjectMissingError,
    StoreAwayError,
    StoreRefusedError,
)
from octavo.bookie.archive.store import OWNER_KEY, OwnedStore, StoreDriver, single_part
from support.archive.store_servers import Answer, StoreServer, answering_server, rclone_server

FACTS = ("Content-Length: 10", "Last-Modified: Sat, 28 Nov 2026 10:00:00 GMT", 'ETag: "1"')


def error_body(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said so</Message></Error>".encode()


async def listing(driver: StoreDriver) -> None:
    async for _ in driver.list(""):
        pass


OPERATIONS: dict[str, Callable[[StoreDriver], Awaitable[object]]] = {
    "put": lambda driver: driver.put("key", single_part(b"x")),
    "get": lambda driver: driver.get("key", 0, 5),
    "head": lambda driver: driver.head("key"),
    "delete": lambda driver: driver.delete("key"),
    "list": listing,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer("403 Forbidden", error_body("AccessDenied")), StoreRefusedError),
        (Answer("403 Forbidden", error_body("InvalidObjectState")), StoreRefusedError),
        (Answer("401 Unauthorized", error_body("Unauthorized")), StoreRefusedError),
        (Answer("503 Slow Down", error_body("SlowDown")), StoreAwayError),
        (Answer("500 Internal Server Error", error_body("InternalError")), StoreAwayError),
        (None, StoreAwayError),
    ],
)
async def test_each_answer_has_its_kind(operation: str, answer: Answer | None, kind: type[ArchiveError]) -> None:
    async with answering_server(lambda method, path: answer) as server:
        with pytest.raises(kind) as caught:
            await OPERATIONS[operation](server.store("prefix"))
    assert "s3://octavo-tests/prefix" in str(caught.value)
    assert caught.value.retryable is (kind is StoreAwayError)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_host_that_does_not_listen_is_away(operation: str) -> None:
    async with answering_server(lambda method, path: None) as server:
        pass
    with pytest.raises(StoreAwayError):
        await OPERATIONS[operation](server.store("prefix"))


async def test_a_store_that_does_not_answer_in_time_is_away() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        server = StoreServer(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        with pytest.raises(StoreAwayError):
            await server.store("prefix", request_timeout_seconds=0.2).head("key")


@pytest.mark.parametrize("code", ["NoSuchBucket", "NoSuchKey"])
async def test_a_missing_bucket_is_refused_although_it_is_answered_as_a_missing_object(code: str) -> None:
    async with answering_server(lambda method, path: Answer("404 Not Found", error_body(code))) as server:
        with pytest.raises(ObjectMissingError):
            await server.store("prefix").head("key")
        store = OwnedStore(server.store("prefix"), b"owner 1")
        for ask in (store.head("key"), store.get("key", 0, 1), store.put("key", single_part(b"x")), store.claim()):
            with pytest.raises(StoreRefusedError):
                await ask


def owned(answer: Answer) -> Callable[[str, str], Answer]:
    """A server whose owner's document is there, and which gives one answer to all else."""

    def answers(method: str, path: str) -> Answer:
        return Answer("200 OK", headers=FACTS) if path.endswith(OWNER_KEY) else answer

    return answers


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer("200 OK", b"0123456789", FACTS), StoreRefusedError),
        (Answer("416 Range Not Satisfiable", error_body("InvalidRange")), ObjectDamagedError),
        (
            Answer("206 Partial Content", b"012", ("Content-Length: 3", "Content-Range: bytes 0-2/3", *FACTS[1:])),
            ObjectDamagedError,
        ),
        (Answer("404 Not Found", error_body("NoSuchKey")), ObjectMissingError),
    ],
)
async def test_what_is_no_answer_to_a_range_has_its_kind(answer: Answer, kind: type[ArchiveError]) -> None:
    async with answering_server(owned(answer)) as server:
        store = OwnedStore(server.store("prefix"), b"owner 1")
        with pytest.raises(kind):
            await store.get("key", 0, 5)


async def test_an_answer_that_breaks_off_is_no_answer() -> None:
    headers = ("Content-Length: 5", "Content-Range: bytes 0-4/10", *FACTS[1:])
    async with answering_server(owned(Answer("206 Partial Content", b"012", headers))) as server:
        with pytest.raises(StoreAwayError):
            await OwnedStore(server.store("prefix"), b"owner 1").get("key", 0, 5)


async def test_rclone_ignores_ranges_and_is_refused_when_it_is_claimed(tmp_path: Path) -> None:
    with rclone_server(tmp_path) as server, pytest.raises(StoreRefusedError, match="ignores ranges"):
        await OwnedStore(server.store("prefix"), b"owner 1").claim()
