"""The one owner of the manifest: every change of what counts on disk goes through here, one at a time.

Checkpoints, merges and compaction run concurrently; each ends in one replacement of the manifest, and the index
in memory changes in the very step in which the new manifest is durable. Files that a change leaves without a name are
the caller's to remove, afterwards: a crash in between leaves them for the next start (``remove_orphans``).

A caller that is cancelled while the manifest is being replaced does not stop the file system, which finishes the
rename: the manifest on disk may be the new one, and the one in memory is the old one (``may_be_behind``). The same
holds for a caller that does not wait on a full disk. Merges and compaction may be cancelled, because both manifests
say the same of every ledger that is held; who takes away what is held (rule C11) waits for the end instead."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from octavo.bookie.disk.filesystem import FileSystem, read_file, replace_file
from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.index import Index
from octavo.bookie.index.part import Part
from octavo.bookie.storage.manifest import EMPTY, Manifest, decode_manifest, encode_manifest
from octavo.protocol.held_entries import Doubt

MANIFEST_NAME = "manifest"


class ManifestKeeper:
    """Holds the manifest in force, and hands out ids for new parts and logs."""

    def __init__(
        self, filesystem: FileSystem, directory: Path, manifest: Manifest, index: Index, disk_retry: FullDiskRetry
    ) -> None:
        self._filesystem = filesystem
        self._path = directory / MANIFEST_NAME
        self._manifest = manifest
        self._index = index
        self._disk_retry = disk_retry
        self._lock = asyncio.Lock()
        self._next_part_id = manifest.next_part_id
        self._next_log_id = manifest.next_log_id
        self.doubt = manifest.doubt
        """See :class:`Manifest`. What is set here is durable with the next manifest."""
        self.log_sizes: dict[int, int] = dict(manifest.logs)
        """Log id -> bytes that count, of every live log."""
        self.may_be_behind = False
        """A replacement was cancelled or failed, and none has succeeded since: the manifest on disk may name files that
        this one does not, so none of those may be removed (rule B8)."""

    def new_part_id(self) -> int:
        self._next_part_id += 1
        return self._next_part_id - 1

    def new_log_id(self) -> int:
        self._next_log_id += 1
        return self._next_log_id - 1

    async def commit_checkpoint(self, mark: tuple[int, int], part: Part | None, log_sizes: Mapping[int, int]) -> None:
        """The instant of a checkpoint: the newest part, the lengths of the logs it points to, and the mark. Raises
        OSError."""
        async with self._lock:
            parts = (*self._index.parts, *((part,) if part is not None else ()))
            await self._replace(mark, parts, self.log_sizes | dict(log_sizes))
            if part is not None:
                self._index.append(part)

    async def replace_parts(self, old: Sequence[Part], new: Part, *, waits: bool = True) -> None:
        """Put ``new`` in the place of neighbouring parts that it was made from; these are removed. Raises OSError,
        unless it ``waits`` also for a full disk: nothing is removed then."""
        async with self._lock:
            parts = list(self._index.parts)
            at = parts.index(old[0])
            parts[at : at + len(old)] = [new]
            await self._replace(self._manifest.mark, parts, self.log_sizes, waits=waits)
            await self._index.replace(old, new)

    async def exchange_logs(
        self, removed: Collection[int], added: Mapping[int, int], part: Part | None, above: Part | None
    ) -> None:
        """Compaction's instant: ``part`` says where in the logs ``added`` the entries of those ``removed`` stand now.
        It goes in just above the part ``above``, the newest there was when the entries were looked up: whatever has
        been written since wins over it. Raises OSError."""
        async with self._lock:
            parts = list(self._index.parts)
            if part is not None:
                assert above is not None, "what a part was made from has been in a part"
                parts.insert(parts.index(above) + 1, part)
            kept = {log_id: size for log_id, size in self.log_sizes.items() if log_id not in removed}
            await self._replace(self._manifest.mark, parts, kept | dict(added))
            if part is not None and above is not None:
                self._index.insert_above(above, part)

    async def change_doubt(self, doubt: Doubt) -> None:
        """Replace the doubt, durably. Raises OSError."""
        async with self._lock:
            self.doubt = doubt
            await self._replace(self._manifest.mark, self._index.parts, self.log_sizes)

    async def _replace(
        self,
        mark: tuple[int, int] | None,
        parts: Sequence[Part],
        log_sizes: Mapping[int, int],
        *,
        waits: bool = True,
    ) -> None:
        part_ids = tuple(part.part_id for part in parts)
        logs = tuple(sorted(log_sizes.items()))
        manifest = Manifest(mark, self._next_part_id, self._next_log_id, part_ids, logs, self.doubt)
        content = encode_manifest(manifest)
        try:
            if waits:
                await self._disk_retry.retry_while_full(
                    self._path, lambda: replace_file(self._filesystem, self._path, content)
                )
            else:
                await replace_file(self._filesystem, self._path, content)
        except (asyncio.CancelledError, OSError):
            self.may_be_behind = True
            raise
        self.may_be_behind = False
        self._manifest = manifest
        self.log_sizes = dict(log_sizes)


async def read_manifest(filesystem: FileSystem, directory: Path, *, must_exist: bool) -> Manifest:
    """The manifest of a data directory, durable; created when the directory is new, unless it ``must_exist``. Raises
    :class:`IndexDamagedError`, OSError."""
    path = directory / MANIFEST_NAME
    try:
        manifest = decode_manifest(await read_file(filesystem, path))
    except ValueError as error:
        raise IndexDamagedError(path, 0, str(error)) from error
    except FileNotFoundError:
        # The manifest is written before anything it could name: files without it mean that it was lost.
        if await filesystem.list_directory(directory / "index"):
            raise IndexDamagedError(path, 0, "the file is missing though there are index files") from None
        if must_exist:
            # Emptied but for its cookies. As a new bookie it would answer "absent" for what it acknowledged (rule B4).
            raise IndexDamagedError(path, 0, "the file is missing though this bookie has served before") from None
        await replace_file(filesystem, path, encode_manifest(EMPTY))
        return EMPTY
    # A process killed between the rename and its sync leaves one that a power cut would take back (rule B1): its
    # predecessor may name files that this one does not, which are removed next.
    await filesystem.sync_directory(directory)
    return manifest


def journal_goes_back_to(manifest: Manifest, segments: Collection[int]) -> bool:
    """Whether a journal of these segments holds what the manifest leaves to it. A segment goes once a manifest that
    can do without it is durable: if not, segments were lost, or the manifest is an old copy. Without a mark nothing has
    ever been checkpointed, and the journal begins with its first segment, if there is one."""
    if manifest.mark is None:
        return not segments or min(segments) == 1
    return manifest.mark[0] in segments


async def refuse_old_manifest(
    filesystem: FileSystem, directory: Path, log_directories: Sequence[Path], manifest: Manifest
) -> None:
    """For a manifest that the journal does not go back to. If there are files that only a later manifest can have
    named, this one has been restored from a copy, and files that it does not name must not be removed. Raises
    :class:`IndexDamagedError` then, OSError."""
    numbered = [(folder, manifest.next_log_id) for folder in log_directories]
    for folder, next_id in [*numbered, (directory / "index", manifest.next_part_id)]:
        for name in await filesystem.list_directory(folder):
            number = _number(name)
            if number is not None and number >= next_id:
                what = f"it is an old copy: the journal no longer goes back to it, and {folder / name} is newer"
                raise IndexDamagedError(directory / MANIFEST_NAME, 0, what)


async def remove_orphans(
    filesystem: FileSystem, log_directories: Sequence[Path], index_directory: Path, manifest: Manifest
) -> Manifest:
    """Remove index parts and entry logs that no manifest names: what a crash interrupted.

    Gives the manifest with the ids from which new parts and logs may be numbered.
    """
    next_part_id, next_log_id = manifest.next_part_id, manifest.next_log_id
    live_logs = set(dict(manifest.logs))
    for folder in log_directories:
        next_log_id = max(next_log_id, await _remove_others(filesystem, folder, live_logs))
    next_part_id = max(next_part_id, await _remove_others(filesystem, index_directory, set(manifest.part_ids)))
    return manifest._replace(next_part_id=next_part_id, next_log_id=next_log_id)


async def _remove_others(filesystem: FileSystem, folder: Path, live: set[int]) -> int:
    """Remove the files whose number is not live; one more than the highest number seen."""
    next_id = 0
    for name in await filesystem.list_directory(folder):
        number = _number(name)
        if number is None:
            continue  # not an Octavo file
        next_id = max(next_id, number + 1)
        if number not in live or name.endswith("tmp"):
            await filesystem.remove(folder / name)
    await filesystem.sync_directory(folder)
    return next_id


def _number(name: str) -> int | None:
    """The number of the log or part that a file belongs to; None for other files."""
    try:
        return int(name.partition(".")[0], 16)
    except ValueError:
        return None
