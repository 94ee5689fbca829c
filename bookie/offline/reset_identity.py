"""Lets a bookie whose disks were wiped, restored or exchanged start under its old id, in doubt.

A start refuses such disks, because acknowledged entries may be missing from them. Doubt makes them safe to use: the
bookie never reports an entry as absent, refuses ordinary adds to existing ledgers, and accepts fences (rule B4). It
serves the entries it still has; the others must be copied back from the ledgers' other bookies.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.filesystem import FileSystem, read_file, replace_file
from octavo.bookie.identity.cookie import (
    COOKIE_NAME,
    IGNORED_NAMES,
    DirectoryCookie,
    check_not_retired,
    decode_cookie,
    new_token,
    seen_by,
    write_directory_cookie,
)
from octavo.bookie.identity.duplicate_start import find_running_original, wait_until_unregistered
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.bookie.identity.older_metadata import hold_garbage_if_older
from octavo.bookie.offline.layout import Layout, refuse_if_unnamed
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER, EMPTY, decode_manifest, encode_manifest
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.metadata import Cookie, MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import BookieId

BOOKIE_NAMES = IGNORED_NAMES | {
    "entries",
    "index",
    "journal",
    "reserve",
    "read-only",
    MANIFEST_NAME,
    MANIFEST_NAME + ".tmp",
}
"""Names of a bookie's files and folders, besides journal segments."""


PATIENCE_SECONDS = 30.0
"""How long a reset waits for a registration to end that the bookie has left behind: longer than most leases."""


class Reset(NamedTuple):
    """The new identity of the directories."""

    bookie_id: BookieId
    generation: int


class Owner(NamedTuple):
    """The bookie to which the directories may be assigned."""

    bookie_id: BookieId
    cluster_id: str
    generation: int
    """The highest one found, in the directories or in the metadata."""
    known: Versioned[Cookie]
    """Its cookie in the metadata."""
    cookies: tuple[DirectoryCookie, ...]
    """The cookies that were found in the directories."""


async def find_owner(filesystem: FileSystem, layout: Layout, store: MetadataStore, bookie_id: str | None) -> Owner:
    """Check that the directories may be assigned to that bookie, or without ``bookie_id`` to the one that their cookies
    name. Changes and creates nothing.

    Raises :class:`InvalidArgumentError` when the id is missing, unknown, or differs from the cookies' id,
    :class:`DataWrongError` for directories that are not a bookie's, :class:`BookieStartError` while the bookie runs,
    OSError.
    """
    cluster_id = await store.cluster_id()
    cookies = []
    for path in dict.fromkeys(layout.directories.values()):
        cookie = await _cookie_in(filesystem, layout, path)
        if cookie is not None:
            cookies.append(cookie)
            if cookie.cluster_id != cluster_id:
                raise InvalidArgumentError(
                    f"{path} belongs to cluster {cookie.cluster_id}, the metadata to {cluster_id}: "
                    "check the metadata URI"
                )
    wanted = _choose({cookie.bookie_id for cookie in cookies}, bookie_id)
    await check_not_retired(store, wanted)
    known = await store.read_cookie(wanted)
    if known is None:
        raise InvalidArgumentError(
            f"the cluster has no bookie {wanted}: it was forgotten, or the metadata were replaced or restored from a "
            "backup; check the metadata URI, `octavo bookies` lists the bookies of the cluster"
        )
    if other := await find_running_original(store, wanted, cluster_id, ""):
        raise BookieStartError(f"{other.where}: stop it first if it is to move here")
    generation = max([known.value.generation, *(cookie.generation for cookie in cookies)])
    return Owner(wanted, cluster_id, generation, known, tuple(cookies))


async def _cookie_in(filesystem: FileSystem, layout: Layout, path: Path) -> DirectoryCookie | None:
    if not await filesystem.exists(path):
        return None
    names = await filesystem.list_directory(path)
    if COOKIE_NAME in names:
        return decode_cookie(await read_file(filesystem, path / COOKIE_NAME))
    nested = {
        other.relative_to(path).parts[0]
        for other in layout.directories.values()
        if other != path and other.is_relative_to(path)
    }
    for name in sorted(names):
        if name not in BOOKIE_NAMES | nested and not name.endswith(".segment"):
            raise DataWrongError(
                f"{path} has no cookie, and {name} in it is not a bookie's file: name the bookie's own directory, or "
                "an empty one"
            )
    return None


