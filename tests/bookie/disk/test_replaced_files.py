"""Small files that are replaced as a whole: by one writer at a time (rule B9)."""

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PosixPath

import pytest
from octavo.bookie.admin.read_only_file import FILE_NAME, load_read_only, save_read_only
from octavo.bookie.disk.filesystem import FileSystem, RealFileSystem, file_gate, read_file, replace_file
from octavo.bookie.identity.cookie import COOKIE_NAME, Identity, decode_cookie, note_served
from octavo.protocol.ids import BookieId
from support.disks.faulty_filesystem import MemoryFileSystem
from support.waiting import loop_turns

IDENTITY = Identity(BookieId("b1"), "cluster", 3, first_start=False, token="token", served=True)


@pytest.fixture(params=[MemoryFileSystem, RealFileSystem])
def make(request: pytest.FixtureRequest) -> Callable[[], FileSystem]:
    made: Callable[[], FileSystem] = request.param
    return made


async def test_of_writers_at_once_each_puts_its_own_content_into_place(
    tmp_path: Path, make: Callable[[], FileSystem]
) -> None:
    filesystem = make()
    path = tmp_path / "file"
    await filesystem.make_directory(tmp_path)
    contents = [bytes([65 + number]) * 9_000 for number in range(8)]
    await asyncio.gather(*(replace_file(filesystem, path, content) for content in contents))
    assert await read_file(filesystem, path) == contents[-1], "in the order of the calls"
    assert await filesystem.list_directory(tmp_path) == ["file"]
    if isinstance(filesystem, RealFileSystem):
        await filesystem.close()


async def test_a_writer_that_comes_while_others_wait_waits_behind_them() -> None:
    filesystem, path = MemoryFileSystem(), Path("file")
    holds = [asyncio.Event() for _ in range(3)]
    inside: list[int] = []

    async def change(number: int) -> None:
        async with file_gate(filesystem, path):
            inside.append(number)
            await holds[number].wait()
            inside.remove(number)

    async def change_one_more(number: int) -> "asyncio.Task[None]":
        task = asyncio.create_task(change(number))
        await loop_turns(3)
        return task

    tasks = [await change_one_more(0), await change_one_more(1)]
    holds[0].set()
    await tasks[0]
    tasks.append(await change_one_more(2))
    assert inside == [1]
    for hold in holds:
        hold.set()
    await asyncio.gather(*tasks)


class NotedPath(PosixPath):
    """A path of which a test can tell whether it is still in use."""


async def test_nothing_stays_of_a_path_that_no_writer_changes_any_more() -> None:
    filesystem, path = MemoryFileSystem(), NotedPath("file")
    known = weakref.ref(path)
    go_on = asyncio.Event()

    async def change(path: Path) -> None:
        async with file_gate(filesystem, path):
            await go_on.wait()

    tasks = [asyncio.create_task(change(path)), asyncio.create_task(change(path)), asyncio.create_task(change(path))]
    del path
    await loop_turns(3)
    tasks[1].cancel()  # while it waits
    go_on.set()
    for task in tasks:
        await asyncio.wait([task])
    del task, tasks
    await loop_turns(3)
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("turns", range(12))
async def test_a_writer_that_is_cancelled_disturbs_the_next_one_not(tmp_path: Path, turns: int) -> None:
    filesystem = MemoryFileSystem()
    await filesystem.make_directory(tmp_path)
    first = asyncio.ensure_future(replace_file(filesystem, tmp_path / "file", b"first"))
    second = asyncio.ensure_future(replace_file(filesystem, tmp_path / "file", b"second"))
    third = asyncio.ensure_future(replace_file(filesystem, tmp_path / "file", b"third"))
    for _ in range(turns):
        await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await third
    assert await read_file(filesystem, tmp_path / "file") == b"third"


async def test_notes_of_new_ledger_ids_at_once_leave_a_whole_cookie_with_the_latest(
    tmp_path: Path, make: Callable[[], FileSystem]
) -> None:
    filesystem = make()
    await filesystem.make_directory(tmp_path)
    notes = [replace(IDENTITY, ledger_ids_stop=number) for number in (5, 6, 7)]
    await asyncio.gather(*(note_served(filesystem, {"data": tmp_path}, identity) for identity in notes))
    cookie = decode_cookie(await read_file(filesystem, tmp_path / COOKIE_NAME))
    assert cookie is not None
    assert cookie.ledger_ids_stop == 7
    if isinstance(filesystem, RealFileSystem):
        await filesystem.close()


async def test_the_read_only_switch_is_as_it_was_set_last(tmp_path: Path) -> None:
    filesystem = MemoryFileSystem()
    await filesystem.make_directory(tmp_path)
    await asyncio.gather(*(save_read_only(filesystem, tmp_path, reason) for reason in ("a", None, "b")))
    assert await load_read_only(filesystem, tmp_path) == "b"
    await asyncio.gather(*(save_read_only(filesystem, tmp_path, reason) for reason in ("c", None)))
    assert await load_read_only(filesystem, tmp_path) is None
    await save_read_only(filesystem, tmp_path, "d")
    assert json.loads(await read_file(filesystem, tmp_path / FILE_NAME)) == {"reason": "d"}