async def reset_identity(
    filesystem: FileSystem,
    layout: Layout,
    store: MetadataStore,
    *,
    bookie_id: str | None,
    rng: random.Random,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Reset:
    """Put the bookie in doubt, durably, and only then write cookies that its next start accepts.

    The cookies get a new lineage. A process that runs on other disks under this id cannot register any more once the
    metadata have it (rule B10); one that registers just before keeps itself registered, and the next start, which waits
    for the end of that, is refused.

    Without this order, an interruption in between would let the bookie start without doubt. What is left of its entries
    stays: entry logs whose manifest was lost must be taken in first (rule B8). ``bookie_id`` is required when no cookie
    names it.

    Raises the errors of :func:`find_owner`; :class:`BookieStartError` if a process is registered as the bookie for
    ``patience_seconds`` (it is sure of its id, and confirms and denies, whether it can be reached from here or not);
    and :class:`DataWrongError` for a manifest that must be rebuilt first.
    """
    wanted, cluster_id, generation, known, cookies = await find_owner(filesystem, layout, store, bookie_id)
    await wait_until_unregistered(store, wanted, seconds=patience_seconds)
    # Afterwards nothing shows that the metadata are older than the directories, if they are.
    ids_stop = await hold_garbage_if_older(store, wanted, known.value.generation, seen_by(cookies))
    await _put_in_doubt(filesystem, layout)
    generation += 1
    token, lineage = new_token(rng), new_token(rng)
    places: dict[str, list[str]] = {}
    for role, path in layout.directories.items():
        places.setdefault(str(path), []).append(role)
    roles = tuple("+".join(names) for names in places.values())
    paths = list(dict.fromkeys(layout.directories.values()))
    for role, path in zip(roles, paths, strict=True):
        cookie = DirectoryCookie(
            wanted, cluster_id, generation, token, role, roles, served=True, ledger_ids_stop=ids_stop,
            lineage=lineage,
        )  # fmt: skip
        await write_directory_cookie(filesystem, path, cookie)
    changed = replace(known.value, generation=generation, body=token.encode(), lineage=lineage)
    await store.compare_and_set_cookie(changed, known.version)
    return Reset(wanted, generation)


def _choose(claimed: set[BookieId], given: str | None) -> BookieId:
    if given is not None:
        if claimed - {BookieId(given)}:
            raise InvalidArgumentError(f"the cookies name {', '.join(sorted(claimed))}, not {given}")
        return BookieId(given)
    if len(claimed) != 1:
        names = f"the cookies name {', '.join(sorted(claimed))}" if claimed else "no cookie is left"
        raise InvalidArgumentError(
            f"{names}: name the bookie with --bookie-id; `octavo bookies` lists the cluster's bookies"
        )
    return next(iter(claimed))


async def _put_in_doubt(filesystem: FileSystem, layout: Layout) -> None:
    path = layout.data / MANIFEST_NAME
    for folder in (*layout.entries, layout.index):
        await filesystem.make_directory(folder)
    try:
        manifest = decode_manifest(await read_file(filesystem, path))
    except FileNotFoundError:
        if await filesystem.list_directory(layout.index):
            raise DataWrongError(f"{path} is missing; run `octavo bookie rebuild-index` first") from None
        manifest = EMPTY
    except ValueError as error:
        raise DataWrongError(f"{path}: {error}; run `octavo bookie rebuild-index` first") from error
    if manifest.mark is None and not manifest.logs:
        # The next start removes every entry log, as left over from a crash, which they are not if the manifest that
        # named them was lost (rule B8).
        await refuse_if_unnamed(filesystem, layout)
        for folder in layout.entries:
            if logs := [name for name in await filesystem.list_directory(folder) if name.endswith(".log")]:
                raise DataWrongError(
                    f"{folder / logs[0]}: no manifest names this entry log; run `octavo bookie rebuild-index` first, "
                    "which takes it in"
                )
    await replace_file(filesystem, path, encode_manifest(manifest._replace(doubt=DOUBT_OF_EVERY_LEDGER)))
